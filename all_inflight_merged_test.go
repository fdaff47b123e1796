package ratelimit_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// TestMergedCallsWithHoldsDecideAsIfMadeOneByOne: random lists of calls that take a request, an estimate
// and permits in flight, of a few users or of all together, in one execution on one server and one by
// one on another. Of each limiter there are two plans on the same keys, of which a list uses some. Time
// passes, so that leases and windows end.
func TestMergedCallsWithHoldsDecideAsIfMadeOneByOne(t *testing.T) {
	rng := model.Seeded(limitertest.Seed(t))
	allowed, denied, rounds := 0, 0, limitertest.Rounds(5_000, 300)
	for _, byCaller := range []bool{false, true} {
		var sides [2]struct {
			stage    *limitertest.Stage
			tokens   [2]*ratelimit.TokenBucket
			requests [2]*ratelimit.FixedWindow
			running  [2]*ratelimit.InFlight
		}
		for i := range sides {
			s := limitertest.OnMiniredis(t)
			var clock []ratelimit.Option
			if byCaller {
				clock = append(clock, ratelimit.WithClock(func() time.Time { return s.Now }))
			}
			sides[i].stage = s
			for plan := range 2 {
				sides[i].tokens[plan] = ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(2+plan), 12-plan, clock...))
				sides[i].requests[plan] = ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 6-plan, time.Duration(3+plan)*time.Second, clock...))
				sides[i].running[plan] = ratelimit.Must(ratelimit.NewInFlight(s.Client, 4-plan, time.Duration(2+plan)*time.Second, clock...))
			}
		}
		for range rounds {
			pause := time.Duration(rng.IntN(900)) * time.Millisecond
			type demand struct {
				user, place string
				n, held     int
				plans       [3]int // of tokens, requests, running
			}
			var demands []demand
			common, plans := rng.IntN(2) == 0, [3]int{1 + rng.IntN(2), 1 + rng.IntN(2), 1 + rng.IntN(2)}
			for range 1 + rng.IntN(6) {
				d := demand{user: fmt.Sprintf("{t}%d", rng.IntN(3)), n: 1 + rng.IntN(4), held: 1 + rng.IntN(2)}
				if d.place = d.user; common {
					d.place = "{t}all"
				}
				for i, n := range plans {
					d.plans[i] = rng.IntN(n)
				}
				demands = append(demands, d)
			}
			var got [2][]ratelimit.AllResult
			for i, side := range sides {
				side.stage.Advance(pause)
				claims := func(d demand) []ratelimit.Claim {
					return []ratelimit.Claim{
						ratelimit.ClaimOf(side.requests[d.plans[1]], d.user, 1), ratelimit.ClaimOf(side.tokens[d.plans[0]], d.user, d.n).Estimate(),
						ratelimit.ClaimHold(side.running[d.plans[2]], d.place, d.held),
					}
				}
				if i == 0 {
					var calls [][]ratelimit.Claim
					for _, d := range demands {
						calls = append(calls, claims(d))
					}
					all, failed := ratelimit.AllMerged(t, calls)
					require.NotContains(t, failed, true)
					got[i] = all
				} else {
					for _, d := range demands {
						r, err := ratelimit.TryAcquireAll(ctx, claims(d)...)
						require.NoError(t, err)
						got[i] = append(got[i], r)
					}
				}
				for _, r := range got[i] {
					for j := range r.Parts {
						r.Parts[j].Hold, r.Parts[j].Ticket = nil, nil
					}
				}
			}
			require.Equal(t, got[1], got[0], "%v after %v", demands, pause)
			for _, r := range got[0] {
				if r.Allowed {
					allowed++
				} else {
					denied++
				}
			}
		}
	}
	t.Logf("%d allowed, %d denied", allowed, denied)
	if rounds > 1 {
		require.Greater(t, min(allowed, denied), 100)
	}
}
