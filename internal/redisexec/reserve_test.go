package redisexec

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/script"
)

func reserverOf(process func(cmd redis.Cmder) error) *Reserver {
	return &Reserver{
		Executor: executor(client(process), true), Script: script.New("reserve"), CancelScript: script.New("cancel"),
		Args: []any{"20", "120"}, Words: 2,
	}
}

// noUndo fails the test if a reservation is undone.
func noUndo(t *testing.T) func(*Receipt) {
	return func(*Receipt) { t.Error("undone") }
}

func TestRepliesToReservationsAreChecked(t *testing.T) {
	receipt := &Receipt{given: 9, kept: 8, before: "before", wrote: "wrote"}
	for _, row := range []struct {
		reply []any
		want  Reserved
		err   string
	}{
		{reply: []any{int64(5), int64(1), int64(2)}, want: Reserved{Due: 5, Words: []int64{1, 2}}},
		{reply: []any{int64(5), int64(1), int64(2), int64(9), int64(8), "before", "wrote"}, want: Reserved{Due: 5, Words: []int64{1, 2}, Receipt: receipt}},
		{reply: nil, err: "the client reported neither an error nor a reply"},
		{reply: []any{int64(5)}, err: "a reply of 1 elements to a reservation, not 3 or 7"},
		{reply: []any{int64(5), int64(1), "2"}, err: "element 3 of the reply to a reservation is a string, not an integer"},
		{reply: []any{int64(5), int64(1), int64(2), int64(9), nil, "before", "wrote"}, err: "element 5 of the reply to a reservation is a <nil>, not an integer"},
		{reply: []any{int64(5), int64(1), int64(2), int64(9), int64(8), "before", int64(1)}, err: "the states in the reply to a reservation are not strings"},
	} {
		r := reserverOf(func(cmd redis.Cmder) error {
			if row.reply != nil {
				cmd.(*Once).Cmder.(*redis.SliceCmd).SetVal(row.reply)
			}
			return nil
		})
		got, err := r.Reserve(ctx, "k", 1, 7, noUndo(t))
		if row.err != "" {
			require.EqualError(t, err, row.err)
		} else {
			require.NoError(t, err)
		}
		require.Equal(t, row.want, got)
	}
	require.EqualError(t, reserverOf(func(redis.Cmder) error { return nil }).Cancel(ctx, "k", receipt), "the client reported neither an error nor a reply")
}

func TestArgumentsOfReservations(t *testing.T) {
	var sent [][]any
	r := reserverOf(func(cmd redis.Cmder) error {
		sent = append(sent, cmd.Args())
		switch cmd := cmd.(*Once).Cmder.(type) {
		case *redis.SliceCmd:
			cmd.SetVal([]any{int64(0), int64(1), int64(2)})
		case *redis.IntCmd:
			cmd.SetVal(1)
		}
		return nil
	})
	_, err := r.Reserve(ctx, "k", 3, 7, noUndo(t))
	require.NoError(t, err)
	r.Now, r.Spare = func() (int64, error) { return 42, nil }, "1000"
	_, err = r.Reserve(ctx, "k", 3, 7, noUndo(t))
	require.NoError(t, err)
	require.NoError(t, r.Cancel(ctx, "k", &Receipt{given: 9, kept: 8, before: "before", wrote: "wrote"}))
	require.Equal(t, [][]any{
		{"evalsha", r.Script.BySHA[1], "1", "k", "3", "20", "120", "7"},
		{"evalsha", r.Script.BySHA[1], "1", "k", "3", "20", "120", "7", "1000", int64(42)},
		{"evalsha", r.CancelScript.BySHA[1], "1", "k", int64(9), int64(8), "before", "wrote"},
	}, sent)
	wrong := errors.New("1969")
	r.Now = func() (int64, error) { return 0, wrong }
	_, err = r.Reserve(ctx, "k", 3, 7, noUndo(t))
	require.ErrorIs(t, err, wrong)
}

// TestReservationsAreSentOnce: NOSCRIPT is the only error after which a script is sent
// again.
func TestReservationsAreSentOnce(t *testing.T) {
	for _, row := range []struct {
		errs []error
		want []string
	}{
		{[]error{nil}, []string{"evalsha"}},
		{[]error{redis.ErrNoScript, nil}, []string{"evalsha", "eval"}},
		{[]error{redis.ErrNoScript, redis.ErrNoScript}, []string{"evalsha", "eval"}},
		{[]error{serverError("OOM")}, []string{"evalsha"}},
	} {
		var sent []string
		r := reserverOf(func(cmd redis.Cmder) error {
			require.True(t, cmd.NoRetry())
			sent = append(sent, cmd.Name())
			switch cmd := cmd.(*Once).Cmder.(type) {
			case *redis.SliceCmd:
				cmd.SetVal([]any{int64(0), int64(1), int64(2)})
			case *redis.IntCmd:
				cmd.SetVal(1)
			}
			return row.errs[len(sent)-1]
		})
		last := row.errs[len(row.errs)-1]
		_, err := r.Reserve(ctx, "k", 1, 7, noUndo(t))
		require.ErrorIs(t, err, last)
		require.Equal(t, row.want, sent)
		sent = nil
		require.ErrorIs(t, r.Cancel(ctx, "k", &Receipt{}), last)
		require.Equal(t, row.want, sent)
	}
}

// TestACallerWhoLeavesBesideTheReply: the context ends just after the reply has found that
// it had not.
func TestACallerWhoLeavesBesideTheReply(t *testing.T) {
	r := reserverOf(func(cmd redis.Cmder) error {
		cmd.(*Once).Cmder.(*redis.SliceCmd).SetVal([]any{int64(5), int64(1), int64(2), int64(9), int64(8), "before", "wrote"})
		return nil
	})
	within, cancel := context.WithCancel(ctx)
	left, undone := make(chan struct{}), make(chan string, 1)
	asked := &ending{Context: within, first: func() {
		cancel()
		<-left
	}}
	reserved, err := r.Reserve(asked, "k", 1, 7, func(receipt *Receipt) { undone <- receipt.Wrote() })
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, reserved)
	close(left)
	require.Equal(t, "wrote", <-undone)
}

// An ending context calls first when it is first asked for its error, which is nil then.
type ending struct {
	context.Context
	asked atomic.Bool
	first func()
}

func (e *ending) Err() error {
	if e.asked.Swap(true) {
		return e.Context.Err()
	}
	e.first()
	return nil
}
