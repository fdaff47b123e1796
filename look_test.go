package ratelimit_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// onServersClocks runs a test on stages whose limiters use the server's clock.
func onServersClocks(t *testing.T, test func(t *testing.T, s *limitertest.Stage)) {
	for name, stage := range map[string]func(testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnHeldRedis} {
		t.Run(name, func(t *testing.T) { test(t, stage(t)) })
	}
}

// A clockStep is by how much a clock is set back, and how much later the key is looked at.
type clockStep struct{ back, later time.Duration }

// clockSteps are far beyond a window of a second, within it, and between permits that are
// 200 ms apart.
func clockSteps() []clockStep {
	var all []clockStep
	for _, back := range []time.Duration{time.Hour, time.Minute, 900 * time.Millisecond, 300 * time.Millisecond, 100 * time.Millisecond} {
		for _, later := range []time.Duration{0, 10 * time.Millisecond, 250 * time.Millisecond, 999 * time.Millisecond} {
			all = append(all, clockStep{back, later})
		}
	}
	return all
}

// TestALookAfterAClockStepIsWhatACallAnswers: Peek after the server's clock has stepped back
// answers what a denied call at that instant does, and writes nothing. Then a cache that has
// stored the answer denies no longer than that call.
func TestALookAfterAClockStepIsWhatACallAnswers(t *testing.T) {
	raceflag.Skip(t)
	onServersClocks(t, func(t *testing.T, s *limitertest.Stage) {
		for _, v := range limitertest.Variants() {
			t.Run(v.Name, func(t *testing.T) {
				l, err := v.Build(s.Client)
				require.NoError(t, err)
				denied := 0
				for _, step := range clockSteps() {
					s.Wipe(t)
					cache, err := ratelimit.NewDenyCache(l)
					require.NoError(t, err)
					var since time.Duration
					cache.SetClock(func() time.Duration { return since })
					for range 3 {
						require.True(t, must(t)(l.TryAcquire(ctx, v.Of("k"))).Allowed)
						s.Advance(200 * time.Millisecond)
					}
					for must(t)(l.TryAcquire(ctx, v.Of("k"))).Allowed { // what a bucket has refilled
					}
					s.Advance(step.later - step.back)
					before, kept := s.Look(t, v.Key), s.Admin.PTTL(ctx, v.Key).Val()
					look := must(t)(cache.Peek(ctx, v.Of("k")))
					require.Equal(t, before, s.Look(t, v.Key), "%+v", step)
					require.Equal(t, kept.Round(100*time.Millisecond), s.Admin.PTTL(ctx, v.Key).Val().Round(100*time.Millisecond), "%+v", step)

					call := must(t)(l.TryAcquire(ctx, v.Of("k")))
					require.Equal(t, look.Allowed, call.Allowed, "%+v", step)
					if call.Allowed {
						require.Equal(t, look.Remaining-1, call.Remaining, "%+v", step)
						continue
					}
					denied++
					require.Equal(t, call, look, "%+v", step)
					require.LessOrEqual(t, look.RetryAfter, v.Window+v.Resets[2], "%+v", step)
					since += call.RetryAfter
					s.Advance(call.RetryAfter)
					require.True(t, must(t)(cache.TryAcquire(ctx, v.Of("k"))).Allowed, "%+v", step)
				}
				require.Positive(t, denied)
			})
		}
	})
}

// TestALookAtSeveralLimitersAfterAClockStepIsWhatACallAnswers is the same of several: each
// part is that of a denied call.
func TestALookAtSeveralLimitersAfterAClockStepIsWhatACallAnswers(t *testing.T) {
	onServersClocks(t, func(t *testing.T, s *limitertest.Stage) {
		limiters := make([]ratelimit.Limiter, 0, 5)
		flights := ratelimit.Must(ratelimit.NewInFlight(s.Client, 3, time.Second))
		for _, k := range limitertest.Kinds() {
			switch k.Name {
			case "SlidingWindow Hash", "SlidingWindow List", "SlidingWindow ZSet", "SlidingLog of two rules", "TokenBucket stepped":
				l, err := k.Build(s.Client, 3, time.Second, ratelimit.WithName(fmt.Sprint("n", len(limiters))))
				require.NoError(t, err)
				limiters = append(limiters, l)
			}
		}
		for i := 0; i+1 < len(limiters); i++ {
			for _, step := range clockSteps() {
				s.Wipe(t)
				claims := []ratelimit.Claim{ratelimit.ClaimOf(limiters[i], "k", 1), ratelimit.ClaimOf(limiters[i+1], "k", 1), ratelimit.ClaimHold(flights, "k", 1)}
				for range 3 {
					r, err := ratelimit.TryAcquireAll(ctx, claims...)
					require.NoError(t, err)
					require.True(t, r.Allowed)
					s.Advance(200 * time.Millisecond)
				}
				s.Advance(step.later - step.back)
				keys := s.Admin.Keys(ctx, "*").Val()
				before := map[string]string{}
				for _, key := range keys {
					before[key] = s.Look(t, key)
				}
				look, err := ratelimit.Look(ctx, claims...)
				require.NoError(t, err)
				for key, held := range before {
					require.Equal(t, held, s.Look(t, key), "%+v", step)
				}
				call, err := ratelimit.TryAcquireAll(ctx, claims...)
				require.NoError(t, err)
				require.Equal(t, look.Allowed, call.Allowed, "%+v", step)
				if !call.Allowed {
					require.Equal(t, call, look, "%+v", step)
				}
			}
		}
	})
}

// TestALookAtHeldPermitsAfterAClockStepIsWhatACallAnswers is the same of InFlight.
func TestALookAtHeldPermitsAfterAClockStepIsWhatACallAnswers(t *testing.T) {
	onServersClocks(t, func(t *testing.T, s *limitertest.Stage) {
		f := ratelimit.Must(ratelimit.NewInFlight(s.Client, 3, time.Second))
		const key = inFlightKey
		for _, step := range clockSteps() {
			s.Wipe(t)
			for range 3 {
				_, r, err := f.TryAcquire(ctx, "k")
				require.NoError(t, err)
				require.True(t, r.Allowed)
				s.Advance(200 * time.Millisecond)
			}
			s.Advance(step.later - step.back)
			before := s.Look(t, key)
			look := must(t)(f.Peek(ctx, "k"))
			require.Equal(t, before, s.Look(t, key), "%+v", step)
			_, call, err := f.TryAcquire(ctx, "k")
			require.NoError(t, err)
			require.Equal(t, look.Allowed, call.Allowed, "%+v", step)
			if !call.Allowed {
				require.Equal(t, call, look, "%+v", step)
			}
		}
	})
}
