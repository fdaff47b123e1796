package ratelimit_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// TestARuleWaitsBesideWhatWasGivenBack: the permits that a caller whose clock is ahead gives back
// leave their instant behind. Its earlier permits deny a longer rule, whose RetryAfter holds.
func TestARuleWaitsBesideWhatWasGivenBack(t *testing.T) {
	for name, open := range map[string]func(testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnHeldRedis} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			for _, k := range limitertest.Kinds() {
				if k.Tenants { // whose waits beside another rule can be late, see docs/fair.md
					continue
				}
				s.Wipe(t)
				at := func(limit int, window, ahead time.Duration) settling {
					l, err := k.Build(s.Client, limit, window, ratelimit.WithMaxSkew(30*time.Second),
						ratelimit.WithClock(func() time.Time { return s.Now.Add(ahead) }))
					require.NoError(t, err)
					return l.(settling)
				}
				ahead, behind := at(5, 10*time.Second, 30*time.Second), at(1, 20*time.Second, 0)
				require.True(t, must(t)(ahead.TryAcquireN(ctx, k.Of("k"), 4)).Allowed)
				s.Advance(2 * time.Second)
				ticket, _, err := ahead.Estimate(ctx, k.Of("k"), 1)
				require.NoError(t, err)
				require.NoError(t, ticket.Settle(ctx, 0))
				denied := must(t)(behind.TryAcquire(ctx, k.Of("k")))
				require.False(t, denied.Allowed, k.Name)
				s.Advance(denied.RetryAfter - time.Microsecond)
				require.False(t, must(t)(behind.TryAcquire(ctx, k.Of("k"))).Allowed, "%s: before %v", k.Name, denied.RetryAfter)
				s.Advance(time.Microsecond)
				require.True(t, must(t)(behind.TryAcquire(ctx, k.Of("k"))).Allowed, "%s: at %v", k.Name, denied.RetryAfter)
			}
		})
	}
}

// TestGivingBackMakesNoWaitLonger: a bucket of a slow rule takes a permit back while a faster rule
// has taken more than the slow one can hold. These are refilled at the faster rate as before.
func TestGivingBackMakesNoWaitLonger(t *testing.T) {
	for name, open := range map[string]func(testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnHeldRedis} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			for _, k := range limitertest.Kinds() {
				if k.Bound(1, time.Second).Rate.Count == 0 || k.Tenants { // which get nothing back while another rule's state stands
					continue
				}
				s.Wipe(t)
				slow := ratelimit.Must(k.Build(s.Client, 2, 100*time.Second)).(settling)
				fast := ratelimit.Must(k.Build(s.Client, 50, 10*time.Second))
				ticket, _, err := slow.Estimate(ctx, k.Of("k"), 2)
				require.NoError(t, err)
				require.True(t, must(t)(fast.TryAcquireN(ctx, k.Of("k"), 22)).Allowed)
				denied := must(t)(slow.TryAcquireN(ctx, k.Of("k"), 1))
				require.NoError(t, ticket.Settle(ctx, 1))
				after := must(t)(slow.TryAcquireN(ctx, k.Of("k"), 1))
				require.False(t, after.Allowed, k.Name)
				require.LessOrEqual(t, after.RetryAfter, denied.RetryAfter, k.Name)
				require.Equal(t, 27, must(t)(fast.Peek(ctx, k.Of("k"))).Remaining, k.Name)
				s.Advance(after.RetryAfter - time.Microsecond)
				require.False(t, must(t)(slow.TryAcquire(ctx, k.Of("k"))).Allowed, k.Name)
				s.Advance(time.Microsecond)
				require.True(t, must(t)(slow.TryAcquire(ctx, k.Of("k"))).Allowed, k.Name)
			}
		})
	}
}

// TestSettlingBesideOtherRules: configurations of one algorithm that settle on the same key
// never fail, every key expires, and windows and logs keep the bound of guarantee 8.
func TestSettlingBesideOtherRules(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	for _, f := range limitertest.Families() {
		t.Run(f.Name, func(t *testing.T) {
			rng := model.Seeded(limitertest.Seed(t))
			for range limitertest.Rounds(40, 8) {
				s.Wipe(t)
				var pairs []limitertest.Pair
				var bounds []limitertest.Bound
				for range 2 + rng.IntN(2) {
					p, err := f.Draw(rng, s.Client, s.Opts...)
					require.NoError(t, err)
					if rng.IntN(2) == 0 {
						ratelimit.RemoveFew(t, p.Limiter)
					}
					pairs, bounds = append(pairs, p), append(bounds, p.Bound)
				}
				span := bounds[rng.IntN(len(bounds))].Window
				type held struct {
					*ratelimit.Ticket
					n, index int // of its call among the allowed ones
				}
				var tickets []held
				var allowed []limitertest.AllowedCall
				for i := range 60 {
					if rng.IntN(2) == 0 {
						s.Advance(time.Duration(rng.Int64N(1+int64(span)/4)) / time.Millisecond * time.Millisecond)
					}
					if s.Now.UnixMicro() > latest {
						break
					}
					by := rng.IntN(len(pairs))
					l := pairs[by].Limiter.(settling)
					n := 1 + rng.IntN(min(pairs[by].Model().Max(), 20))
					about := fmt.Sprintf("%s of %d: step %d, %d permits", pairs[by].About, len(pairs), i, n)
					allowedCall := limitertest.AllowedCall{At: s.Now.UnixMicro(), Instant: s.Now.UnixMicro(), By: by, N: n}
					switch rng.IntN(4) {
					case 0:
						ticket, _, err := l.Estimate(ctx, "k", n)
						require.NoError(t, err, about)
						if ticket != nil {
							tickets = append(tickets, held{ticket, n, len(allowed)})
							allowed = append(allowed, allowedCall)
						}
					case 1, 2:
						if len(tickets) == 0 {
							continue
						}
						j := rng.IntN(len(tickets))
						h := tickets[j]
						tickets = append(tickets[:j], tickets[j+1:]...)
						actual := rng.IntN(2) * rng.IntN(h.n+1)
						require.NoError(t, h.Settle(ctx, actual), about)
						allowed[h.index].N = actual
					default:
						taken, r, err := l.TryAcquireUpTo(ctx, "k", n)
						require.NoError(t, err, about)
						require.LessOrEqual(t, r.Remaining, r.Limit)
						if allowedCall.N = taken; taken > 0 {
							allowed = append(allowed, allowedCall)
						}
					}
					for _, key := range s.Admin.Keys(ctx, "*").Val() {
						require.Positive(t, s.Admin.PTTL(ctx, key).Val(), about)
					}
				}
				if bounds[0].Rate.Count > 0 {
					continue // full returns exceed it, see internal/testing/model
				}
				require.Empty(t, limitertest.Exceeded(bounds, allowed, 0), "%v: %v", bounds, allowed)
			}
		})
	}
}

// TestSettlingWithClocksApart: guarantees 2, 4, 7 and 8 where configurations whose clocks are apart give
// permits back, and charge. Permits that were given back count for nothing.
func TestSettlingWithClocksApart(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	for _, f := range limitertest.Families() {
		t.Run(f.Name, func(t *testing.T) {
			rng := model.Seeded(limitertest.Seed(t))
			for range limitertest.Rounds(40, 3) {
				c := drawConfigurations(t, s, rng, []limitertest.Family{f})
				for c.beyond {
					c = drawConfigurations(t, s, rng, []limitertest.Family{f})
				}
				c.playSettling(t, 60)
			}
		})
	}
}

// playSettling makes random calls, of which many are estimates.
func (c *contest) playSettling(t *testing.T, steps int) {
	type held struct {
		*ratelimit.Ticket
		n, by, index int // of its call among the allowed ones
	}
	var tickets []held
	var last ratelimit.Result
	for range steps {
		c.Advance(c.pause(last))
		if c.Now.After(lastDay) {
			break
		}
		if c.grain > time.Microsecond { // a TTL is whole milliseconds
			c.Move(c.Now.Add(time.Millisecond - 1).Truncate(time.Millisecond))
		}
		by := c.rng.IntN(len(c.all))
		r := c.all[by]
		l := r.limiter.(settling)
		late := time.Duration(0)
		if r.late > 0 {
			late = time.Duration(c.rng.Int64N(int64(r.late))).Truncate(time.Microsecond)
		}
		*r.reads = c.Now.Add(r.ahead - late)
		n := min(c.cost(r, last), 20)
		last = ratelimit.Result{}
		note := func(about string, of any) {
			c.steps = append(c.steps, fmt.Sprintf("%d at %d, reads %d, %s: %+v", by, c.Now.UnixMicro(), r.reads.UnixMicro(), about, of))
		}
		moved := func() { c.latest = max(c.latest, r.reads.UnixMicro()) }
		allowed := func(n int) {
			moved()
			c.allowedCalls = append(c.allowedCalls, limitertest.AllowedCall{At: c.Now.UnixMicro(), Instant: c.latest, By: by, N: n})
		}
		switch op := c.rng.IntN(10); {
		case op < 4:
			ticket, result, err := l.Estimate(ctx, "k", n)
			require.NoError(t, err)
			note(fmt.Sprintf("estimates %d", n), result)
			if last = result; ticket != nil {
				allowed(n)
				tickets = append(tickets, held{ticket, n, by, len(c.allowedCalls) - 1})
			}
		case op < 7 && len(tickets) > 0:
			j := c.rng.IntN(len(tickets))
			h := tickets[j]
			tickets = append(tickets[:j], tickets[j+1:]...)
			by, r = h.by, c.all[h.by]
			*r.reads = c.Now.Add(r.ahead)
			actual := c.rng.IntN(2) * c.rng.IntN(h.n+1)
			if r.bound.Rate.Count == 0 && c.rng.IntN(10) == 0 { // a bucket's debt would make waits longer
				actual = h.n + 1
				moved()
			}
			note(fmt.Sprintf("settles %d of", actual), h.n)
			before := c.written()
			require.NoError(t, h.Settle(ctx, actual))
			if r.bound.Rate.Count > 0 && c.written() != before {
				c.fail(t, "what is given back changes a bucket's instant or rule, %v", before)
			}
			c.allowedCalls[h.index].N = min(h.n, actual)
		case op == 7:
			taken, result, err := l.TryAcquireUpTo(ctx, "k", n)
			require.NoError(t, err)
			note(fmt.Sprintf("up to %d, got %d", n, taken), result)
			if taken > 0 {
				allowed(taken)
			}
		case op == 8:
			last = c.call(t, by, late)[0]
			n = 1
		default:
			last = c.call(t, by, late, n)[0]
		}
		for _, key := range c.Admin.Keys(ctx, "*").Val() {
			if ttl := c.Admin.PTTL(ctx, key).Val(); ttl < 0 {
				c.fail(t, "%s has no TTL", key)
			}
		}
		if last.RetryAfter > 0 && c.rng.IntN(3) == 0 {
			c.retry(t, by, late, n, last)
		}
	}
	if c.bounds()[0].Rate.Count > 0 {
		return // full returns exceed it, see internal/testing/model
	}
	c.settle(t)
}

// written is the instant of a bucket's state and the rule that wrote it.
func (c *contest) written() [2]string {
	for _, key := range c.Admin.Keys(ctx, "*").Val() {
		instant, rest, _ := strings.Cut(c.Admin.Get(ctx, key).Val(), "/")
		_, rule, _ := strings.Cut(rest, "/")
		return [2]string{instant, rule}
	}
	return [2]string{}
}

// TestGivingBackTakesNothingFromAFasterRule: what a slow rule took is refilled at the rate of a
// faster one as before, whether the slow rule gives to its own state or to that of another.
func TestGivingBackTakesNothingFromAFasterRule(t *testing.T) {
	eachBucket(t, func(t *testing.T, s *limitertest.Stage, slow, fast bucketKind) {
		s.Wipe(t)
		slowly := slow.build(s.Client, ratelimit.PerHour(1), 10)
		quickly := fast.build(s.Client, ratelimit.PerSecond(1), 10)
		first, _, err := slowly.Estimate(ctx, "k", 5)
		require.NoError(t, err)
		_, _, err = slowly.Estimate(ctx, "k", 5)
		require.NoError(t, err)
		s.Advance(10 * time.Second)
		full := ratelimit.Result{Allowed: true, Limit: 10, Window: 10 * time.Second, Remaining: 10}
		require.Equal(t, full, must(t)(quickly.Peek(ctx, "k")))
		require.NoError(t, first.Settle(ctx, 0))
		require.Equal(t, full, must(t)(quickly.Peek(ctx, "k")))
		left := must(t)(slowly.Peek(ctx, "k"))
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: 10, Window: left.Window, Remaining: 5, ResetAfter: 5*time.Hour - 10*time.Second}, left)
		require.True(t, must(t)(quickly.TryAcquireN(ctx, "k", 10)).Allowed)
	})
}

// A bucketKind builds buckets that refill evenly or in steps of a second.
type bucketKind struct {
	name string
	opts []ratelimit.Option
}

func (k bucketKind) build(c ratelimit.Client, rate ratelimit.Rate, burst int) *ratelimit.TokenBucket {
	return ratelimit.Must(ratelimit.NewTokenBucket(c, rate, burst, k.opts...))
}

// eachBucket runs a test with each two kinds of a bucket, on miniredis and on Redis.
func eachBucket(t *testing.T, test func(t *testing.T, s *limitertest.Stage, a, b bucketKind)) {
	kinds := []bucketKind{{"even", nil}, {"stepped", []ratelimit.Option{ratelimit.WithRefillEvery(time.Second)}}}
	for name, open := range map[string]func(testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnHeldRedis} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			for _, a := range kinds {
				for _, b := range kinds {
					t.Run(a.name+" beside "+b.name, func(t *testing.T) { test(t, s, a, b) })
				}
			}
		})
	}
}
