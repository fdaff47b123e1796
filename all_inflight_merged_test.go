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
// one on another. Time passes, so that leases and windows end.
func TestMergedCallsWithHoldsDecideAsIfMadeOneByOne(t *testing.T) {
	rng := model.Seeded(limitertest.Seed(t))
	allowed, denied, rounds := 0, 0, limitertest.Rounds(5_000, 300)
	for _, byCaller := range []bool{false, true} {
		var sides [2]struct {
			stage    *limitertest.Stage
			tokens   *ratelimit.TokenBucket
			requests *ratelimit.FixedWindow
			running  *ratelimit.InFlight
		}
		for i := range sides {
			s := limitertest.OnMiniredis(t)
			var clock []ratelimit.Option
			if byCaller {
				clock = append(clock, ratelimit.WithClock(func() time.Time { return s.Now }))
			}
			with := ratelimit.WithOptions(clock...)
			sides[i].stage = s
			sides[i].tokens = ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(2), 12, with))
			sides[i].requests = ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 6, 3*time.Second, with))
			sides[i].running = ratelimit.Must(ratelimit.NewInFlight(s.Client, 4, 2*time.Second, with))
		}
		for range rounds {
			pause := time.Duration(rng.IntN(900)) * time.Millisecond
			type demand struct {
				user, place string
				n, held     int
			}
			var demands []demand
			common := rng.IntN(2) == 0
			for range 1 + rng.IntN(6) {
				d := demand{user: fmt.Sprintf("{t}%d", rng.IntN(3)), n: 1 + rng.IntN(4), held: 1 + rng.IntN(2)}
				if d.place = d.user; common {
					d.place = "{t}all"
				}
				demands = append(demands, d)
			}
			var got [2][]ratelimit.AllResult
			for i, side := range sides {
				side.stage.Advance(pause)
				claims := func(d demand) []ratelimit.Claim {
					return []ratelimit.Claim{side.requests.Claim(d.user, 1), side.tokens.Claim(d.user, d.n).Estimate(), side.running.Claim(d.place, d.held)}
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
