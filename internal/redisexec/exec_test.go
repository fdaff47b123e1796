package redisexec

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"
	"weak"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/await"
	"github.com/tryacquire/ratelimit/internal/script"
)

// values returns a command's arguments, without the pointers.
func values(cmd redis.Cmder) (values []any) {
	for _, arg := range cmd.Args() {
		switch p := arg.(type) {
		case *string:
			arg = *p
		case *int:
			arg = *p
		case *int64:
			arg = *p
		case []byte:
			arg = string(p)
		}
		values = append(values, arg)
	}
	return values
}

// take takes n permits.
func take(n int) Operation { return Operation{Op: Take, N: n, Times: 1} }

func TestArguments(t *testing.T) {
	for _, packed := range []bool{true, false} {
		var got []any
		e := executor(client(func(cmd redis.Cmder) error { got = values(cmd); answer(cmd, 0, 0); return nil }), packed)
		sha := func(s *script.Script) any { return s.BySHA()[1] }
		one := func(op Op, key string, n int) []any {
			reply, err := e.Ask(ctx, key, Operation{Op: op, N: n, Times: 1})
			require.NoError(t, err)
			reply.Done()
			return got
		}
		require.Equal(t, []any{"evalsha", sha(e.One), "1", "k", "1", "10", "60"}, one(Take, "k", 1))
		require.Equal(t, []any{"evalsha", sha(e.One), "1", "l", 3, "10", "60"}, one(Take, "l", 3))
		require.Equal(t, []any{"evalsha", sha(e.Peek), "1", "k", "1", "10", "60"}, one(Look, "k", 1))
		many := func() []any {
			names := []string{"a", "b"}
			_, err := e.DoMany(ctx, e.Many, 2, func(i int) (*string, any) { return &names[i], fmt.Sprint("1x", i+1) })
			require.NoError(t, err)
			return got
		}
		require.Equal(t, []any{"evalsha", sha(e.Many), "2", "a", "b", "", "10", "60", "1x1", "1x2"}, many())
		e.Now, e.Spare = func() (int64, error) { return 42, nil }, "7"
		require.Equal(t, []any{"evalsha", sha(e.One), "1", "k", "1", "10", "60", "7", int64(42)}, one(Take, "k", 1))
		require.Equal(t, []any{"evalsha", sha(e.Many), "2", "a", "b", "", "10", "60", "1x1", "1x2", "7", int64(42)}, many())
	}
}

func TestAClockThatFailsSendsNothing(t *testing.T) {
	e := executor(client(func(redis.Cmder) error { t.Error("Redis was asked"); return nil }), true)
	wrong := errors.New("1969")
	e.Now = func() (int64, error) { return 0, wrong }
	_, err := e.Ask(ctx, "k", take(1))
	require.ErrorIs(t, err, wrong)
	_, err = e.DoMany(ctx, e.Many, 1, func(int) (*string, any) { return new(string), "1" })
	require.ErrorIs(t, err, wrong)
	_, err = e.Command("k", Operation{Op: Take, N: 1, Times: 1})
	require.ErrorIs(t, err, wrong)
	_, err = e.CommandMany(e.Many, 1, func(int) (*string, any) { return new(string), "1" })
	require.ErrorIs(t, err, wrong)
}

// TestAnUnknownScriptIsSentOnce: NOSCRIPT is the only error after which a command is
// sent again, and only once, with the script.
func TestAnUnknownScriptIsSentOnce(t *testing.T) {
	for _, test := range []struct {
		errs []error // of the commands
		want []string
	}{
		{[]error{nil}, []string{"evalsha"}},
		{[]error{redis.ErrNoScript, nil}, []string{"evalsha", "eval"}},
		{[]error{redis.ErrNoScript, redis.ErrNoScript}, []string{"evalsha", "eval"}},
		{[]error{redis.ErrNoScript, serverError("OOM")}, []string{"evalsha", "eval"}},
		{[]error{serverError("OOM")}, []string{"evalsha"}},
		{[]error{context.DeadlineExceeded}, []string{"evalsha"}},
	} {
		var sent []string
		e := executor(client(func(cmd redis.Cmder) error {
			require.True(t, cmd.NoRetry())
			sent = append(sent, cmd.Name())
			if cmd.Name() == "eval" {
				require.Contains(t, []string{"one", "many"}, cmd.Args()[1])
			}
			answer(cmd, 0, 0)
			return test.errs[len(sent)-1]
		}), false)
		last := test.errs[len(test.errs)-1]
		_, err := e.Ask(ctx, "k", take(1))
		require.ErrorIs(t, err, last)
		require.Equal(t, test.want, sent)
		sent = nil
		_, err = e.DoMany(ctx, e.Many, 1, func(int) (*string, any) { return new(string), "1" })
		require.ErrorIs(t, err, last)
		require.Equal(t, test.want, sent)
	}
}

// TestNothingPooledKeepsACaller: what goes back into the pool refers neither to the
// context, which the client's command holds, nor to a key.
func TestNothingPooledKeepsACaller(t *testing.T) {
	type value [64]byte
	type name struct{}
	for _, packed := range []bool{true, false} {
		for _, err := range []error{nil, errors.New("boom")} {
			e := executor(client(func(cmd redis.Cmder) error { answer(cmd, 1, 2); return err }), packed)
			key, in := strings.Repeat("k", 1<<20), new(value)
			within := context.WithValue(ctx, name{}, in)
			liveKey, liveValue := weak.Make(unsafe.StringData(key)), weak.Make(in)

			one, many := e.newCommand(), e.newCommand()
			require.NoError(t, one.operate(key, take(1)))
			require.NoError(t, many.many(e.Many, 1, func(int) (*string, any) { return &key, []byte(key) }))
			for _, c := range []*Command{one, many} {
				require.Equal(t, err, c.run(within))
				c.Release()
				args := c.args[:cap(c.args)]
				require.NotEmpty(t, args)
				require.Equal(t, make([]any, len(args)), args)
				c.args, c.room, c.n, c.now = nil, nil, 0, 0
				require.Zero(t, *c)
			}
			key, in, within = "", nil, nil
			runtime.GC()
			require.Nil(t, liveKey.Value())
			require.Nil(t, liveValue.Value())
			runtime.KeepAlive(one)
			runtime.KeepAlive(many)
		}
	}
}

func TestLargeBuffersAreNotPooled(t *testing.T) {
	e := executor(client(func(cmd redis.Cmder) error { answer(cmd, 1, 2); return nil }), true)
	c := e.newCommand()
	require.NoError(t, c.many(e.Many, 2*maxPooledArgs, func(int) (*string, any) { return new(string), "1" }))
	c.Release()
	require.Zero(t, cap(c.args))
}

// TestACommandOfAnotherClientIsNotUsedAgain, because that may still read it.
func TestACommandOfAnotherClientIsNotUsedAgain(t *testing.T) {
	e := executor(client(func(cmd redis.Cmder) error { answer(cmd, 1, 2); return nil }), false)
	e.Pooled = false
	c := e.newCommand()
	require.NoError(t, c.operate("k", take(1)))
	require.NoError(t, c.run(ctx))
	c.Release()
	require.Equal(t, "k", c.key)
	require.NotEmpty(t, c.once.Args())
}

func TestWordsToKeep(t *testing.T) {
	for _, packed := range []bool{true, false} {
		next := int64(0)
		e := executor(client(func(cmd redis.Cmder) error { next++; answer(cmd, next, 0); return nil }), packed)
		var kept [][]int64
		for range 20 {
			reply, err := e.Operate(ctx, "k", take(1))
			require.NoError(t, err)
			kept = append(kept, reply.Keep())
		}
		for i, words := range kept {
			want := []int64{int64(i + 1), 0}
			if packed {
				want = []int64{0, int64(i + 1)}
			}
			require.Equal(t, want, words)
		}
	}
}

func TestConcurrentCallsGetTheirOwnReplies(t *testing.T) {
	e := executor(client(func(cmd redis.Cmder) error {
		runtime.Gosched()
		answer(cmd, int64(*cmd.Args()[4].(*int)))
		return nil
	}), true)
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			for range 500 {
				reply, err := e.Ask(ctx, "k", take(2+n))
				if err != nil || reply.Words[1] != int64(2+n) {
					t.Error(reply, err)
				}
				reply.Done()
			}
		})
	}
	wg.Wait()
}

func TestDelete(t *testing.T) {
	var got []any
	e := executor(client(func(cmd redis.Cmder) error { got = values(cmd); return nil }), true)
	require.NoError(t, e.Delete(ctx, "k"))
	require.Equal(t, []any{"unlink", "k"}, got)
}

func TestLoad(t *testing.T) {
	var got []any
	e := executor(client(func(cmd redis.Cmder) error { got = append(got, values(cmd)...); return nil }), true)
	require.NoError(t, Load(ctx, e.Client, e.Scripts()...))
	require.Equal(t, []any{"script", "load", "one", "script", "load", "peek", "script", "load", "many", "script", "load", "operations", "script", "load", "alone"}, got)
	boom := errors.New("boom")
	e.Client = client(func(redis.Cmder) error { return boom })
	require.ErrorIs(t, Load(ctx, e.Client, e.Scripts()...), boom)
}

func TestCallsEndWithTheirContext(t *testing.T) {
	hung := make(chan struct{})
	defer close(hung)
	e := executor(client(func(redis.Cmder) error { <-hung; return nil }), true)
	within, cancel := context.WithCancel(ctx)
	time.AfterFunc(time.Millisecond, cancel)
	_, err := e.Ask(within, "k", take(1))
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, e.Delete(within, "k"), context.Canceled)
	require.ErrorIs(t, Load(within, e.Client, e.Scripts()...), context.Canceled)
}

func TestCallsThatDoNotReturnAreErrors(t *testing.T) {
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	e := executor(client(func(redis.Cmder) error { panic("boom") }), true)
	_, err := e.Ask(within, "k", take(1))
	require.EqualError(t, err, "the client or the clock panicked: boom")
	e.Client = client(func(redis.Cmder) error { runtime.Goexit(); return nil })
	_, err = e.Ask(within, "k", take(1))
	require.ErrorIs(t, err, await.ErrGoexit)
}

func TestAllocations(t *testing.T) {
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("the race detector makes sync.Pool forget")
	}
	e := executor(client(func(cmd redis.Cmder) error {
		cmd.(*Once).Cmder.(*redis.IntCmd).SetVal(1)
		return nil
	}), true)
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, test := range []struct {
		ctx  context.Context
		want float64
		what string
	}{
		{ctx, 1, "the client's command"},
		{within, 3, "the client's command, the channel, and what the goroutine runs"},
	} {
		allocs := testing.AllocsPerRun(1000, func() {
			reply, err := e.Ask(test.ctx, "k", take(1))
			require.NoError(t, err)
			reply.Done()
		})
		require.LessOrEqual(t, allocs, test.want, test.what)
	}
}
