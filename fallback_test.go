package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/guard"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

const milli = time.Millisecond

var (
	errDown = errors.New("connection refused")

	byPrimary   = ratelimit.Result{Allowed: true, Limit: 10, Window: time.Second, Remaining: 7, ResetAfter: 300 * milli}
	bySecondary = ratelimit.Result{Limit: 3, Window: time.Minute, Remaining: 1, RetryAfter: 20 * time.Second, ResetAfter: 40 * time.Second}
	substituted = func() ratelimit.Result { r := bySecondary; r.Fallback = true; return r }()
)

func always(r ratelimit.Result, err error) *limitertest.Stub {
	return &limitertest.Stub{Result: r, Err: err}
}

// hanging answers when its context ends, as a client does that honours it.
func hanging() *limitertest.Stub { return fakes.Hanging[ratelimit.Result]() }

// after answers byPrimary after d, whatever becomes of the context.
func after(d time.Duration) *limitertest.Stub { return fakes.After(d, byPrimary) }

func newTestFallback(t testing.TB, primary, secondary ratelimit.Limiter, opts ...ratelimit.PolicyOption) *ratelimit.Fallback {
	t.Helper()
	f, err := ratelimit.NewFallback(primary, secondary, opts...)
	require.NoError(t, err)
	return f
}

// fallbackModes are the ways in which a Fallback asks its primary.
var fallbackModes = []struct {
	name string
	opts func() []ratelimit.PolicyOption
}{
	{"plain", func() []ratelimit.PolicyOption { return nil }},
	{"budget", func() []ratelimit.PolicyOption { return []ratelimit.PolicyOption{ratelimit.WithBudget(time.Minute)} }},
	{"breaker", func() []ratelimit.PolicyOption {
		return []ratelimit.PolicyOption{ratelimit.WithBreaker(&ratelimit.Breaker{})}
	}},
	{"budget and breaker", func() []ratelimit.PolicyOption {
		return []ratelimit.PolicyOption{ratelimit.WithBreaker(&ratelimit.Breaker{}), ratelimit.WithBudget(time.Minute)}
	}},
}

// settled waits until no more goroutines run than before: the last instructions
// of one that has done its work cannot be awaited otherwise.
func settled(t testing.TB, before int) {
	t.Helper()
	for range 10_000 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(milli)
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), before, "goroutines")
}

// bubble runs test with a clock of its own, and then for another hour, in which
// abandoned calls end: it fails if one does not.
func bubble(t *testing.T, test func(*testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		test(t)
		time.Sleep(time.Hour)
	})
}

func TestFallbackAnswers(t *testing.T) {
	var (
		corrupt = fmt.Errorf("ratelimit: x: %w", ratelimit.ErrCorruptState)
		exceeds = fmt.Errorf("%w: 11 of 10", ratelimit.ErrExceedsLimit)
		permits = fmt.Errorf("%w: 0", ratelimit.ErrInvalidPermits)
		config  = fmt.Errorf("%w: the clock reads 1969", ratelimit.ErrInvalidConfig)
		denial  = &ratelimit.DeniedError{Result: bySecondary}
		inner   = fmt.Errorf("inner: %w", context.DeadlineExceeded) // not the caller's
		cases   = []struct {
			name               string
			primary, secondary error
			want               ratelimit.Result
			is, isNot          []error // of the error; none: no error
			same               error   // the error itself
			asked, reported    bool
		}{
			{name: "the primary decides", want: byPrimary},
			{name: "an outage", primary: errDown, want: substituted, asked: true, reported: true},
			{name: "a corrupt key", primary: corrupt, same: corrupt},
			{name: "a deadline that is not the caller's", primary: inner, want: substituted, asked: true, reported: true},
			{name: "an empty key", primary: ratelimit.ErrInvalidKey, same: ratelimit.ErrInvalidKey},
			{name: "no permits", primary: permits, same: permits},
			{name: "too many permits", primary: exceeds, same: exceeds},
			{name: "a clock that cannot be", primary: config, same: config},
			{name: "a denial as an error", primary: denial, same: denial},
			{name: "both fail", primary: errDown, secondary: os.ErrPermission, is: []error{errDown, os.ErrPermission}, asked: true, reported: true},
			{
				name: "a secondary out of order", primary: errDown, secondary: config,
				is: []error{errDown}, isNot: []error{ratelimit.ErrInvalidConfig}, asked: true, reported: true,
			},
			{name: "a mistake that only the secondary sees", primary: errDown, secondary: permits, same: permits, asked: true, reported: true},
		}
	)
	for _, mode := range fallbackModes {
		for _, peek := range []bool{false, true} {
			for _, c := range cases {
				t.Run(fmt.Sprintf("%s/peek=%t/%s", mode.name, peek, c.name), func(t *testing.T) {
					before := runtime.NumGoroutine()
					n := 3
					if peek {
						n = 0
					}
					type ctxKey struct{}
					ctx := context.WithValue(t.Context(), ctxKey{}, "value")
					ask := func(name string, r ratelimit.Result, err error) *limitertest.Stub {
						return &limitertest.Stub{Answer: func(ctx context.Context, key string, got int) (ratelimit.Result, error) {
							require.Equal(t, "value", ctx.Value(ctxKey{}), name)
							require.Equal(t, "k", key, name)
							require.Equal(t, n, got, name)
							if err != nil {
								r = ratelimit.Result{}
							}
							return r, err
						}}
					}
					primary, secondary := ask("primary", byPrimary, c.primary), ask("secondary", bySecondary, c.secondary)
					var events []ratelimit.Observation
					f := newTestFallback(t, primary, secondary,
						append(mode.opts(), ratelimit.WithObserver(func(_ context.Context, e ratelimit.Observation) { events = append(events, e) }))...)

					var r ratelimit.Result
					var err error
					if peek {
						r, err = f.Peek(ctx, "k")
					} else {
						r, err = f.TryAcquireN(ctx, "k", 3)
					}
					require.Equal(t, c.want, r)
					switch {
					case c.same != nil:
						require.True(t, err == c.same, "%v", err)
					case c.is == nil:
						require.NoError(t, err)
					default:
						require.ErrorContains(t, err, `ratelimit: fallback for "k": primary: `)
						require.ErrorContains(t, err, c.secondary.Error(), "even an error that is not wrapped is in the message")
						for _, is := range c.is {
							require.ErrorIs(t, err, is)
						}
						for _, isNot := range c.isNot {
							require.NotErrorIs(t, err, isNot)
						}
					}
					require.EqualValues(t, 1, primary.Count())
					require.Equal(t, c.asked, secondary.Count() == 1)
					var want []ratelimit.Observation
					if c.reported {
						o := ratelimit.Observation{
							Limiter: "default", Call: "acquire", Outcome: ratelimit.OutcomeAllowed, Source: ratelimit.SourceFallback,
							Key: "k", N: 3, Taken: 3, Result: c.want, Err: err, Reason: c.primary,
						}
						if err != nil {
							o.Outcome, o.Taken = ratelimit.OutcomeFailed, 0
						} else if !c.want.Allowed {
							o.Outcome, o.Taken = ratelimit.OutcomeDenied, 0
						}
						if peek {
							o.Call, o.N, o.Taken = "peek", 1, 0
							if err == nil {
								o.Outcome = ratelimit.OutcomeDone
							}
						}
						want = []ratelimit.Observation{o}
					}
					require.Equal(t, want, ratelimit.Untimed(events))
					settled(t, before)
				})
			}
		}
	}
}

func TestFallbackTryAcquireTakesOne(t *testing.T) {
	for _, mode := range fallbackModes {
		var got int
		f := newTestFallback(t, &limitertest.Stub{Answer: func(_ context.Context, _ string, n int) (ratelimit.Result, error) {
			got = n
			return byPrimary, nil
		}}, ratelimit.AllowAll(), mode.opts()...)
		r, err := f.TryAcquire(t.Context(), "k")
		require.NoError(t, err, mode.name)
		require.Equal(t, byPrimary, r, mode.name)
		require.Equal(t, 1, got, mode.name)
	}
}

func TestFallbackReturnsTheCallersEndedContext(t *testing.T) {
	ioTimeout := fmt.Errorf("read tcp: %w", os.ErrDeadlineExceeded)
	never := always(bySecondary, nil)
	for _, mode := range fallbackModes {
		t.Run(mode.name, func(t *testing.T) {
			t.Run("cancelled before", func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				r, err := newTestFallback(t, hanging(), never, mode.opts()...).TryAcquire(ctx, "k")
				require.Zero(t, r)
				require.ErrorIs(t, err, context.Canceled)
			})
			t.Run("cancelled while the primary is asked", func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					ctx, cancel := context.WithCancel(t.Context())
					time.AfterFunc(time.Second, cancel)
					start := time.Now()
					r, err := newTestFallback(t, hanging(), never, mode.opts()...).TryAcquire(ctx, "k")
					require.Zero(t, r)
					require.ErrorIs(t, err, context.Canceled)
					require.Equal(t, time.Second, time.Since(start))
				})
			})
			t.Run("expired while the primary is asked", func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					start := time.Now()
					r, err := newTestFallback(t, hanging(), never, mode.opts()...).Peek(ctx, "k")
					require.Zero(t, r)
					require.ErrorIs(t, err, context.DeadlineExceeded)
					require.Equal(t, time.Second, time.Since(start))
				})
			})
			t.Run("another error by then", func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				primary := &limitertest.Stub{Answer: func(context.Context, string, int) (ratelimit.Result, error) {
					cancel()
					return ratelimit.Result{}, errDown
				}}
				r, err := newTestFallback(t, primary, never, mode.opts()...).TryAcquire(ctx, "k")
				require.Zero(t, r)
				require.ErrorIs(t, err, context.Canceled)
			})
			t.Run("the connection's deadline before the context's", func(t *testing.T) {
				primary := &limitertest.Stub{Answer: func(context.Context, string, int) (ratelimit.Result, error) { return ratelimit.Result{}, ioTimeout }}
				r, err := newTestFallback(t, primary, never, mode.opts()...).TryAcquire(pastDeadline{t.Context()}, "k")
				require.Zero(t, r)
				require.ErrorIs(t, err, context.DeadlineExceeded)
			})
		})
	}
	require.Zero(t, never.Count(), "no caller is left for the secondary to decide for")
}

// pastDeadline is a context in the instant between its deadline and its timer.
type pastDeadline struct{ context.Context }

func (pastDeadline) Deadline() (time.Time, bool) { return time.Now(), true }

// TestFallbackErrorWhereThePrimaryNeverAllows: even when Redis is not asked.
func TestFallbackErrorWhereThePrimaryNeverAllows(t *testing.T) {
	down := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { _ = down.Close() })
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(down, ratelimit.PerSecond(1), 10))
	for _, primary := range []ratelimit.Limiter{bucket, ratelimit.Must(ratelimit.NewDenyCache(bucket)), newTestFallback(t, bucket, ratelimit.DenyAll())} {
		for _, mode := range fallbackModes {
			secondary := always(bySecondary, nil)
			f := newTestFallback(t, primary, secondary, mode.opts()...)
			for range 6 { // which opens a breaker
				r, err := f.TryAcquireN(ctx, "k", 10)
				require.NoError(t, err, mode.name)
				require.True(t, r.Fallback)
			}
			asked := secondary.Count()
			_, err := f.TryAcquireN(ctx, "k", 11)
			require.ErrorIs(t, err, ratelimit.ErrExceedsLimit, mode.name)
			require.ErrorContains(t, err, "11 permits of token bucket \"default\", which allows 10 at most")
			require.Equal(t, asked, secondary.Count())
		}
	}
	local := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 10))
	_, err := newTestFallback(t, local, ratelimit.AllowAll()).TryAcquireN(ctx, "k", 11)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
}

// TestFallbackOneBadKeyIsNoOutage: whatever is wrong with it.
func TestFallbackOneBadKeyIsNoOutage(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	require.NoError(t, s.Admin.SAdd(ctx, "ratelimit:default:tokenbucket{set}", "x").Err())
	require.NoError(t, s.Admin.Set(ctx, "ratelimit:default:tokenbucket{junk}", "abcdefghijklmnop/1000000", 0).Err())
	f := newTestFallback(t, ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1), 3)), ratelimit.AllowAll(), ratelimit.WithBreaker(&ratelimit.Breaker{}))
	for range 10 {
		for _, key := range []string{"set", "junk"} {
			r, err := f.TryAcquire(ctx, key)
			require.ErrorIs(t, err, ratelimit.ErrCorruptState)
			require.Equal(t, ratelimit.Result{}, r, "the secondary is not asked")
		}
	}
	require.Equal(t, ratelimit.Result{Allowed: true, Limit: 3, Window: 3 * time.Second, Remaining: 2, ResetAfter: time.Second},
		must(t)(f.TryAcquire(ctx, "good")))
}

func TestFallbackNested(t *testing.T) {
	exceeds := fmt.Errorf("%w: 3 of 1", ratelimit.ErrExceedsLimit)
	for _, mode := range fallbackModes {
		t.Run(mode.name, func(t *testing.T) {
			nest := func(first, second, third error) (ratelimit.Result, *limitertest.Stub, error) {
				last := always(bySecondary, third)
				inner := newTestFallback(t, always(byPrimary, first), always(byPrimary, second), mode.opts()...)
				r, err := newTestFallback(t, inner, last, mode.opts()...).TryAcquireN(t.Context(), "k", 3)
				return r, last, err
			}
			r, last, err := nest(errDown, nil, nil)
			require.NoError(t, err)
			want := byPrimary
			want.Fallback = true
			require.Equal(t, want, r, "the inner secondary answers, and the outer one passes that on")
			require.Zero(t, last.Count())

			r, _, err = nest(errDown, os.ErrPermission, nil)
			require.NoError(t, err)
			require.Equal(t, substituted, r)

			r, last, err = nest(errDown, exceeds, nil)
			require.NoError(t, err)
			require.False(t, r.Allowed, "the inner denies what its secondary can never allow, and a denial is a decision")
			require.True(t, r.Fallback)
			require.Zero(t, last.Count())

			r, _, err = nest(errDown, os.ErrPermission, os.ErrClosed)
			require.Zero(t, r)
			for _, want := range []error{errDown, os.ErrPermission, os.ErrClosed} {
				require.ErrorIs(t, err, want)
			}

			r, last, err = nest(exceeds, nil, nil)
			require.Zero(t, r)
			require.Equal(t, exceeds, err)
			require.Zero(t, last.Count())
		})
	}
}

func TestFallbackResetReachesBoth(t *testing.T) {
	for _, mode := range fallbackModes {
		for _, c := range []struct {
			name               string
			primary, secondary error
			want               string
		}{
			{"both forget", nil, nil, ""},
			{"the primary is down", errDown, nil, `ratelimit: fallback: reset of "k": primary: connection refused`},
			{"the secondary is down", nil, os.ErrClosed, `ratelimit: fallback: reset of "k": secondary: file already closed`},
			{"both are down", errDown, os.ErrClosed, `ratelimit: fallback: reset of "k": primary: connection refused; secondary: file already closed`},
		} {
			t.Run(mode.name+"/"+c.name, func(t *testing.T) {
				primary, secondary := always(ratelimit.Result{}, c.primary), always(ratelimit.Result{}, c.secondary)
				err := newTestFallback(t, primary, secondary, mode.opts()...).Reset(t.Context(), "k")
				if c.want == "" {
					require.NoError(t, err)
				} else {
					require.EqualError(t, err, c.want)
				}
				for _, is := range []error{c.primary, c.secondary} {
					if is != nil {
						require.ErrorIs(t, err, is)
					}
				}
				require.EqualValues(t, 1, primary.Count())
				require.EqualValues(t, 1, secondary.Count())
			})
		}
	}
	f := newTestFallback(t, ratelimit.AllowAll(), ratelimit.DenyAll())
	require.EqualError(t, f.Reset(t.Context(), ""), "ratelimit: invalid key: it is empty")
}

func TestFallbackResetReachesTheSecondaryOfAHungPrimary(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	primary := hanging()
	secondary := &limitertest.Stub{Answer: func(context.Context, string, int) (ratelimit.Result, error) {
		cancel()
		return ratelimit.Result{}, nil
	}}
	err := newTestFallback(t, primary, secondary).Reset(ctx, "k")
	require.ErrorIs(t, err, context.Canceled)
	require.EqualValues(t, 1, secondary.Count())
}

func TestFallbackConfigErrors(t *testing.T) {
	var none *ratelimit.Fallback
	ok := ratelimit.AllowAll()
	above := int64(1 << 31) // as an int of 32 bits it is below 1
	tooMany := int(above)
	for _, c := range []struct {
		name               string
		primary, secondary ratelimit.Limiter
		opts               []ratelimit.PolicyOption
		want               string
	}{
		{"no primary", nil, ok, nil, "NewFallback: the primary is nil"},
		{"no secondary", ok, nil, nil, "NewFallback: the secondary is nil; AllowAll() allows every call in an outage, DenyAll() denies every call"},
		{"a primary that was not built", none, ok, nil, "NewFallback: the primary is nil"},
		{"a secondary that was not built", ok, none, nil, "NewFallback: the secondary is nil; AllowAll() allows every call in an outage, DenyAll() denies every call"},
		{"a nil option", ok, ok, []ratelimit.PolicyOption{ratelimit.WithBudget(milli), nil}, "NewFallback: option 2 is nil"},
		{"no budget", ok, ok, []ratelimit.PolicyOption{ratelimit.WithBudget(0)}, "WithBudget: 0s is not above 0; leave the option out to wait for the primary"},
		{"a negative budget", ok, ok, []ratelimit.PolicyOption{ratelimit.WithBudget(-milli)}, "WithBudget: -1ms is not above 0; leave the option out to wait for the primary"},
		{"two budgets", ok, ok, []ratelimit.PolicyOption{ratelimit.WithBudget(milli), ratelimit.WithBudget(milli)}, "WithBudget is given twice"},
		{"two breakers", ok, ok, []ratelimit.PolicyOption{ratelimit.WithBreaker(&ratelimit.Breaker{}), ratelimit.WithBreaker(&ratelimit.Breaker{})}, "WithBreaker is given twice"},
		{"no observer", ok, ok, []ratelimit.PolicyOption{ratelimit.WithObserver(nil)}, "WithObserver: function 1 is nil; leave it out"},
		{"two observers", ok, ok, []ratelimit.PolicyOption{ratelimit.WithObserver(func(context.Context, ratelimit.Observation) {}), ratelimit.WithObserver(func(context.Context, ratelimit.Observation) {})}, "WithObserver is given twice"},
		{"no failures", ok, ok, []ratelimit.PolicyOption{ratelimit.WithBreaker(&ratelimit.Breaker{Failures: -1})}, "WithBreaker: -1 Failures are not between 1 and 2147483647; leave the field out for 5"},
		{"too many failures", ok, ok, []ratelimit.PolicyOption{ratelimit.WithBreaker(&ratelimit.Breaker{Failures: tooMany})}, fmt.Sprintf("WithBreaker: %d Failures are not between 1 and 2147483647; leave the field out for 5", tooMany)},
		{"no pause", ok, ok, []ratelimit.PolicyOption{ratelimit.WithBreaker(&ratelimit.Breaker{ProbeEvery: 999 * time.Microsecond})}, "WithBreaker: a ProbeEvery of 999µs is below 1ms; leave the field out for 200ms"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := ratelimit.NewFallback(c.primary, c.secondary, c.opts...)
			require.Nil(t, f)
			require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
			require.EqualError(t, err, "ratelimit: invalid configuration: "+c.want)
		})
	}
}

func TestFallbackAllocations(t *testing.T) {
	for _, mode := range fallbackModes {
		if mode.name == "budget" || mode.name == "budget and breaker" {
			continue // a goroutine and a context; see the benchmarks
		}
		want := 1
		if mode.name == "breaker" {
			want = 2
		}
		f := newTestFallback(t, ratelimit.AllowAll(), ratelimit.DenyAll(), append(mode.opts(), ratelimit.WithObserver(func(context.Context, ratelimit.Observation) {}))...)
		ctx := t.Context()
		require.EqualValues(t, want, testing.AllocsPerRun(100, func() {
			if r, err := f.TryAcquire(ctx, "k"); err != nil || r.Fallback {
				t.Error(r, err)
			}
		}), mode.name)
	}
}

// A hammer of real time, for the race detector: primaries that answer, fail,
// hang and come back around the end of the budget, callers that leave.
func TestFallbackRaces(t *testing.T) {
	before := runtime.NumGoroutine()
	const callers, each = 64, 100
	primary := &limitertest.Stub{Answer: func(ctx context.Context, _ string, _ int) (ratelimit.Result, error) {
		switch d := time.Duration(rand.IntN(1050)) * time.Microsecond; rand.IntN(50) {
		case 0:
			return ratelimit.Result{}, errDown
		case 1:
			<-ctx.Done()
			return ratelimit.Result{}, ctx.Err()
		case 2, 3, 4, 5, 6, 7, 8, 9:
			time.Sleep(d)
			return byPrimary, nil
		default:
			return byPrimary, nil
		}
	}}
	var events, answers, secondaries, ends atomic.Int64
	f := newTestFallback(t, primary, always(bySecondary, nil), ratelimit.WithBudget(milli),
		ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 3, ProbeEvery: milli}), ratelimit.WithObserver(func(_ context.Context, e ratelimit.Observation) {
			if e.Source == ratelimit.SourceFallback {
				events.Add(1)
			}
		}))
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range each {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(3000))*time.Microsecond)
				r, err := f.TryAcquire(ctx, "k")
				switch {
				case err != nil:
					if !errors.Is(err, context.DeadlineExceeded) || r != (ratelimit.Result{}) {
						t.Errorf("got %+v, %v; want no result and the ended context", r, err)
					}
					ends.Add(1)
				case r.Fallback:
					if r != substituted {
						t.Errorf("the secondary's answer is %+v, want %+v", r, substituted)
					}
					secondaries.Add(1)
				default:
					if r != byPrimary {
						t.Errorf("the primary's answer is %+v, want %+v", r, byPrimary)
					}
					answers.Add(1)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	require.Equal(t, secondaries.Load(), events.Load())
	for range guard.MaxRunning {
		ratelimit.GuardOf(f).Bound.Running <- struct{}{} // waits until all have ended
	}
	settled(t, before)
	require.Zero(t, ratelimit.GuardOf(f).Bound.Abandoned.Load())
	t.Logf("of %d calls: %d by the primary, %d by the secondary, %d ended with their context",
		callers*each, answers.Load(), secondaries.Load(), ends.Load())
}

func BenchmarkFallback(b *testing.B) {
	run := func(name string, primary ratelimit.Limiter, opts ...ratelimit.PolicyOption) {
		b.Run(name, func(b *testing.B) {
			f := newTestFallback(b, primary, ratelimit.AllowAll(), opts...)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					_, err := f.TryAcquire(ctx, "k")
					require.NoError(b, err)
				}
			})
		})
	}
	run("Healthy", ratelimit.AllowAll())
	run("HealthyBreaker", ratelimit.AllowAll(), ratelimit.WithBreaker(&ratelimit.Breaker{}))
	run("HealthyBudget", ratelimit.AllowAll(), ratelimit.WithBudget(time.Second))
	run("HealthyBudgetBreaker", ratelimit.AllowAll(), ratelimit.WithBudget(time.Second), ratelimit.WithBreaker(&ratelimit.Breaker{}))
	down := always(ratelimit.Result{}, errDown)
	run("DownBreaker", down, ratelimit.WithBreaker(&ratelimit.Breaker{ProbeEvery: time.Hour}))
	run("DownBudgetBreaker", down, ratelimit.WithBudget(time.Second), ratelimit.WithBreaker(&ratelimit.Breaker{ProbeEvery: time.Hour}))
}

// BenchmarkOutage is how long a call takes that has neither a budget nor a
// deadline, with go-redis's defaults: run it with -benchtime 1x.
func BenchmarkOutage(b *testing.B) {
	hung, err := net.Listen("tcp", "127.0.0.1:0") // accepts and never answers
	require.NoError(b, err)
	b.Cleanup(func() { _ = hung.Close() })
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	require.NoError(b, closed.Close())
	for name, addr := range map[string]string{"down": closed.Addr().String(), "hung": hung.Addr().String()} {
		b.Run(name, func(b *testing.B) {
			client := redis.NewClient(&redis.Options{Addr: addr})
			b.Cleanup(func() { _ = client.Close() })
			l := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1), 1))
			for range b.N {
				_, err := l.TryAcquire(ctx, "k")
				require.Error(b, err, "a dead server answered")
			}
		})
	}
}
