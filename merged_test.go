package ratelimit_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// TestMergedCallsAnswerAsOneAfterTheOther drives batches of random calls for
// several keys through one execution each, and the models call by call.
func TestMergedCallsAnswerAsOneAfterTheOther(t *testing.T) {
	for _, f := range families() {
		t.Run(f.Name, func(t *testing.T) {
			rng := model.Seeded(limitertest.Seed(t))
			s := limitertest.OnMiniredis(t)
			for range limitertest.Rounds(10, 5) {
				first, err := f.Draw(rng, s.Client)
				require.NoError(t, err)
				s.Wipe(t)
				models := map[string]model.Model{}
				keys := []string{first.Of("a"), first.Of("b"), first.Of("c")}
				for _, key := range keys {
					models[key] = first.Model()
				}
				for range 25 {
					s.Advance(time.Duration(rng.Int64N(int64(models[first.Of("a")].Span())/2+1)) / time.Millisecond * time.Millisecond)
					var calls []model.Step
					var on []string
					for range 1 + rng.IntN(12) {
						n := 1
						if rng.IntN(3) == 0 {
							n = 1 + rng.IntN(min(3, models[first.Of("a")].Max()))
						}
						calls = append(calls, model.Step{N: n})
						on = append(on, keys[rng.IntN(len(keys))])
					}
					got := ratelimit.Merged(t, first.Limiter, calls, on)
					for i, call := range calls {
						want := models[on[i]].Take(s.Now.UnixMicro(), call.N, false)
						require.Equal(t, limitertest.ResultOf(want), got[i], "%s: call %d of %v on %v", first.About, i, calls, on)
					}
				}
			}
		})
	}
}

func TestMergedCallsInAClusterTakeEachPermitOnce(t *testing.T) {
	cluster := redistest.StartCluster(t)
	client := cluster.Client(t)
	for _, v := range limitertest.Variants() {
		t.Run(v.Name, func(t *testing.T) {
			clock := limitertest.NewClock()
			l, err := v.Build(client, ratelimit.WithClock(clock.Now), ratelimit.WithPrefix(v.Name))
			require.NoError(t, err)
			const keys, calls = 20, 10
			var wg sync.WaitGroup
			var mu sync.Mutex
			left := map[string]int{}
			for i := range keys * calls {
				wg.Go(func() {
					key := fmt.Sprint("k", i%keys)
					r, err := l.TryAcquire(ctx, v.Of(key))
					if err != nil {
						t.Error(err)
					}
					if r.Allowed {
						mu.Lock()
						left[fmt.Sprint(key, " left ", r.Remaining)]++
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			require.Len(t, left, 3*keys, "each permit of each key is taken once: %v", left)
			require.NoError(t, l.Reset(ctx, v.Of("k0")))
		})
	}
}

// TestCallsGivenUpBeforeTheirExecutionTakeNothing drives executions that random calls
// leave before they are sent, and the models with the calls that stay.
func TestCallsGivenUpBeforeTheirExecutionTakeNothing(t *testing.T) {
	rng := model.Seeded(limitertest.Seed(t))
	s := limitertest.OnMiniredis(t)
	for _, f := range families() {
		first, err := f.Draw(rng, s.Client)
		require.NoError(t, err)
		s.Wipe(t)
		models := map[string]model.Model{first.Of("a"): first.Model(), first.Of("b"): first.Model()}
		for range 40 {
			s.Advance(time.Duration(rng.Int64N(int64(models[first.Of("a")].Span())/2+1)) / time.Millisecond * time.Millisecond)
			var calls []model.Step
			var keys []string
			for range 1 + rng.IntN(10) {
				calls = append(calls, model.Step{N: 1 + rng.IntN(min(2, models[first.Of("a")].Max()))})
				keys = append(keys, []string{first.Of("a"), first.Of("b")}[rng.IntN(2)])
			}
			gone := rng.Perm(len(calls))[:rng.IntN(len(calls))]
			got := ratelimit.Merged(t, first.Limiter, calls, keys, gone...)
			for i, call := range calls {
				if slices.Contains(gone, i) {
					continue
				}
				want := models[keys[i]].Take(s.Now.UnixMicro(), call.N, false)
				require.Equal(t, limitertest.ResultOf(want), got[i], "%s: call %d of %v on %v without %v", first.About, i, calls, keys, gone)
			}
		}
	}
}
