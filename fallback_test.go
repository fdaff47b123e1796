package ratelimit

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

	"github.com/tryacquire/ratelimit/internal/guard"
)

// A stub is a limiter made of a function, to which a peek comes as n = 0 and a
// reset as n = -1000. It counts its calls.
type stub struct {
	do    func(ctx context.Context, key string, n int) (Result, error)
	calls atomic.Int64
}

const (
	stubReset = -1000
	milli     = time.Millisecond
)

func (s *stub) call(ctx context.Context, key string, n int) (Result, error) {
	s.calls.Add(1)
	return s.do(ctx, key, n)
}

func (s *stub) TryAcquire(ctx context.Context, key string) (Result, error) {
	return s.call(ctx, key, 1)
}

func (s *stub) TryAcquireN(ctx context.Context, key string, n int) (Result, error) {
	return s.call(ctx, key, n)
}

func (s *stub) Peek(ctx context.Context, key string) (Result, error) { return s.call(ctx, key, 0) }

func (s *stub) Reset(ctx context.Context, key string) error {
	_, err := s.call(ctx, key, stubReset)
	return err
}

var (
	errDown = errors.New("connection refused")

	byPrimary   = Result{Allowed: true, Limit: 10, Window: time.Second, Remaining: 7, ResetAfter: 300 * milli}
	bySecondary = Result{Limit: 3, Window: time.Minute, Remaining: 1, RetryAfter: 20 * time.Second, ResetAfter: 40 * time.Second}
	substituted = func() Result { r := bySecondary; r.Fallback = true; return r }()
)

func always(r Result, err error) *stub {
	return &stub{do: func(context.Context, string, int) (Result, error) { return r, err }}
}

// hanging answers when its context ends, as a client does that honours it.
func hanging() *stub {
	return &stub{do: func(ctx context.Context, _ string, _ int) (Result, error) {
		<-ctx.Done()
		return Result{}, ctx.Err()
	}}
}

// after answers byPrimary after d, whatever becomes of the context.
func after(d time.Duration) *stub {
	return &stub{do: func(context.Context, string, int) (Result, error) {
		time.Sleep(d)
		return byPrimary, nil
	}}
}

func newTestFallback(t testing.TB, primary, secondary Limiter, opts ...PolicyOption) *Fallback {
	t.Helper()
	f, err := NewFallback(primary, secondary, opts...)
	require.NoError(t, err)
	return f
}

// fallbackModes are the ways in which a Fallback asks its primary.
var fallbackModes = []struct {
	name string
	opts func() []PolicyOption
}{
	{"plain", func() []PolicyOption { return nil }},
	{"budget", func() []PolicyOption { return []PolicyOption{WithBudget(time.Minute)} }},
	{"breaker", func() []PolicyOption { return []PolicyOption{WithBreaker(&Breaker{})} }},
	{"budget and breaker", func() []PolicyOption {
		return []PolicyOption{WithBreaker(&Breaker{}), WithBudget(time.Minute)}
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
		corrupt = fmt.Errorf("ratelimit: x: %w", ErrCorruptState)
		exceeds = fmt.Errorf("%w: 11 of 10", ErrExceedsLimit)
		permits = fmt.Errorf("%w: 0", ErrInvalidPermits)
		config  = fmt.Errorf("%w: the clock reads 1969", ErrInvalidConfig)
		denial  = &DeniedError{Result: bySecondary}
		inner   = fmt.Errorf("inner: %w", context.DeadlineExceeded) // not the caller's
		cases   = []struct {
			name               string
			primary, secondary error
			want               Result
			is, isNot          []error // of the error; none: no error
			same               error   // the error itself
			asked, reported    bool
		}{
			{name: "the primary decides", want: byPrimary},
			{name: "an outage", primary: errDown, want: substituted, asked: true, reported: true},
			{name: "a corrupt key", primary: corrupt, same: corrupt},
			{name: "a deadline that is not the caller's", primary: inner, want: substituted, asked: true, reported: true},
			{name: "an empty key", primary: ErrInvalidKey, same: ErrInvalidKey},
			{name: "no permits", primary: permits, same: permits},
			{name: "too many permits", primary: exceeds, same: exceeds},
			{name: "a clock that cannot be", primary: config, same: config},
			{name: "a denial as an error", primary: denial, same: denial},
			{name: "both fail", primary: errDown, secondary: os.ErrPermission, is: []error{errDown, os.ErrPermission}, asked: true, reported: true},
			{
				name: "a secondary out of order", primary: errDown, secondary: config,
				is: []error{errDown}, isNot: []error{ErrInvalidConfig}, asked: true, reported: true,
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
					ask := func(name string, r Result, err error) *stub {
						return &stub{do: func(ctx context.Context, key string, got int) (Result, error) {
							require.Equal(t, "value", ctx.Value(ctxKey{}), name)
							require.Equal(t, "k", key, name)
							require.Equal(t, n, got, name)
							if err != nil {
								r = Result{}
							}
							return r, err
						}}
					}
					primary, secondary := ask("primary", byPrimary, c.primary), ask("secondary", bySecondary, c.secondary)
					var events []Observation
					f := newTestFallback(t, primary, secondary,
						append(mode.opts(), WithObserver(func(_ context.Context, e Observation) { events = append(events, e) }))...)

					var r Result
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
					require.EqualValues(t, 1, primary.calls.Load())
					require.Equal(t, c.asked, secondary.calls.Load() == 1)
					var want []Observation
					if c.reported {
						o := Observation{
							Limiter: "default", Call: callAcquire, Outcome: OutcomeAllowed, Source: SourceFallback,
							Key: "k", N: 3, Taken: 3, Result: c.want, Err: err, Reason: c.primary,
						}
						if err != nil {
							o.Outcome, o.Taken = OutcomeFailed, 0
						} else if !c.want.Allowed {
							o.Outcome, o.Taken = OutcomeDenied, 0
						}
						if peek {
							o.Call, o.N, o.Taken = callPeek, 1, 0
							if err == nil {
								o.Outcome = OutcomeDone
							}
						}
						want = []Observation{o}
					}
					require.Equal(t, want, untimed(events))
					settled(t, before)
				})
			}
		}
	}
}

func TestFallbackTryAcquireTakesOne(t *testing.T) {
	for _, mode := range fallbackModes {
		var got int
		f := newTestFallback(t, &stub{do: func(_ context.Context, _ string, n int) (Result, error) {
			got = n
			return byPrimary, nil
		}}, AllowAll(), mode.opts()...)
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
				primary := &stub{do: func(context.Context, string, int) (Result, error) {
					cancel()
					return Result{}, errDown
				}}
				r, err := newTestFallback(t, primary, never, mode.opts()...).TryAcquire(ctx, "k")
				require.Zero(t, r)
				require.ErrorIs(t, err, context.Canceled)
			})
			t.Run("the connection's deadline before the context's", func(t *testing.T) {
				primary := &stub{do: func(context.Context, string, int) (Result, error) { return Result{}, ioTimeout }}
				r, err := newTestFallback(t, primary, never, mode.opts()...).TryAcquire(pastDeadline{t.Context()}, "k")
				require.Zero(t, r)
				require.ErrorIs(t, err, context.DeadlineExceeded)
			})
		})
	}
	require.Zero(t, never.calls.Load(), "no caller is left for the secondary to decide for")
}

// pastDeadline is a context in the instant between its deadline and its timer.
type pastDeadline struct{ context.Context }

func (pastDeadline) Deadline() (time.Time, bool) { return time.Now(), true }

// TestFallbackErrorWhereThePrimaryNeverAllows: even when Redis is not asked.
func TestFallbackErrorWhereThePrimaryNeverAllows(t *testing.T) {
	down := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { _ = down.Close() })
	bucket := Must(NewTokenBucket(down, PerSecond(1), 10))
	for _, primary := range []Limiter{bucket, Must(NewDenyCache(bucket)), newTestFallback(t, bucket, DenyAll())} {
		for _, mode := range fallbackModes {
			secondary := always(bySecondary, nil)
			f := newTestFallback(t, primary, secondary, mode.opts()...)
			for range 6 { // which opens a breaker
				r, err := f.TryAcquireN(ctx, "k", 10)
				require.NoError(t, err, mode.name)
				require.True(t, r.Fallback)
			}
			asked := secondary.calls.Load()
			_, err := f.TryAcquireN(ctx, "k", 11)
			require.ErrorIs(t, err, ErrExceedsLimit, mode.name)
			require.ErrorContains(t, err, "11 permits of token bucket \"default\", which allows 10 at most")
			require.Equal(t, asked, secondary.calls.Load())
		}
	}
	local := Must(NewLocalTokenBucket(PerSecond(1), 10))
	_, err := newTestFallback(t, local, AllowAll()).TryAcquireN(ctx, "k", 11)
	require.ErrorIs(t, err, ErrExceedsLimit)
}

// TestFallbackOneBadKeyIsNoOutage: whatever is wrong with it.
func TestFallbackOneBadKeyIsNoOutage(t *testing.T) {
	s := onMini(t)
	require.NoError(t, s.admin.SAdd(ctx, "ratelimit:default:tokenbucket{set}", "x").Err())
	require.NoError(t, s.admin.Set(ctx, "ratelimit:default:tokenbucket{junk}", "abcdefghijklmnop/1000000", 0).Err())
	f := newTestFallback(t, Must(NewTokenBucket(s.client, PerSecond(1), 3)), AllowAll(), WithBreaker(&Breaker{}))
	for range 10 {
		for _, key := range []string{"set", "junk"} {
			r, err := f.TryAcquire(ctx, key)
			require.ErrorIs(t, err, ErrCorruptState)
			require.Equal(t, Result{}, r, "the secondary is not asked")
		}
	}
	require.Equal(t, Result{Allowed: true, Limit: 3, Window: 3 * time.Second, Remaining: 2, ResetAfter: time.Second},
		must(t)(f.TryAcquire(ctx, "good")))
}

func TestFallbackNested(t *testing.T) {
	exceeds := fmt.Errorf("%w: 3 of 1", ErrExceedsLimit)
	for _, mode := range fallbackModes {
		t.Run(mode.name, func(t *testing.T) {
			nest := func(first, second, third error) (Result, *stub, error) {
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
			require.Zero(t, last.calls.Load())

			r, _, err = nest(errDown, os.ErrPermission, nil)
			require.NoError(t, err)
			require.Equal(t, substituted, r)

			r, last, err = nest(errDown, exceeds, nil)
			require.NoError(t, err)
			require.False(t, r.Allowed, "the inner denies what its secondary can never allow, and a denial is a decision")
			require.True(t, r.Fallback)
			require.Zero(t, last.calls.Load())

			r, _, err = nest(errDown, os.ErrPermission, os.ErrClosed)
			require.Zero(t, r)
			for _, want := range []error{errDown, os.ErrPermission, os.ErrClosed} {
				require.ErrorIs(t, err, want)
			}

			r, last, err = nest(exceeds, nil, nil)
			require.Zero(t, r)
			require.Equal(t, exceeds, err)
			require.Zero(t, last.calls.Load())
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
				primary, secondary := always(Result{}, c.primary), always(Result{}, c.secondary)
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
				require.EqualValues(t, 1, primary.calls.Load())
				require.EqualValues(t, 1, secondary.calls.Load())
			})
		}
	}
	f := newTestFallback(t, AllowAll(), DenyAll())
	require.EqualError(t, f.Reset(t.Context(), ""), "ratelimit: invalid key: it is empty")
}

func TestFallbackResetReachesTheSecondaryOfAHungPrimary(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	primary := hanging()
	secondary := &stub{do: func(context.Context, string, int) (Result, error) {
		cancel()
		return Result{}, nil
	}}
	err := newTestFallback(t, primary, secondary).Reset(ctx, "k")
	require.ErrorIs(t, err, context.Canceled)
	require.EqualValues(t, 1, secondary.calls.Load())
}

func TestFallbackConfigErrors(t *testing.T) {
	var none *Fallback
	ok := AllowAll()
	above := int64(1 << 31) // as an int of 32 bits it is below 1
	tooMany := int(above)
	for _, c := range []struct {
		name               string
		primary, secondary Limiter
		opts               []PolicyOption
		want               string
	}{
		{"no primary", nil, ok, nil, "NewFallback: the primary is nil"},
		{"no secondary", ok, nil, nil, "NewFallback: the secondary is nil; AllowAll() allows every call in an outage, DenyAll() denies every call"},
		{"a primary that was not built", none, ok, nil, "NewFallback: the primary is nil"},
		{"a secondary that was not built", ok, none, nil, "NewFallback: the secondary is nil; AllowAll() allows every call in an outage, DenyAll() denies every call"},
		{"a nil option", ok, ok, []PolicyOption{WithBudget(milli), nil}, "NewFallback: option 2 is nil"},
		{"no budget", ok, ok, []PolicyOption{WithBudget(0)}, "WithBudget: 0s is not above 0; leave the option out to wait for the primary"},
		{"a negative budget", ok, ok, []PolicyOption{WithBudget(-milli)}, "WithBudget: -1ms is not above 0; leave the option out to wait for the primary"},
		{"two budgets", ok, ok, []PolicyOption{WithBudget(milli), WithBudget(milli)}, "WithBudget is given twice"},
		{"two breakers", ok, ok, []PolicyOption{WithBreaker(&Breaker{}), WithBreaker(&Breaker{})}, "WithBreaker is given twice"},
		{"no observer", ok, ok, []PolicyOption{WithObserver(nil)}, "WithObserver: function 1 is nil; leave it out"},
		{"two observers", ok, ok, []PolicyOption{WithObserver(func(context.Context, Observation) {}), WithObserver(func(context.Context, Observation) {})}, "WithObserver is given twice"},
		{"no failures", ok, ok, []PolicyOption{WithBreaker(&Breaker{Failures: -1})}, "WithBreaker: -1 Failures are not between 1 and 2147483647; leave the field out for 5"},
		{"too many failures", ok, ok, []PolicyOption{WithBreaker(&Breaker{Failures: tooMany})}, fmt.Sprintf("WithBreaker: %d Failures are not between 1 and 2147483647; leave the field out for 5", tooMany)},
		{"no pause", ok, ok, []PolicyOption{WithBreaker(&Breaker{ProbeEvery: 999 * time.Microsecond})}, "WithBreaker: a ProbeEvery of 999µs is below 1ms; leave the field out for 200ms"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := NewFallback(c.primary, c.secondary, c.opts...)
			require.Nil(t, f)
			require.ErrorIs(t, err, ErrInvalidConfig)
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
		f := newTestFallback(t, AllowAll(), DenyAll(), append(mode.opts(), WithObserver(func(context.Context, Observation) {}))...)
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
	primary := &stub{do: func(ctx context.Context, _ string, _ int) (Result, error) {
		switch d := time.Duration(rand.IntN(1050)) * time.Microsecond; rand.IntN(50) {
		case 0:
			return Result{}, errDown
		case 1:
			<-ctx.Done()
			return Result{}, ctx.Err()
		case 2, 3, 4, 5, 6, 7, 8, 9:
			time.Sleep(d)
			return byPrimary, nil
		default:
			return byPrimary, nil
		}
	}}
	var events, answers, secondaries, ends atomic.Int64
	f := newTestFallback(t, primary, always(bySecondary, nil), WithBudget(milli),
		WithBreaker(&Breaker{Failures: 3, ProbeEvery: milli}), WithObserver(func(_ context.Context, e Observation) {
			if e.Source == SourceFallback {
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
					if !errors.Is(err, context.DeadlineExceeded) || r != (Result{}) {
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
		f.guard.Bound.Running <- struct{}{} // waits until all have ended
	}
	settled(t, before)
	require.Zero(t, f.guard.Bound.Abandoned.Load())
	t.Logf("of %d calls: %d by the primary, %d by the secondary, %d ended with their context",
		callers*each, answers.Load(), secondaries.Load(), ends.Load())
}

func BenchmarkFallback(b *testing.B) {
	run := func(name string, primary Limiter, opts ...PolicyOption) {
		b.Run(name, func(b *testing.B) {
			f := newTestFallback(b, primary, AllowAll(), opts...)
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
	run("Healthy", AllowAll())
	run("HealthyBreaker", AllowAll(), WithBreaker(&Breaker{}))
	run("HealthyBudget", AllowAll(), WithBudget(time.Second))
	run("HealthyBudgetBreaker", AllowAll(), WithBudget(time.Second), WithBreaker(&Breaker{}))
	down := always(Result{}, errDown)
	run("DownBreaker", down, WithBreaker(&Breaker{ProbeEvery: time.Hour}))
	run("DownBudgetBreaker", down, WithBudget(time.Second), WithBreaker(&Breaker{ProbeEvery: time.Hour}))
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
			l := Must(NewTokenBucket(client, PerSecond(1), 1))
			for range b.N {
				_, err := l.TryAcquire(ctx, "k")
				require.Error(b, err, "a dead server answered")
			}
		})
	}
}
