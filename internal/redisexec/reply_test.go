package redisexec

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/redisclient"
	"github.com/tryacquire/ratelimit/internal/script"
)

var ctx = context.Background()

// executor returns one whose replies have two words, and are one integer if packed.
func executor(c redisclient.Client, packed bool) *Executor {
	e := &Executor{
		Client: c, One: script.New("one"), Peek: script.New("peek"), Many: script.New("many"), Operations: script.New("operations"), Alone: script.New("alone"),
		Args: []any{"10", "60"}, Words: 2, Pooled: true,
	}
	if packed {
		e.Unpack = func(reply int64, words []int64) { words[0], words[1] = reply/100, reply%100 }
	}
	return e
}

// answer gives a command its reply: an array, or the first integer alone.
func answer(cmd redis.Cmder, words ...int64) {
	switch cmd := cmd.(*Once).Cmder.(type) {
	case *redis.IntCmd:
		cmd.SetVal(words[0])
	case *redis.IntSliceCmd:
		cmd.SetVal(words)
	}
}

func TestRepliesAreChecked(t *testing.T) {
	for _, test := range []struct {
		packed bool
		reply  func(cmd redis.Cmder)
		words  []int64
		err    string
	}{
		{packed: true, reply: func(cmd redis.Cmder) { answer(cmd, 307) }, words: []int64{3, 7}},
		{packed: true, reply: func(cmd redis.Cmder) { answer(cmd, 0) }, words: []int64{0, 0}},
		{packed: true, reply: func(redis.Cmder) {}, err: "the client reported neither an error nor a reply"},
		{packed: true, reply: func(cmd redis.Cmder) { answer(cmd, math.MinInt64) }, err: "the client reported neither an error nor a reply"},
		{reply: func(cmd redis.Cmder) { answer(cmd, 3, 7) }, words: []int64{3, 7}},
		{reply: func(redis.Cmder) {}, err: "the client reported neither an error nor a reply"},
		{reply: func(cmd redis.Cmder) { answer(cmd, 3) }, err: "a reply of 1 integers, not 2"},
		{reply: func(cmd redis.Cmder) { answer(cmd, 3, 7, 9) }, err: "a reply of 3 integers, not 2"},
	} {
		e := executor(client(func(cmd redis.Cmder) error { test.reply(cmd); return nil }), test.packed)
		for range 2 { // the second time with memory that was used before
			reply, err := e.Ask(ctx, "k", take(1))
			if test.err != "" {
				require.EqualError(t, err, test.err)
				require.Zero(t, reply)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, test.words, reply.Words)
			require.Zero(t, reply.Index)
			reply.Done()
		}
	}
}

func TestAReplyToManyHasAnyNumberOfWords(t *testing.T) {
	for _, packed := range []bool{true, false} {
		e := executor(client(func(cmd redis.Cmder) error { answer(cmd, 1, 2, 3); return nil }), packed)
		words, err := e.DoMany(ctx, e.Many, 1, func(int) (*string, any) { return new(string), "1" })
		require.NoError(t, err)
		require.Equal(t, []int64{1, 2, 3}, words)
	}
}

// TestReplyOfAPipelinesCommand: its own reply or error, else why the pipeline was not
// sent, and never the server's reply to another command.
func TestReplyOfAPipelinesCommand(t *testing.T) {
	refused, corrupt := errors.New("refused"), serverError("WRONGTYPE of another key")
	for _, test := range []struct {
		replied bool
		own     error
		exec    error
		want    string // empty: none
	}{
		{replied: true},
		{replied: true, exec: corrupt},
		{replied: true, own: refused, exec: corrupt, want: "refused"},
		{exec: refused, want: "refused"},
		{exec: corrupt, want: "the client did not send the command"},
		{want: "the client did not send the command"},
	} {
		for _, packed := range []bool{true, false} {
			e := executor(nil, packed)
			one, err := e.Command("k", Operation{Op: Take, N: 1, Times: 1})
			require.NoError(t, err)
			many, err := e.CommandMany(e.Many, 1, func(int) (*string, any) { return new(string), "1" })
			require.NoError(t, err)
			for _, c := range []*Command{one, many} {
				c.once.Cmder = c.newCmd(ctx)
				if test.replied {
					answer(&c.once, 0, 0)
					c.once.SetErr(test.own)
				}
				words, err := c.Reply(test.exec)
				if test.want == "" {
					require.NoError(t, err)
					require.Equal(t, []int64{0, 0}, words)
				} else {
					require.EqualError(t, err, test.want)
				}
			}
		}
	}
}

// serverError is an error as the server sends it.
type serverError string

func (e serverError) Error() string { return string(e) }
func (serverError) RedisError()     {}

func TestOnlyNoscriptMeansNotExecuted(t *testing.T) {
	require.True(t, IsUnknown(redis.ErrNoScript))
	require.True(t, IsUnknown(fmt.Errorf("wrapped: %w", redis.ErrNoScript)))
	require.True(t, IsUnknown(serverError("NOSCRIPT No matching script.")))
	for _, err := range []error{nil, context.Canceled, errors.New("NOSCRIPT said by a proxy of ours"), serverError("OOM"), serverError("ERR")} {
		require.False(t, IsUnknown(err), "%v", err)
	}
}
