package redisexec

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// An outcome is what a call returned.
type outcome struct {
	returned bool
	word     int64
	err      error
}

// TestALateReplyReachesNoOtherCall: what Redis answers to a call whose caller has left is
// dropped, also while other calls use the same memory.
func TestALateReplyReachesNoOtherCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls = 20
		hold := map[int]chan struct{}{}
		e := executor(client(func(cmd redis.Cmder) error {
			n := *cmd.Args()[4].(*int)
			<-hold[n]
			answer(cmd, int64(n))
			return nil
		}), true)
		outcomes, leave := make([]outcome, calls), make([]context.CancelFunc, calls)
		call := func(i int) {
			hold[2+i] = make(chan struct{})
			var within context.Context
			within, leave[i] = context.WithCancel(ctx)
			go func() {
				reply, err := e.Ask(within, "k", take(2+i))
				outcomes[i] = outcome{returned: true, err: err}
				if err == nil {
					outcomes[i].word = reply.Words[1]
				}
				reply.Done()
			}()
			synctest.Wait()
		}
		for i := range calls / 2 {
			call(i)
			leave[i]()
		}
		for i := calls / 2; i < calls; i++ {
			call(i)
		}
		for i := range calls {
			want := outcome{returned: true, err: context.Canceled}
			if i >= calls/2 {
				require.Zero(t, outcomes[i], "call %d", i)
				want = outcome{returned: true, word: int64(2 + i)}
			}
			close(hold[2+i])
			synctest.Wait()
			require.Equal(t, want, outcomes[i], "call %d", i)
			leave[i]()
		}
	})
}

// TestCallersThatLeaveAtAnyTime get their own reply, or the context's error.
func TestCallersThatLeaveAtAnyTime(t *testing.T) {
	e := executor(client(func(cmd redis.Cmder) error {
		runtime.Gosched()
		answer(cmd, int64(*cmd.Args()[4].(*int)))
		return nil
	}), true)
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			for i := range 500 {
				within, cancel := context.WithCancel(ctx)
				if i%2 == 0 {
					go cancel()
				}
				reply, err := e.Ask(within, "k", take(2+n))
				switch {
				case err != nil && (i%2 != 0 || err != context.Canceled):
					t.Error(err)
				case err == nil && reply.Words[1] != int64(2+n):
					t.Error(reply)
				}
				reply.Done()
				cancel()
			}
		})
	}
	wg.Wait()
}

// TestACallInABubble may follow one outside it, and the other way round: a user may test
// with testing/synctest.
func TestACallInABubble(t *testing.T) {
	e := executor(client(func(cmd redis.Cmder) error { answer(cmd, 1, 2); return nil }), true)
	call := func(t *testing.T) {
		within, cancel := context.WithCancel(ctx)
		defer cancel()
		for range 100 {
			reply, err := e.Ask(within, "k", take(1))
			require.NoError(t, err)
			reply.Done()
		}
	}
	for range 3 {
		call(t)
		synctest.Test(t, call)
	}
}

func BenchmarkCallWithAContext(b *testing.B) {
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	for name, ctx := range map[string]context.Context{"never ends": ctx, "can be cancelled": within} {
		b.Run(name, func(b *testing.B) {
			e := executor(client(func(cmd redis.Cmder) error { answer(cmd, 1, 2); return nil }), true)
			b.ReportAllocs()
			for b.Loop() {
				reply, err := e.Ask(ctx, "k", take(1))
				require.NoError(b, err)
				reply.Done()
			}
		})
	}
}
