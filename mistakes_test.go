package ratelimit_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/errclass"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// An attempt is a call that a service makes of a limiter, or of its claims.
type attempt struct {
	name string
	do   func(l ratelimit.Limiter, n int) error
}

// attemptsOf are all operations on key, each for n permits.
func attemptsOf(key string) []attempt {
	claim := func(l ratelimit.Limiter, n int) ratelimit.Claim {
		return ratelimit.ClaimOf(l, key, n)
	}
	memory := localBucket(100_000)
	all := func(claims ...ratelimit.Claim) error { _, err := ratelimit.TryAcquireAll(ctx, claims...); return err }
	return []attempt{
		{"TryAcquire", func(l ratelimit.Limiter, n int) error { _, err := l.TryAcquireN(ctx, key, n); return err }},
		{"Peek", func(l ratelimit.Limiter, _ int) error { _, err := l.Peek(ctx, key); return err }},
		{"Reset", func(l ratelimit.Limiter, _ int) error { return l.Reset(ctx, key) }},
		{"UpTo", func(l ratelimit.Limiter, n int) error {
			_, _, err := l.(interface {
				TryAcquireUpTo(context.Context, string, int) (int, ratelimit.Result, error)
			}).TryAcquireUpTo(ctx, key, n)
			return err
		}},
		{"Estimate", func(l ratelimit.Limiter, n int) error {
			_, _, err := l.(ratelimit.Settler).Estimate(ctx, key, n)
			return err
		}},
		{"Charge", func(l ratelimit.Limiter, n int) error {
			_, err := l.(ratelimit.Settler).Charge(ctx, key, n)
			return err
		}},
		{"Credit", func(l ratelimit.Limiter, n int) error {
			_, err := l.(ratelimit.Settler).Credit(ctx, key, n)
			return err
		}},
		{"Reserve", func(l ratelimit.Limiter, n int) error {
			r, err := l.(interface {
				Reserve(context.Context, string, int, time.Duration) (*ratelimit.Reservation, error)
			}).Reserve(ctx, key, n, time.Hour) // 4 of 3 an hour
			if (r == nil) != (err != nil) {
				return fmt.Errorf("a reservation %v beside the error %v", r, err)
			}
			return err
		}},
		{"Reserve before now", func(l ratelimit.Limiter, n int) error {
			r, err := l.(interface {
				Reserve(context.Context, string, int, time.Duration) (*ratelimit.Reservation, error)
			}).Reserve(ctx, key, n, -1)
			if (r == nil) != (err != nil) {
				return fmt.Errorf("a reservation %v beside the error %v", r, err)
			}
			return err
		}},
		{"Look", func(l ratelimit.Limiter, n int) error { _, err := ratelimit.Look(ctx, claim(l, n)); return err }},
		{"Look at an estimate", func(l ratelimit.Limiter, n int) error {
			_, err := ratelimit.Look(ctx, claim(l, n).Estimate())
			return err
		}},
		{"a claim", func(l ratelimit.Limiter, n int) error { return all(claim(l, n)) }},
		{"an estimate as a claim", func(l ratelimit.Limiter, n int) error { return all(claim(l, n).Estimate()) }},
		{"two claims", func(l ratelimit.Limiter, n int) error { return all(claim(l, n), claim(l, n)) }},
		{"two claims, one an estimate", func(l ratelimit.Limiter, n int) error { return all(claim(l, n), claim(l, n).Estimate()) }},
		{"beside memory", func(l ratelimit.Limiter, n int) error { return all(claim(l, n), ratelimit.ClaimOf(memory, key, 1)) }},
		{"beside all", func(l ratelimit.Limiter, n int) error { return all(claim(l, n), claim(ratelimit.AllowAll(), n)) }},
		{"across slots", func(l ratelimit.Limiter, n int) error {
			_, err := ratelimit.TryAcquireAcrossSlots(ctx, claim(l, n), claim(l, n))
			return err
		}},
	}
}

// TestAMistakeIsTheSameInAnOutage: what a call gets for a mistake while Redis works it gets while Redis is down, and while no
// breaker lets it ask; what is no mistake is none then.
func TestAMistakeIsTheSameInAnOutage(t *testing.T) {
	raceflag.SkipSequential(t)
	type around = func(l ratelimit.Limiter, o *outage) ratelimit.Limiter
	fallback := func(secondary ratelimit.Limiter, budget time.Duration) around {
		return func(l ratelimit.Limiter, o *outage) ratelimit.Limiter {
			opts := []ratelimit.PolicyOption{ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 1, ProbeEvery: time.Hour})}
			if budget > 0 {
				opts = append(opts, ratelimit.WithBudget(budget))
			}
			return ratelimit.Must(ratelimit.NewFallback(l, secondary, opts...))
		}
	}
	choice := func(l ratelimit.Limiter, _ *outage) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewChoice(func(_ context.Context, key string) (ratelimit.Limiter, error) { return l, nil }))
	}
	cache := func(l ratelimit.Limiter, _ *outage) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewDenyCache(l))
	}
	slices := func(l ratelimit.Limiter, o *outage) ratelimit.Limiter {
		leased, err := ratelimit.NewLeased(l)
		if err != nil { // no bucket
			return choice(l, o)
		}
		return leased
	}
	shadow := func(l ratelimit.Limiter, _ *outage) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewShadow(l, ratelimit.AllowAll(), func(ratelimit.Trial) {}))
	}
	bans := func(l ratelimit.Limiter, o *outage) ratelimit.Limiter {
		banned := ratelimit.Must(ratelimit.NewPause(o.client))
		if b, err := ratelimit.NewBans(l, banned, []time.Duration{time.Minute}, time.Hour); err == nil {
			return b
		}
		return choice(l, o) // around an All
	}
	leaves := map[string]func(o *outage) ratelimit.Limiter{
		"bucket": func(o *outage) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewTokenBucket(o.client, ratelimit.PerHour(1), 3))
		},
		"window": func(o *outage) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewFixedWindow(o.client, 3, time.Hour))
		},
		"All": func(o *outage) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewAll(ratelimit.Must(ratelimit.NewTokenBucket(o.client, ratelimit.PerHour(1), 3)),
				ratelimit.Must(ratelimit.NewFixedWindow(o.client, 3, time.Hour))))
		},
	}
	open, bounded := fallback(ratelimit.AllowAll(), 0), fallback(ratelimit.AllowAll(), time.Minute)
	local := fallback(localBucket(100_000), 0)
	policies := map[string][]around{ // from the inside
		"Fallback":                     {open},
		"Fallback(budget)":             {bounded},
		"Fallback to memory":           {local},
		"Fallback(DenyCache)":          {cache, open},
		"Fallback(Bans)":               {bans, open},
		"DenyCache(Fallback)":          {open, cache},
		"Fallback(Leased)":             {slices, open},
		"Fallback(DenyCache(Leased))":  {slices, cache, open},
		"Fallback(Choice)":             {choice, open},
		"Fallback(budget, Choice)":     {choice, bounded},
		"Choice(Fallback)":             {open, choice},
		"Fallback(Shadow)":             {shadow, open},
		"Shadow(Fallback)":             {open, shadow},
		"Fallback(Fallback)":           {open, local},
		"Fallback(DenyCache(Choice))":  {choice, cache, open},
		"DenyCache(Choice(Fallback))":  {open, choice, cache},
		"Fallback(Choice(Fallback))":   {open, choice, local},
		"Choice(Fallback(Choice))":     {choice, open, choice},
		"Fallback(Choice(Fallback…)))": {choice, open, choice, bounded},
	}
	for leaf, build := range leaves {
		for policy, arounds := range policies {
			t.Run(fmt.Sprintf("%s of %s", policy, leaf), func(t *testing.T) {
				o := newOutage(t)
				fresh := func() ratelimit.Limiter { // what an operation takes denies nothing to the next
					o.server.FlushAll()
					l := build(o)
					for _, around := range arounds {
						l = around(l, o)
					}
					return l
				}
				for _, key := range []string{"k", ""} {
					for _, n := range []int{0, 1, 4, 2 * exact.Permits} {
						for _, op := range attemptsOf(key) {
							o.end()
							up := op.do(fresh(), n)
							o.begin()
							down := op.do(fresh(), n)
							l := fresh()
							_, _ = l.Peek(ctx, "another") // opens the breaker
							refused := op.do(l, n)
							what := fmt.Sprintf("%s of %d of %q", op.name, n, key)
							switch {
							case op.name == "Reset" && key != "": // which always asks Redis
							case n < 1 && errclass.IsMistake(up): // of two mistakes, either may be named
								require.True(t, errclass.IsMistake(down), "%s: up: %v; down: %v", what, up, down)
								require.True(t, errclass.IsMistake(refused), "%s: up: %v; breaker open: %v", what, up, refused)
							default:
								require.Equal(t, fmt.Sprint(up), fmt.Sprint(down), what)
								require.Equal(t, fmt.Sprint(up), fmt.Sprint(refused), what)
							}
						}
					}
				}
			})
		}
	}
}

// TestAnOutageMakesNoMistake: whatever the secondary is, a call that is no mistake while Redis works is none in an outage: the
// secondary decides it, or says why it cannot.
func TestAnOutageMakesNoMistake(t *testing.T) {
	o, other := newOutage(t), newOutage(t)
	secondaries := map[string]func() ratelimit.Limiter{
		"AllowAll": ratelimit.AllowAll, "DenyAll": ratelimit.DenyAll,
		"a local bucket":       func() ratelimit.Limiter { return localBucket(5) },
		"a small local bucket": func() ratelimit.Limiter { return localBucket(1) },
		"a window":             func() ratelimit.Limiter { return ratelimit.Must(ratelimit.NewFixedWindow(other.client, 2, time.Hour)) },
		"a bucket": func() ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewTokenBucket(other.client, ratelimit.PerHour(1), 2))
		},
		"an All": func() ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewAll(localBucket(5), localBucket(2)))
		},
		"Bans": func() ratelimit.Limiter {
			window := ratelimit.Must(ratelimit.NewFixedWindow(other.client, 2, time.Hour))
			return ratelimit.Must(ratelimit.NewBans(window, ratelimit.Must(ratelimit.NewPause(other.client)), []time.Duration{time.Minute}, time.Hour))
		},
		"a type of the user's": func() ratelimit.Limiter { return struct{ ratelimit.Limiter }{localBucket(2)} },
	}
	around := map[string]func(l ratelimit.Limiter) ratelimit.Limiter{
		"": func(l ratelimit.Limiter) ratelimit.Limiter { return l },
		"a Choice of ": func(l ratelimit.Limiter) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) { return l, nil }))
		},
		"a Fallback to ": func(l ratelimit.Limiter) ratelimit.Limiter {
			down := ratelimit.Must(ratelimit.NewFixedWindow(o.client, 3, time.Hour, ratelimit.WithName("standby")))
			return ratelimit.Must(ratelimit.NewFallback(down, l, ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 1, ProbeEvery: time.Hour})))
		},
	}
	cannot := func(secondary string) bool { return secondary == "an All" || secondary == "a type of the user's" }
	for secondary, build := range secondaries {
		for outer, policy := range around {
			t.Run(outer+secondary, func(t *testing.T) {
				fresh := func() ratelimit.Limiter {
					o.server.FlushAll()
					other.server.FlushAll()
					primary := ratelimit.Must(ratelimit.NewTokenBucket(o.client, ratelimit.PerHour(1), 3))
					return ratelimit.Must(ratelimit.NewFallback(primary, policy(build()), ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 1, ProbeEvery: time.Hour})))
				}
				for _, n := range []int{0, 1, 2, 3, 4} {
					for _, op := range attemptsOf("k") {
						if op.name == "Reset" { // which always asks Redis
							continue
						}
						o.end()
						up := op.do(fresh(), n)
						o.begin()
						l := fresh()
						for _, what := range []string{"asks", "breaker open"} {
							down := op.do(l, n)
							says := fmt.Sprintf("%s of %d, %s: up: %v; down: %v", op.name, n, what, up, down)
							switch {
							case errclass.IsMistake(up) && n < 1: // of two mistakes, either may be named
								require.True(t, errclass.IsMistake(down), says)
							case errclass.IsMistake(up):
								require.EqualError(t, down, up.Error(), says)
							case down == nil:
							case errclass.Is(down, errclass.Decision):
								require.Contains(t, op.name, "Reserve", says)
							default: // such limiters have no tickets, and stand beside no others
								require.True(t, errclass.Is(down, errclass.Outage), says)
								require.True(t, cannot(secondary) || op.name == "beside memory", says)
								require.NotContains(t, op.name, "Reserve", says)
							}
						}
					}
				}
			})
		}
	}
}

// attemptsOfHolds are all operations of permits that are held.
var attemptsOfHolds = map[string]func(h ratelimit.Holder, key string, n int) error{
	"TryAcquire": func(h ratelimit.Holder, key string, n int) error { _, _, err := h.TryAcquireN(ctx, key, n); return err },
	"Peek":       func(h ratelimit.Holder, key string, _ int) error { _, err := h.Peek(ctx, key); return err },
	"Look": func(h ratelimit.Holder, key string, n int) error {
		_, err := ratelimit.Look(ctx, ratelimit.ClaimHold(h, key, n))
		return err
	},
	"a claim": func(h ratelimit.Holder, key string, n int) error {
		_, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimHold(h, key, n))
		return err
	},
	"an estimate": func(h ratelimit.Holder, key string, n int) error {
		_, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimHold(h, key, n).Estimate())
		return err
	},
	"two claims": func(h ratelimit.Holder, key string, n int) error {
		_, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimHold(h, key, n), ratelimit.ClaimHold(h, key, n))
		return err
	},
	"two claims, one an estimate": func(h ratelimit.Holder, key string, n int) error {
		_, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimHold(h, key, n), ratelimit.ClaimHold(h, "another", 1).Estimate())
		return err
	},
}

// TestAMistakeOfHoldsIsTheSameInAnOutage is the same of permits that are held.
func TestAMistakeOfHoldsIsTheSameInAnOutage(t *testing.T) {
	type around = func(h ratelimit.Holder) ratelimit.Holder
	fallback := func(opts ...ratelimit.PolicyOption) around {
		return func(h ratelimit.Holder) ratelimit.Holder {
			opts := append(opts, ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 1, ProbeEvery: time.Hour}))
			return ratelimit.Must(ratelimit.NewHoldFallback(h, ratelimit.AllowHolds(), opts...))
		}
	}
	choice := func(h ratelimit.Holder) ratelimit.Holder {
		return ratelimit.Must(ratelimit.NewHoldChoice(func(context.Context, string) (ratelimit.Holder, error) { return h, nil }))
	}
	for policy, arounds := range map[string][]around{
		"Fallback":                 {fallback()},
		"Fallback(budget)":         {fallback(ratelimit.WithBudget(time.Minute))},
		"Fallback(Choice)":         {choice, fallback()},
		"Choice(Fallback)":         {fallback(), choice},
		"Fallback(budget, Choice)": {choice, fallback(ratelimit.WithBudget(time.Minute))},
	} {
		t.Run(policy, func(t *testing.T) {
			o := newOutage(t)
			fresh := func() ratelimit.Holder {
				o.server.FlushAll()
				var h ratelimit.Holder = ratelimit.Must(ratelimit.NewInFlight(o.client, 3, time.Hour))
				for _, around := range arounds {
					h = around(h)
				}
				return h
			}
			for name, attempt := range attemptsOfHolds {
				for _, key := range []string{"k", ""} {
					for _, n := range []int{0, 1, 4} {
						o.end()
						up := attempt(fresh(), key, n)
						o.begin()
						down := attempt(fresh(), key, n)
						h := fresh()
						_, _ = h.Peek(ctx, "another") // opens the breaker
						refused := attempt(h, key, n)
						require.Equal(t, fmt.Sprint(up), fmt.Sprint(down), "%s of %d of %q", name, n, key)
						require.Equal(t, fmt.Sprint(up), fmt.Sprint(refused), "%s of %d of %q", name, n, key)
					}
				}
			}
		})
	}
}

// TestAnOutageMakesNoMistakeOfHolds is the same of permits that are held.
func TestAnOutageMakesNoMistakeOfHolds(t *testing.T) {
	o, other := newOutage(t), newOutage(t)
	for secondary, build := range map[string]func() ratelimit.Holder{
		"AllowHolds": ratelimit.AllowHolds, "DenyHolds": ratelimit.DenyHolds,
		"a LocalInFlight":       func() ratelimit.Holder { return ratelimit.Must(ratelimit.NewLocalInFlight(5)) },
		"a small LocalInFlight": func() ratelimit.Holder { return ratelimit.Must(ratelimit.NewLocalInFlight(1)) },
		"an InFlight":           func() ratelimit.Holder { return ratelimit.Must(ratelimit.NewInFlight(other.client, 2, time.Hour)) },
	} {
		for outer, policy := range map[string]func(h ratelimit.Holder) ratelimit.Holder{
			"": func(h ratelimit.Holder) ratelimit.Holder { return h },
			"a Choice of ": func(h ratelimit.Holder) ratelimit.Holder {
				return ratelimit.Must(ratelimit.NewHoldChoice(func(context.Context, string) (ratelimit.Holder, error) { return h, nil }))
			},
			"a Fallback to ": func(h ratelimit.Holder) ratelimit.Holder {
				return ratelimit.Must(ratelimit.NewHoldFallback(ratelimit.Must(ratelimit.NewInFlight(o.client, 3, time.Hour, ratelimit.WithName("standby"))), h))
			},
		} {
			t.Run(outer+secondary, func(t *testing.T) {
				fresh := func() ratelimit.Holder {
					o.server.FlushAll()
					other.server.FlushAll()
					primary := ratelimit.Must(ratelimit.NewInFlight(o.client, 3, time.Hour))
					return ratelimit.Must(ratelimit.NewHoldFallback(primary, policy(build()), ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 1, ProbeEvery: time.Hour})))
				}
				for _, n := range []int{0, 1, 2, 3, 4} {
					for name, attempt := range attemptsOfHolds {
						o.end()
						up := attempt(fresh(), "k", n)
						o.begin()
						h := fresh()
						for range 2 { // asks, and with an open breaker
							require.Equal(t, fmt.Sprint(up), fmt.Sprint(attempt(h, "k", n)), "%s of %d", name, n)
						}
					}
				}
			})
		}
	}
}

// TestAnOutageMakesNoMistakeOfSeveral: of claims whose secondaries differ.
func TestAnOutageMakesNoMistakeOfSeveral(t *testing.T) {
	o, other := newOutage(t), newOutage(t)
	type secondary struct {
		where   string // it decides
		most    int    // permits
		limiter func(name string) ratelimit.Limiter
		holder  ratelimit.Holder
	}
	memory := func(most int) func(string) ratelimit.Limiter {
		return func(string) ratelimit.Limiter { return localBucket(most) }
	}
	secondaries := []secondary{
		{"", 99, func(string) ratelimit.Limiter { return ratelimit.AllowAll() }, ratelimit.AllowHolds()},
		{"", 0, func(string) ratelimit.Limiter { return ratelimit.DenyAll() }, ratelimit.DenyHolds()},
		{"memory", 2, memory(2), nil},
		{"memory", 1, func(string) ratelimit.Limiter {
			l := localBucket(1)
			return ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) { return l, nil }))
		}, nil},
		{"Redis", 2, func(name string) ratelimit.Limiter {
			return ratelimit.Must(ratelimit.NewTokenBucket(other.client, ratelimit.PerHour(1), 2, ratelimit.WithName(name)))
		}, nil},
	}
	calls := map[string]func(context.Context, ...ratelimit.Claim) (ratelimit.AllResult, error){
		"all": ratelimit.TryAcquireAll, "across slots": ratelimit.TryAcquireAcrossSlots, "look": ratelimit.Look,
		"once": func(ctx context.Context, claims ...ratelimit.Claim) (ratelimit.AllResult, error) {
			return ratelimit.TryAcquireOnce(ctx, "id", time.Hour, claims...)
		},
	}
	for a, first := range secondaries {
		for b, second := range secondaries {
			for c, third := range secondaries {
				if third.holder == nil && third.where != "memory" {
					continue
				}
				for n := range 5 {
					claims := func() []ratelimit.Claim {
						o.server.FlushAll()
						other.server.FlushAll()
						var all []ratelimit.Claim
						for i, s := range []secondary{first, second} {
							name := fmt.Sprint(i)
							primary := ratelimit.Must(ratelimit.NewTokenBucket(o.client, ratelimit.PerHour(1), 3, ratelimit.WithName(name)))
							all = append(all, ratelimit.ClaimOf(ratelimit.Must(ratelimit.NewFallback(primary, s.limiter(name))), "k", n))
						}
						all[0] = all[0].Estimate()
						holder := third.holder
						if holder == nil {
							holder = ratelimit.Must(ratelimit.NewLocalInFlight(third.most))
						}
						held := ratelimit.Must(ratelimit.NewInFlight(o.client, 3, time.Hour))
						return append(all, ratelimit.ClaimHold(ratelimit.Must(ratelimit.NewHoldFallback(held, holder)), "k", max(n, 1)))
					}
					for what, call := range calls {
						o.end()
						_, up := call(ctx, claims()...)
						o.begin()
						r, down := call(ctx, claims()...)
						says := fmt.Sprintf("%s of %d, by %d, %d, %d: up: %v; down: %v", what, n, a, b, c, up, down)
						where := first.where + second.where + third.where
						switch {
						case up != nil:
							require.EqualError(t, down, up.Error(), says)
						case down != nil:
							require.True(t, errclass.Is(down, errclass.Outage), says)
							require.ErrorContains(t, down, "nothing decides them together", says)
							require.True(t, strings.Contains(where, "Redis") && strings.Contains(where, "memory"), says)
						default:
							denies := n > min(first.most, second.most) || max(n, 1) > third.most
							require.Equal(t, []bool{true, !denies, denies}, []bool{r.Fallback, r.Allowed, r.RetryAfter > 0}, says)
						}
					}
				}
			}
		}
	}
}

// TestMemoryMakesNoMistakeADenial: a call that is a mistake is one too while a DenyCache knows of a denial.
func TestMemoryMakesNoMistakeADenial(t *testing.T) {
	o := newOutage(t)
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(o.client, ratelimit.PerHour(1), 3))
	window := ratelimit.Must(ratelimit.NewFixedWindow(o.client, 3, time.Hour))
	for name, leaf := range map[string]ratelimit.Limiter{"bucket": bucket, "window": window, "All": ratelimit.Must(ratelimit.NewAll(bucket, window)), "Choice": chosen(bucket)} {
		for _, n := range []int{0, 1, 3, 4} {
			for _, op := range attemptsOf("k") {
				o.server.FlushAll()
				want := op.do(ratelimit.Must(ratelimit.NewDenyCache(leaf)), n)
				cache := ratelimit.Must(ratelimit.NewDenyCache(leaf))
				must(t)(cache.TryAcquireN(ctx, "k", 3))
				must(t)(cache.TryAcquire(ctx, "k"))
				got := op.do(cache, n)
				require.Equal(t, errclass.IsMistake(want), errclass.IsMistake(got), "%s of %d by %s: %v; from memory: %v", op.name, n, name, want, got)
			}
		}
	}
}
