package ratelimit_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/limitertest"
	"github.com/tryacquire/ratelimit/internal/model"
)

// TestARuleWaitsBesideWhatWasGivenBack: the permits that a caller whose clock is ahead gives back
// leave their instant behind. Its earlier permits deny a longer rule, whose RetryAfter holds.
func TestARuleWaitsBesideWhatWasGivenBack(t *testing.T) {
	for name, open := range map[string]func(testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnHeldRedis} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			for _, k := range limitertest.Kinds() {
				s.Wipe(t)
				at := func(limit int, window, ahead time.Duration) settling {
					l, err := k.Build(s.Client, limit, window, ratelimit.WithMaxSkew(30*time.Second),
						ratelimit.WithClock(func() time.Time { return s.Now.Add(ahead) }))
					require.NoError(t, err)
					return l.(settling)
				}
				ahead, behind := at(5, 10*time.Second, 30*time.Second), at(1, 20*time.Second, 0)
				require.True(t, must(t)(ahead.TryAcquireN(ctx, "k", 4)).Allowed)
				s.Advance(2 * time.Second)
				ticket, _, err := ahead.Estimate(ctx, "k", 1)
				require.NoError(t, err)
				require.NoError(t, ticket.Settle(ctx, 0))
				denied := must(t)(behind.TryAcquire(ctx, "k"))
				require.False(t, denied.Allowed, k.Name)
				s.Advance(denied.RetryAfter - time.Microsecond)
				require.False(t, must(t)(behind.TryAcquire(ctx, "k")).Allowed, "%s: before %v", k.Name, denied.RetryAfter)
				s.Advance(time.Microsecond)
				require.True(t, must(t)(behind.TryAcquire(ctx, "k")).Allowed, "%s: at %v", k.Name, denied.RetryAfter)
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
					continue // full returns exceed it, see internal/model
				}
				var used []limitertest.AllowedCall
				for _, g := range allowed {
					if g.N > 0 {
						used = append(used, g)
					}
				}
				require.Empty(t, limitertest.Exceeded(bounds, used, 0), "%v: %v", bounds, used)
			}
		})
	}
}
