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

// TestClocksNear1970: limiters of several rules share a key, and their clocks have just begun. No
// state gets an instant before 1970, which no script reads.
func TestClocksNear1970(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	for _, f := range limitertest.Families() {
		t.Run(f.Name, func(t *testing.T) {
			rng := model.Seeded(limitertest.Seed(t))
			for range limitertest.Rounds(100, 20) {
				s.Wipe(t)
				now := time.UnixMicro(rng.Int64N(2_000_000))
				clock := ratelimit.WithClock(func() time.Time { return now })
				var all []limitertest.Pair
				for range 3 {
					p, err := f.Draw(rng, s.Client, clock)
					require.NoError(t, err)
					all = append(all, p)
				}
				for i := range 30 {
					p := all[rng.IntN(len(all))]
					n := 1 + rng.IntN(min(p.Model().Max(), 20))
					about := fmt.Sprintf("%s: step %d, %d permits, at %d", p.About, i, n, now.UnixMicro())
					if r, ok := p.Limiter.(ratelimit.Reserver); ok && rng.IntN(2) == 0 {
						_, err := r.Reserve(ctx, "k", n, time.Hour)
						if err != nil {
							require.ErrorIs(t, err, ratelimit.ErrWaitTooLong, about)
						}
					} else {
						_, err := p.Limiter.TryAcquireN(ctx, "k", n)
						require.NoError(t, err, about)
					}
					now = now.Add(time.Duration(rng.Int64N(500_000)) * time.Microsecond)
				}
			}
		})
	}
}
