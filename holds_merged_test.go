package ratelimit

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/merge"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
)

// onceOpen is a client whose first command waits for open, is executed, and returns lost if that is not nil. Later
// commands pass.
func onceOpen(client fakes.Processor, open chan struct{}, lost error) *fakes.Client {
	var commands atomic.Int32
	return fakes.NewClient(func(ctx context.Context, cmd redis.Cmder) error {
		first := commands.Add(1) == 1
		if first {
			<-open
		}
		err := client.Process(ctx, cmd)
		if first && lost != nil {
			cmd.SetErr(lost)
			err = lost
		}
		return err
	})
}

// holdTogether makes three holds of one permit of a key, of which two are free, in one batch, on their
// own or together with a permit of a window. The caller of the second leaves while the batch is in
// flight. It returns the holds, the errors, and what the key holds in the end.
func holdTogether(t *testing.T, together bool, lost error) (holds [3]*Hold, errs [3]error, members []string) {
	s := onMini(t)
	f := Must(NewInFlight(s.client, 2, time.Minute))
	window := Must(NewFixedWindow(s.client, 100, time.Minute))
	g, err := groupOf([]Claim{ClaimOf(window, "k", 1), ClaimHold(f, "k", 1)})
	require.NoError(t, err)
	outside := fakes.NewRelay(s.client)
	defer outside.Stop()
	synctest.Test(t, func(t *testing.T) {
		batch := make(chan struct{})
		c, open := fakes.Gate(onceOpen(outside, batch, lost), merge.FewCalls)
		exec := *f.core.exec
		exec.Client = c
		f.core.exec, f.core.merger = &exec, merge.New(&exec, f.core.head.Of)
		several := *g.exec
		several.Client = c
		g.exec, g.merger = &several, merge.New(&several, asPacked)
		take := func(ctx context.Context, key string) (*Hold, error) {
			if !together {
				hold, _, err := f.TryAcquire(ctx, key)
				return hold, err
			}
			r, err := TryAcquireAll(ctx, ClaimOf(window, key, 1), ClaimHold(f, key, 1))
			if err != nil {
				return nil, err
			}
			return r.Parts[1].Hold, nil
		}
		for range merge.FewCalls {
			go func() { _, _ = take(context.Background(), "other") }()
		}
		synctest.Wait()
		leaving, leave := context.WithCancel(context.Background())
		defer leave()
		for i, ctx := range []context.Context{context.Background(), leaving, context.Background()} {
			go func() { holds[i], errs[i] = take(ctx, "k") }()
			synctest.Wait()
		}
		open()
		synctest.Wait()
		leave()
		synctest.Wait()
		close(batch)
		synctest.Wait()
		for range 3 { // what is given back in the background goes over a network
			time.Sleep(time.Second)
			synctest.Wait()
		}
	})
	members, err = s.admin.ZRange(ctx, f.core.head.Of("k"), 0, -1).Result()
	require.NoError(t, err)
	return holds, errs, members
}

// A merged hold whose caller leaves is given back when the batch is done.
func TestAMergedHoldWhoseCallerLeavesIsGivenBack(t *testing.T) {
	for _, together := range []bool{false, true} {
		holds, errs, members := holdTogether(t, together, nil)
		require.NoError(t, errs[0])
		require.ErrorIs(t, errs[1], context.Canceled)
		require.NoError(t, errs[2])
		require.NotNil(t, holds[0])
		require.Nil(t, holds[1])
		require.Nil(t, holds[2], "it was denied, because the second was taken before it")
		require.Equal(t, []string{"1/" + holds[0].id + ruleOf(holds[0])}, members)
	}
}

// Merged holds whose reply is lost are given back, one by one.
func TestMergedHoldsWhoseReplyIsLostAreGivenBack(t *testing.T) {
	for _, together := range []bool{false, true} {
		holds, errs, members := holdTogether(t, together, io.ErrUnexpectedEOF)
		require.ErrorIs(t, errs[0], io.ErrUnexpectedEOF)
		require.ErrorIs(t, errs[1], context.Canceled)
		require.ErrorIs(t, errs[2], io.ErrUnexpectedEOF)
		require.Equal(t, [3]*Hold{}, holds)
		require.Empty(t, members)
	}
}

// A request that is asked again holds its permits once: they have the id of the request.
func TestARequestThatIsAskedAgainHoldsOnce(t *testing.T) {
	s := onMini(t)
	f := Must(NewInFlight(s.client, 3, time.Minute))
	window := Must(NewFixedWindow(s.client, 100, time.Minute))
	claims := []Claim{ClaimOf(window, "k", 1), ClaimHold(f, "k", 2)}
	g, err := groupOf(claims)
	require.NoError(t, err)
	holds := g.newHolds(claims)
	request, err := g.pack(ctx, claims, nil, holds, nil)
	require.NoError(t, err)
	for range 2 {
		reply, err := g.exec.Operate(ctx, request, redisexec.Operation{Op: redisexec.Take, N: 1, Times: 1})
		require.NoError(t, err)
		r, _ := g.explain(reply, claims, false, nil, nil)
		require.True(t, r.Allowed)
		reply.Done()
	}
	members, err := s.admin.ZRange(ctx, f.core.head.Of("k"), 0, -1).Result()
	require.NoError(t, err)
	require.Equal(t, []string{"1/" + holds[0].id + ruleOf(holds[0]), "2/" + holds[0].id + ruleOf(holds[0])}, members)
}

// ruleOf ends the names of the permits of h in Redis.
func ruleOf(h *Hold) string { return fmt.Sprintf("/%d", h.lease.Microseconds()) }
