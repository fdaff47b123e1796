package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// newTestDenyCache returns a cache whose clock the test sets.
func newTestDenyCache(t testing.TB, l ratelimit.Limiter, opts ...ratelimit.PolicyOption) (*ratelimit.DenyCache, *time.Duration) {
	t.Helper()
	c, err := ratelimit.NewDenyCache(l, opts...)
	require.NoError(t, err)
	now := time.Hour
	c.SetClock(func() time.Duration { return now })
	return c, &now
}

// deniedBy10 is a denial as a limiter of 10 would give it.
func deniedBy10(remaining int, retryAfter, resetAfter time.Duration) ratelimit.Result {
	return ratelimit.Result{Limit: 10, Window: time.Second, Remaining: remaining, RetryAfter: retryAfter, ResetAfter: resetAfter}
}

func TestDenyCacheSteps(t *testing.T) {
	const us, ms = time.Microsecond, time.Millisecond
	allowed := ratelimit.Result{Allowed: true, Limit: 10, Window: time.Second, Remaining: 3, ResetAfter: 700 * ms}
	failure := errors.New("no answer")

	type step struct {
		at     time.Duration // the call begins
		call   string        // "peek", "reset", or n permits of key; "ended" with a context that has
		n      int
		key    string           // "" for "k"
		delay  time.Duration    // between the call and its decision, and again until its reply
		answer any              // what the limiter says, Result or error; nil: it must not be asked
		want   ratelimit.Result // from memory; else it is the answer
	}
	tests := []struct {
		name  string
		opts  []ratelimit.PolicyOption
		steps []step
	}{
		{"a denial is repeated until its retry-after, counted down", nil, []step{
			{at: 0, n: 1, answer: deniedBy10(0, 500*ms+us, 900*ms)},
			{at: 0, n: 1, want: deniedBy10(0, 500*ms+us, 900*ms)},
			{at: 100 * ms, n: 1, want: deniedBy10(0, 400*ms+us, 800*ms)},
			{at: 500*ms - 1, n: 1, want: deniedBy10(0, us+1, 400*ms+1)},
			{at: 500 * ms, n: 1, answer: allowed}, // a microsecond, its grain, before the end
			{at: 500 * ms, n: 1, answer: allowed},
		}},
		{"a retry-after of whole milliseconds may be a millisecond too long", nil, []step{
			{at: 0, n: 1, answer: deniedBy10(0, 500*ms, 900*ms)},
			{at: 499*ms - 1, n: 1, want: deniedBy10(0, ms+1, 401*ms+1)},
			{at: 499 * ms, n: 1, answer: allowed},
		}},
		{"a denial counts from before the request", nil, []step{
			{at: 0, n: 1, delay: 100 * ms, answer: deniedBy10(0, 500*ms+us, 900*ms)},
			{at: 200 * ms, n: 1, want: deniedBy10(0, 300*ms+us, 700*ms)},
			{at: 499 * ms, n: 1, want: deniedBy10(0, ms+us, 401*ms)},
			{at: 500 * ms, n: 1, answer: allowed},
		}},
		{"a denial that ended on its way is not kept", nil, []step{
			{at: 0, n: 1, delay: 300 * ms, answer: deniedBy10(0, 500*ms, 900*ms)},
			{at: 600 * ms, n: 1, answer: allowed},
		}},
		{"reset-after does not fall below zero", nil, []step{
			{at: 0, n: 1, answer: deniedBy10(0, 500*ms, 100*ms)},
			{at: 200 * ms, n: 1, want: deniedBy10(0, 300*ms, 0)},
		}},
		{"allowed results and errors are never kept", nil, []step{
			{at: 0, n: 1, answer: allowed},
			{at: 0, n: 1, answer: failure},
			{at: 0, n: 1, answer: allowed},
			{at: 0, n: 0, answer: ratelimit.ErrInvalidPermits},
			{at: 0, n: 0, answer: ratelimit.ErrInvalidPermits},
		}},
		{"a denial without retry-after is not kept", nil, []step{
			{at: 0, n: 1, answer: deniedBy10(0, 0, 0)},
			{at: 0, n: 1, answer: deniedBy10(0, -ms, 0)},
			{at: 0, n: 1, answer: allowed},
		}},
		{"a denial says nothing about fewer permits", nil, []step{
			{at: 0, n: 5, answer: deniedBy10(4, 500*ms, 900*ms)},
			{at: 0, n: 4, answer: allowed},
			{at: 0, n: 1, answer: allowed},
			{at: 0, call: "peek", n: 1, answer: allowed},
			{at: 0, n: 5, want: deniedBy10(4, 500*ms, 900*ms)},
			{at: 0, n: 0, answer: ratelimit.ErrInvalidPermits},
			{at: 0, n: -1, answer: ratelimit.ErrInvalidPermits},
		}},
		{"a denial holds for more permits", nil, []step{
			{at: 0, n: 9, key: "other", answer: allowed},
			{at: 0, n: 5, answer: deniedBy10(4, 500*ms, 900*ms)},
			{at: 100 * ms, n: 6, want: deniedBy10(4, 400*ms, 800*ms)},
			{at: 100 * ms, n: 9, want: deniedBy10(4, 400*ms, 800*ms)},
		}},
		{"more permits than were ever decided on may exceed the limit", nil, []step{
			{at: 0, n: 1, answer: deniedBy10(0, 500*ms, 900*ms)},
			{at: 0, n: 7, answer: ratelimit.ErrExceedsLimit},
			{at: 0, n: 7, answer: ratelimit.ErrExceedsLimit},
			{at: 0, n: 6, key: "other", answer: deniedBy10(5, 500*ms, 900*ms)},
			{at: 0, n: 6, want: deniedBy10(0, 500*ms, 900*ms)},
			{at: 0, n: 7, answer: ratelimit.ErrExceedsLimit},
		}},
		{"more permits than the key's limit are asked", nil, []step{
			{at: 0, n: 11, key: "large", answer: allowed},
			{at: 0, n: 1, answer: deniedBy10(0, 500*ms, 900*ms)},
			{at: 0, n: 10, want: deniedBy10(0, 500*ms, 900*ms)},
			{at: 0, n: 11, answer: ratelimit.ErrExceedsLimit},
		}},
		{"the denial with the longest wait is reported", nil, []step{
			{at: 0, n: 5, answer: deniedBy10(1, 500*ms, 900*ms)},
			{at: 0, n: 2, answer: deniedBy10(1, 200*ms, 900*ms)},
			{at: 100 * ms, n: 4, want: deniedBy10(1, 100*ms, 800*ms)},
			{at: 100 * ms, n: 5, want: deniedBy10(1, 400*ms, 800*ms)},
			{at: 300 * ms, n: 2, answer: allowed},
			{at: 300 * ms, n: 5, want: deniedBy10(1, 200*ms, 600*ms)},
			{at: 300 * ms, n: 4, answer: allowed},
		}},
		{"of several the one for the fewest permits and another are kept", nil, []step{
			{at: 0, n: 6, answer: deniedBy10(1, 600*ms, 900*ms)},
			{at: 0, n: 4, answer: deniedBy10(1, 400*ms, 900*ms)},
			{at: 0, n: 2, answer: deniedBy10(1, 200*ms, 900*ms)},
			{at: 0, n: 2, want: deniedBy10(1, 200*ms, 900*ms)},
			{at: 0, n: 4, want: deniedBy10(1, 400*ms, 900*ms)},
			{at: 0, n: 6, want: deniedBy10(1, 400*ms, 900*ms)},
		}},
		{"a denial that says all the others said replaces them", []ratelimit.PolicyOption{ratelimit.WithMaxKeys(4)}, []step{
			{at: 0, n: 6, answer: deniedBy10(1, 600*ms, 900*ms)},
			{at: 0, n: 4, answer: deniedBy10(1, 400*ms, 900*ms)},
			{at: 0, n: 2, answer: deniedBy10(1, 600*ms, 900*ms)},
			{at: 0, n: 6, key: "a", answer: deniedBy10(1, 600*ms, 900*ms)},
			{at: 0, n: 6, key: "b", answer: deniedBy10(1, 600*ms, 900*ms)},
			{at: 0, n: 6, key: "c", answer: deniedBy10(1, 600*ms, 900*ms)},
			{at: 0, n: 6, key: "a", want: deniedBy10(1, 600*ms, 900*ms)},
			{at: 0, n: 6, key: "b", want: deniedBy10(1, 600*ms, 900*ms)},
			{at: 0, n: 6, key: "c", want: deniedBy10(1, 600*ms, 900*ms)},
			{at: 0, n: 2, want: deniedBy10(1, 600*ms, 900*ms)},
		}},
		{"each key has its own denials", nil, []step{
			{at: 0, n: 1, answer: deniedBy10(0, 500*ms, 900*ms)},
			{at: 0, n: 1, key: "other", answer: allowed},
			{at: 0, n: 1, key: "", want: deniedBy10(0, 500*ms, 900*ms)},
		}},
		{"peek and acquire share what they learn", nil, []step{
			{at: 0, call: "peek", n: 1, answer: deniedBy10(0, 500*ms, 900*ms)},
			{at: 100 * ms, n: 1, want: deniedBy10(0, 400*ms, 800*ms)},
			{at: 200 * ms, call: "peek", n: 1, want: deniedBy10(0, 300*ms, 700*ms)},
			{at: 200 * ms, call: "reset", answer: nil},
			{at: 200 * ms, n: 1, answer: deniedBy10(0, 500*ms, 900*ms)},
			{at: 200 * ms, call: "peek", n: 1, want: deniedBy10(0, 500*ms, 900*ms)},
		}},
		{"reset forgets all denials of its key, even if it fails", nil, []step{
			{at: 0, n: 5, answer: deniedBy10(0, 500*ms, 900*ms)},
			{at: 0, n: 2, answer: deniedBy10(0, 200*ms, 900*ms)},
			{at: 0, n: 2, key: "other", answer: deniedBy10(0, 200*ms, 900*ms)},
			{at: 0, call: "reset", answer: failure},
			{at: 0, n: 5, answer: allowed},
			{at: 0, n: 2, answer: deniedBy10(0, 200*ms, 900*ms)},
			{at: 0, n: 2, want: deniedBy10(0, 200*ms, 900*ms)},
			{at: 0, n: 2, key: "other", want: deniedBy10(0, 200*ms, 900*ms)},
		}},
		{"a denial is trusted no longer than WithMaxDenial, from before the request", []ratelimit.PolicyOption{ratelimit.WithMaxDenial(50 * ms)}, []step{
			{at: 0, n: 1, delay: 10 * ms, answer: deniedBy10(0, 500*ms, 900*ms)},
			{at: 50*ms - 1, n: 1, want: deniedBy10(0, 450*ms+1, 850*ms+1)},
			{at: 50 * ms, n: 1, answer: deniedBy10(0, 450*ms, 850*ms)},
			{at: 99 * ms, n: 1, want: deniedBy10(0, 401*ms, 801*ms)},
			{at: 100 * ms, n: 1, answer: allowed},
		}},
		{"a denial that WithMaxDenial ended does not hide another", []ratelimit.PolicyOption{ratelimit.WithMaxDenial(50 * ms)}, []step{
			{at: 0, n: 5, answer: deniedBy10(0, 500*ms, 900*ms)},
			{at: 20 * ms, n: 1, answer: deniedBy10(0, 100*ms, 900*ms)},
			{at: 20 * ms, n: 5, want: deniedBy10(0, 480*ms, 880*ms)},
			{at: 60 * ms, n: 5, want: deniedBy10(0, 60*ms, 860*ms)},
		}},
		{"what a secondary said is not kept", nil, []step{
			{at: 0, n: 1, answer: ratelimit.Result{Limit: 10, Window: time.Second, RetryAfter: time.Second, Fallback: true}},
			{at: 0, n: 9, answer: ratelimit.Result{Allowed: true, Limit: 10, Window: time.Second, Fallback: true}},
			{at: 0, n: 1, answer: deniedBy10(0, 500*ms, 900*ms)},
			{at: 0, n: 1, want: deniedBy10(0, 500*ms, 900*ms)},
			{at: 0, n: 9, answer: ratelimit.ErrExceedsLimit}, // the primary has not decided on nine
		}},
		{"a call whose context has ended is left to the limiter", nil, []step{
			{at: 0, n: 1, answer: deniedBy10(0, 500*ms, 900*ms)},
			{at: 0, call: "ended", n: 1, answer: context.Canceled},
			{at: 0, n: 1, want: deniedBy10(0, 500*ms, 900*ms)},
		}},
		{"centuries do not overflow", nil, []step{
			{at: 0, n: 1, answer: deniedBy10(0, math.MaxInt64, math.MaxInt64)},
			{at: 0, n: 1, want: deniedBy10(0, math.MaxInt64-time.Hour, math.MaxInt64-time.Hour)},
		}},
		{"a key of 256 bytes is kept, a longer one asked", nil, []step{
			{at: 0, n: 1, key: strings.Repeat("k", 256), answer: deniedBy10(0, 500*ms, 900*ms)},
			{at: 0, n: 1, key: strings.Repeat("k", 256), want: deniedBy10(0, 500*ms, 900*ms)},
			{at: 0, n: 1, key: strings.Repeat("k", 257), answer: deniedBy10(0, 500*ms, 900*ms)},
			{at: 0, n: 1, key: strings.Repeat("k", 257), answer: deniedBy10(0, 500*ms, 900*ms)},
			{at: 0, call: "peek", n: 1, key: strings.Repeat("k", 257), answer: deniedBy10(0, 500*ms, 900*ms)},
			{at: 0, call: "reset", key: strings.Repeat("k", 257)},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := &limitertest.Stub{}
			c, now := newTestDenyCache(t, l, tt.opts...)
			for i, s := range tt.steps {
				key := s.key
				if key == "" {
					key = "k"
				}
				*now = time.Hour + s.at
				want, wantErr := s.want, error(nil)
				switch a := s.answer.(type) {
				case ratelimit.Result:
					want = a
				case error:
					want, wantErr = ratelimit.Result{}, a
				}
				l.Asked() // forgets those of the steps before
				l.Answer = func(context.Context, string, int) (ratelimit.Result, error) {
					*now += 2 * s.delay
					return want, wantErr
				}

				var got ratelimit.Result
				var err error
				question := fmt.Sprintf("%s %d", key, s.n)
				switch {
				case s.call == "peek":
					got, err = c.Peek(t.Context(), key)
					question = "peek " + key
				case s.call == "ended":
					ctx, cancel := context.WithCancel(t.Context())
					cancel()
					got, err = c.TryAcquireN(ctx, key, s.n)
				case s.call == "reset":
					err = c.Reset(t.Context(), key)
					question = "reset " + key
				case s.n == 1:
					got, err = c.TryAcquire(t.Context(), key)
				default:
					got, err = c.TryAcquireN(t.Context(), key, s.n)
				}

				require.True(t, err == wantErr, "step %d, %s: got error %v, want %v", i+1, question, err, wantErr)
				require.Equal(t, want, got, "step %d, %s", i+1, question)
				var questions []string
				if s.answer != nil || s.call == "reset" {
					questions = []string{question}
				}
				require.Equal(t, questions, l.Asked(), "calls of the limiter in step %d", i+1)
			}
		})
	}
}

func TestDenyCacheConfigErrors(t *testing.T) {
	const ms = time.Millisecond
	l := &limitertest.Stub{}
	tests := []struct {
		name    string
		limiter ratelimit.Limiter
		opts    []ratelimit.PolicyOption
		says    string
	}{
		{"no limiter", nil, nil, "the limiter is nil"},
		{"a limiter that was not built", (*ratelimit.TokenBucket)(nil), nil, "the limiter is nil"},
		{"nil option", l, []ratelimit.PolicyOption{ratelimit.WithMaxKeys(1), nil}, "option 2 is nil"},
		{"size of zero", l, []ratelimit.PolicyOption{ratelimit.WithMaxKeys(0)}, "WithMaxKeys: 0 is not between 1 and"},
		{"negative size", l, []ratelimit.PolicyOption{ratelimit.WithMaxKeys(-1)}, "WithMaxKeys: -1 is not between 1 and"},
		{"size beyond reason", l, []ratelimit.PolicyOption{ratelimit.WithMaxKeys(math.MaxInt)}, "is not between 1 and 67108864"},
		{"size twice", l, []ratelimit.PolicyOption{ratelimit.WithMaxKeys(1), ratelimit.WithMaxKeys(1)}, "WithMaxKeys is given twice"},
		{"maximum of zero", l, []ratelimit.PolicyOption{ratelimit.WithMaxDenial(0)}, "WithMaxDenial: 0s is below 1ms"},
		{"maximum below a millisecond", l, []ratelimit.PolicyOption{ratelimit.WithMaxDenial(ms - 1)}, "WithMaxDenial: 999.999µs is below 1ms"},
		{"maximum twice", l, []ratelimit.PolicyOption{ratelimit.WithMaxDenial(ms), ratelimit.WithMaxDenial(ms)}, "WithMaxDenial is given twice"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := ratelimit.NewDenyCache(tt.limiter, tt.opts...)
			require.Nil(t, c)
			require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
			require.ErrorContains(t, err, tt.says)
		})
	}
}

var noClient = fakes.Failing(errors.New("no client"))

func TestDenyCacheKnowsWhatOneCallCanGet(t *testing.T) {
	rules := []ratelimit.Rule{{Limit: 50, Window: time.Hour}, {Limit: 7, Window: time.Second}}
	tests := map[string]struct {
		limiter ratelimit.Limiter
		want    int
	}{
		"token bucket":        {ratelimit.Must(ratelimit.NewTokenBucket(noClient, ratelimit.PerSecond(10), 20)), 20},
		"fixed window":        {ratelimit.Must(ratelimit.NewFixedWindow(noClient, 30, time.Second)), 30},
		"sliding log":         {ratelimit.Must(ratelimit.NewSlidingLog(noClient, rules)), 7},
		"any other: no guess": {&limitertest.Stub{}, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c, _ := newTestDenyCache(t, tt.limiter)
			require.Equal(t, tt.want, c.Table().Decided())
		})
	}
}

func TestDenyCacheKeepsSoManyKeys(t *testing.T) {
	for keys, opts := range map[int][]ratelimit.PolicyOption{1024: {ratelimit.WithMaxKeys(1000)}, 65_536: nil} {
		c, _ := newTestDenyCache(t, nullLimiter{deniedBy10(0, time.Hour, time.Hour)}, opts...)
		for i := range 3 * keys {
			_, err := c.TryAcquire(t.Context(), fmt.Sprint(i))
			require.NoError(t, err)
		}
		require.LessOrEqual(t, c.Table().Len(), keys)
		require.Greater(t, c.Table().Len(), keys*9/10)
	}
}

// A denied call is held up on its way while a Reset runs, in every order of the
// two's decisions and replies. None may leave a denial of before the Reset.
func TestDenyCacheResetRacesWithDenial(t *testing.T) {
	denial := deniedBy10(0, time.Hour, time.Hour)
	orders := map[string]bool{ // of events, to whether the denial may be remembered
		"send decide reply reset reset-decide reset-reply": false,
		"send decide reset reply reset-decide reset-reply": false,
		"send decide reset reset-decide reply reset-reply": false,
		"send decide reset reset-decide reset-reply reply": false,
		"send reset decide reply reset-decide reset-reply": false,
		"send reset decide reset-decide reset-reply reply": false,
		"reset send decide reply reset-decide reset-reply": false,
		"reset send decide reset-decide reply reset-reply": false,
		"reset send decide reset-decide reset-reply reply": false,
		"reset reset-decide reset-reply send decide reply": true,
	}
	for order, kept := range orders {
		t.Run(order, func(t *testing.T) {
			l := newSteppingLimiter(func(string, int) ratelimit.Result { return denial })
			c, _ := newTestDenyCache(t, l)
			var call, reset *steppingCall
			for _, event := range strings.Fields(order) {
				switch event {
				case "send":
					call = l.start(func(ctx context.Context) (ratelimit.Result, error) { return c.TryAcquire(ctx, "k") })
				case "reset":
					reset = l.start(func(ctx context.Context) (ratelimit.Result, error) { return ratelimit.Result{}, c.Reset(ctx, "k") })
				case "decide", "reply":
					l.resume(call)
				case "reset-decide", "reset-reply":
					l.resume(reset)
				}
			}
			require.True(t, call.done)
			require.True(t, reset.done)
			require.NoError(t, call.err)
			require.NoError(t, reset.err)
			require.Equal(t, denial, call.result)
			require.Equal(t, kept, c.Table().Len() == 1, "the denial is remembered")
		})
	}
}

func TestDenyCacheSurvivesAPanicInReset(t *testing.T) {
	l := &limitertest.Stub{Answer: func(context.Context, string, int) (ratelimit.Result, error) { panic("in the limiter") }}
	c, _ := newTestDenyCache(t, l)
	func() {
		defer func() { _ = recover() }()
		_ = c.Reset(t.Context(), "k")
	}()
	l.Answer, l.Result = nil, deniedBy10(0, time.Hour, time.Hour)
	_, err := c.TryAcquire(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, 1, c.Table().Len(), "denials after a Reset that panicked")
}

// A gateLimiter denies every key until that key is reset.
type gateLimiter struct{ open sync.Map }

func (g *gateLimiter) TryAcquire(ctx context.Context, key string) (ratelimit.Result, error) {
	return g.TryAcquireN(ctx, key, 1)
}

func (g *gateLimiter) TryAcquireN(_ context.Context, key string, n int) (ratelimit.Result, error) {
	_, open := g.open.Load(key)
	runtime.Gosched() // the reply is on its way
	if open {
		return ratelimit.Result{Allowed: true, Limit: 10, Window: time.Hour}, nil
	}
	return deniedBy10(n-1, time.Hour, time.Hour), nil
}

func (g *gateLimiter) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	return g.TryAcquireN(ctx, key, 1)
}

func (g *gateLimiter) Reset(_ context.Context, key string) error {
	runtime.Gosched()
	g.open.Store(key, true)
	runtime.Gosched()
	return nil
}

func TestDenyCacheResetIsSeenByCallsThatFollow(t *testing.T) {
	g := &gateLimiter{}
	c, err := ratelimit.NewDenyCache(g, ratelimit.WithMaxKeys(64))
	require.NoError(t, err)
	var key atomic.Pointer[string]
	first := "0"
	key.Store(&first)
	stop := make(chan struct{})
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				runtime.Gosched()
				k := *key.Load()
				_, open := g.open.Load(k)
				r, err := c.TryAcquireN(context.Background(), k, i%3+1)
				if err != nil || r.Limit != 10 || open && !r.Allowed {
					t.Errorf("got %+v, %v for a key that is open: %v", r, err, open)
					return
				}
			}
		})
	}
	for i := range 3_000 {
		k := *key.Load()
		runtime.Gosched()
		require.NoError(t, c.Reset(t.Context(), k))
		for n := 1; n <= 3; n++ {
			runtime.Gosched()
			r, err := c.TryAcquireN(t.Context(), k, n)
			require.NoError(t, err, "round %d", i)
			require.True(t, r.Allowed, "round %d: denied from memory after a Reset", i)
		}
		next := fmt.Sprint(i + 1)
		key.Store(&next)
	}
	close(stop)
	callers.Wait()
}

func TestDenyCacheHitDoesNotAllocate(t *testing.T) {
	l := &limitertest.Stub{Result: deniedBy10(0, time.Hour, time.Hour)}
	c, err := ratelimit.NewDenyCache(l)
	require.NoError(t, err)
	ctx := t.Context()
	allocs := testing.AllocsPerRun(1000, func() {
		if r, err := c.TryAcquire(ctx, "k"); r.Allowed || err != nil {
			t.Fatalf("got %+v, %v", r, err)
		}
	})
	require.Zero(t, allocs, "allocations a call")
	require.Len(t, l.Asked(), 1)
}

// A nullLimiter is a limiter that costs nothing.
type nullLimiter struct{ result ratelimit.Result }

func (l nullLimiter) TryAcquire(context.Context, string) (ratelimit.Result, error) {
	return l.result, nil
}
func (l nullLimiter) TryAcquireN(context.Context, string, int) (ratelimit.Result, error) {
	return l.result, nil
}
func (l nullLimiter) Peek(context.Context, string) (ratelimit.Result, error) { return l.result, nil }
func (l nullLimiter) Reset(context.Context, string) error                    { return nil }

// fillDenyCache has the denials of so many keys remembered.
func fillDenyCache(b *testing.B, count int, opts ...ratelimit.PolicyOption) (*ratelimit.DenyCache, []string) {
	c, err := ratelimit.NewDenyCache(nullLimiter{deniedBy10(0, time.Hour, time.Hour)}, opts...)
	require.NoError(b, err)
	keys := make([]string, count)
	for i := range keys {
		keys[i] = fmt.Sprintf("tenant-%08d", i)
		if r, err := c.TryAcquire(b.Context(), keys[i]); r.Allowed || err != nil {
			b.Fatalf("got %+v, %v", r, err)
		}
	}
	return c, keys
}

func BenchmarkDenyCacheHit(b *testing.B) {
	c, keys := fillDenyCache(b, 1)
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		_, _ = c.TryAcquire(ctx, keys[0])
	}
}

// One key, all cores.
func BenchmarkDenyCacheHitParallel(b *testing.B) {
	c, keys := fillDenyCache(b, 1)
	ctx := b.Context()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			_, _ = c.TryAcquire(ctx, keys[0])
		}
	})
}

// Many keys, so that the processor's caches miss. Of these some three in a
// thousand found no room and are misses.
func BenchmarkDenyCacheHitManyKeys(b *testing.B) {
	c, keys := fillDenyCache(b, 32_768, ratelimit.WithMaxKeys(131_072))
	ctx := b.Context()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		_, _ = c.TryAcquire(ctx, keys[i*7919%len(keys)])
		i++
	}
}

// What the cache adds to an allowed call.
func BenchmarkDenyCacheMiss(b *testing.B) {
	c, err := ratelimit.NewDenyCache(nullLimiter{ratelimit.Result{Allowed: true, Limit: 10, Window: time.Second, Remaining: 9}})
	require.NoError(b, err)
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		_, _ = c.TryAcquire(ctx, "tenant-00000000")
	}
}

// What it adds to a denied call that it then remembers.
func BenchmarkDenyCacheRemember(b *testing.B) {
	c, keys := fillDenyCache(b, 100_000, ratelimit.WithMaxKeys(1024))
	ctx := b.Context()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		_, _ = c.TryAcquire(ctx, keys[i%len(keys)])
		i++
	}
}
