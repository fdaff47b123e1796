package ratelimit_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

// inBubbleHolds are limiters of permits in flight in a bubble: on Redis, in memory, and behind policies.
func inBubbleHolds(t *testing.T, limit int, test func(t *testing.T, env *ratelimittest.Env, h ratelimit.Holder)) {
	for name, holder := range map[string]func(f, local ratelimit.Holder) ratelimit.Holder{
		"Redis":  func(f, _ ratelimit.Holder) ratelimit.Holder { return f },
		"memory": func(_, local ratelimit.Holder) ratelimit.Holder { return local },
		"policies": func(f, local ratelimit.Holder) ratelimit.Holder {
			outage := ratelimit.Must(ratelimit.NewHoldFallback(f, local, ratelimit.WithBudget(time.Minute)))
			return ratelimit.Must(ratelimit.NewHoldChoice(func(context.Context, string) (ratelimit.Holder, error) { return outage, nil }))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := ratelimittest.New(t)
				f := ratelimit.Must(ratelimit.NewInFlight(env.Client(), limit, time.Hour))
				test(t, env, holder(f, ratelimit.Must(ratelimit.NewLocalInFlight(limit))))
			})
		})
	}
}

// TestWaitersAreServedInTheirOrder, each at the instant at which a place is released.
func TestWaitersAreServedInTheirOrder(t *testing.T) {
	inBubbleHolds(t, 2, func(t *testing.T, _ *ratelimittest.Env, h ratelimit.Holder) {
		began := time.Now()
		var mu sync.Mutex
		var served []string
		var all sync.WaitGroup
		for i := range 7 {
			all.Go(func() {
				r, err := ratelimit.WaitAll(t.Context(), ratelimit.ClaimHold(h, "k", 1))
				require.NoError(t, err)
				mu.Lock()
				served = append(served, fmt.Sprint(i, " at ", time.Since(began)))
				mu.Unlock()
				time.Sleep(10*time.Second + time.Duration(i)*time.Millisecond)
				require.NoError(t, r.Finish(t.Context(), nil))
			})
			time.Sleep(time.Second)
			synctest.Wait()
		}
		all.Wait()
		require.Equal(t, []string{"0 at 0s", "1 at 1s", "2 at 10s", "3 at 11.001s", "4 at 20.002s", "5 at 21.004s", "6 at 30.006s"}, served)
		_, r, err := h.TryAcquireN(t.Context(), "k", 2)
		require.NoError(t, err)
		require.True(t, r.Allowed)
	})
}

// TestACallForManyIsNotOvertaken by calls for few behind it in the line, as each line is of one limiter and key.
func TestACallForManyIsNotOvertaken(t *testing.T) {
	inBubbleHolds(t, 3, func(t *testing.T, _ *ratelimittest.Env, h ratelimit.Holder) {
		one, _, _ := h.TryAcquireN(t.Context(), "k", 1)
		two, _, _ := h.TryAcquireN(t.Context(), "k", 2)
		var order []int
		var mu sync.Mutex
		var all sync.WaitGroup
		for _, n := range []int{3, 1} {
			all.Go(func() {
				r, err := ratelimit.WaitAll(t.Context(), ratelimit.ClaimHold(h, "k", n))
				require.NoError(t, err)
				mu.Lock()
				order = append(order, n)
				mu.Unlock()
				require.NoError(t, r.Finish(t.Context(), nil))
			})
			synctest.Wait()
		}
		other, err := ratelimit.WaitAll(t.Context(), ratelimit.ClaimHold(h, "other", 3))
		require.NoError(t, err, "another line")
		require.NoError(t, other.Finish(t.Context(), nil))
		require.NoError(t, one.Release(t.Context()))
		time.Sleep(time.Minute)
		require.Empty(t, order)
		require.NoError(t, two.Release(t.Context()))
		all.Wait()
		require.Equal(t, []int{3, 1}, order)
	})
}

// TestAWaiterThatLeaves: those behind it go on, and it has no place.
func TestAWaiterThatLeaves(t *testing.T) {
	inBubbleHolds(t, 1, func(t *testing.T, _ *ratelimittest.Env, h ratelimit.Holder) {
		hold, _, _ := h.TryAcquire(t.Context(), "k")
		began := time.Now()
		var errs [3]error
		var at [3]time.Duration
		var all sync.WaitGroup
		for i, patience := range []time.Duration{3 * time.Second, 2 * time.Second, time.Hour} {
			all.Go(func() {
				waiting, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				var r ratelimit.AllResult
				r, errs[i] = ratelimit.WaitAll(waiting, ratelimit.ClaimHold(h, "k", 1))
				at[i] = time.Since(began)
				require.NoError(t, r.Finish(t.Context(), nil))
			})
			synctest.Wait()
		}
		time.Sleep(5 * time.Second)
		require.NoError(t, hold.Release(t.Context()))
		all.Wait()
		require.ErrorIs(t, errs[0], context.DeadlineExceeded)
		require.ErrorContains(t, errs[0], `waiting for "k"`)
		require.ErrorIs(t, errs[1], context.DeadlineExceeded, "it was never the first")
		require.NoError(t, errs[2])
		require.Equal(t, [3]time.Duration{3 * time.Second, 2 * time.Second, 5 * time.Second}, at)
	})
}

// TestAWaiterNoticesOtherProcesses: their releases within 0.32 s, and the end of a lease, if they have crashed, at once.
func TestAWaiterNoticesOtherProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := ratelimittest.New(t)
		f := ratelimit.Must(ratelimit.NewInFlight(env.Client(), 1, time.Minute))
		other := ratelimit.Must(ratelimit.NewInFlight(env.Client(), 1, time.Minute))
		for _, crashes := range []bool{false, true} {
			hold, _, err := other.TryAcquire(t.Context(), "k")
			require.NoError(t, err)
			began := time.Now()
			if !crashes {
				time.AfterFunc(10*time.Second, func() { _ = hold.Release(context.Background()) })
			}
			r, err := ratelimit.WaitAll(t.Context(), ratelimit.ClaimHold(f, "k", 1))
			require.NoError(t, err)
			if crashes {
				require.InDelta(t, time.Minute, time.Since(began), float64(5*time.Millisecond))
			} else {
				require.Less(t, time.Since(began)-10*time.Second, 320*time.Millisecond)
			}
			require.NoError(t, r.Finish(t.Context(), nil))
		}
	})
}

// TestWhatObserversSeeOfAWait: one call, with the time in the line.
func TestWhatObserversSeeOfAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := ratelimittest.New(t)
		rec := &recorder{}
		f := ratelimit.Must(ratelimit.NewInFlight(env.Client(), 1, time.Hour, rec.option()))
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(env.Client(), ratelimit.PerHour(1), 9, rec.option()))
		claims := []ratelimit.Claim{ratelimit.ClaimHold(f, "k", 1), ratelimit.ClaimOf(bucket, "k", 1)}
		hold, _, _ := f.TryAcquire(t.Context(), "k")
		rec.mu.Lock()
		rec.all = nil
		rec.mu.Unlock()
		for _, patience := range []time.Duration{2 * time.Second, time.Second, time.Hour, time.Hour} {
			go func() {
				waiting, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				r, _ := ratelimit.WaitAll(waiting, claims...)
				_ = r.Finish(context.Background(), nil)
			}()
			synctest.Wait()
		}
		time.Sleep(4 * time.Second)
		require.NoError(t, hold.Release(t.Context()))
		synctest.Wait()
		time.Sleep(time.Second)
		synctest.Wait()
		var seen []string
		rec.mu.Lock()
		defer rec.mu.Unlock()
		for _, o := range rec.all {
			if o.Call == "hold" || o.Call == "wait" {
				seen = append(seen, fmt.Sprint(o.Call, " ", o.Outcome, " ", o.Waited.Truncate(time.Second), " ", o.Latency.Truncate(time.Second), " ", o.HeldChange))
			}
		}
		require.Equal(t, []string{
			"hold failed 1s 1s 0", "wait failed 1s 1s 0", // it was never the first
			"hold failed 1s 1s 0", "wait failed 1s 1s 0", // in its last attempt
			"hold allowed 4s 4s 1", "wait allowed 4s 4s 0",
			"hold allowed 4s 4s 1", "wait allowed 4s 4s 0",
		}, seen)
	})
}

// TestAWaitForPlacesAndPermits asks when the limiter says so, and not at all if that is too late.
func TestAWaitForPlacesAndPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := ratelimittest.New(t)
		f := ratelimit.Must(ratelimit.NewInFlight(env.Client(), 1, time.Hour))
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(env.Client(), ratelimit.PerMinute(6), 1))
		claims := []ratelimit.Claim{ratelimit.ClaimHold(f, "k", 1), ratelimit.ClaimOf(bucket, "k", 1)}
		began := time.Now()
		for range 3 {
			r, err := ratelimit.WaitAll(t.Context(), claims...)
			require.NoError(t, err)
			require.Len(t, r.Parts, 2)
			require.NoError(t, r.Finish(t.Context(), nil))
		}
		require.GreaterOrEqual(t, time.Since(began), 20*time.Second)
		require.Less(t, time.Since(began), 20*time.Second+300*time.Millisecond)
		short, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		at := time.Now()
		for _, of := range [][]ratelimit.Claim{claims, claims[1:]} {
			var late *ratelimit.WaitError
			_, err := ratelimit.WaitAll(short, of...)
			require.ErrorAs(t, err, &late)
			require.Equal(t, "k", late.Key)
		}
		require.Zero(t, time.Since(at))
	})
}

// TestAWaitUnderAnID finds the hold of the call that it repeats.
func TestAWaitUnderAnID(t *testing.T) {
	inBubbleHolds(t, 1, func(t *testing.T, _ *ratelimittest.Env, h ratelimit.Holder) {
		claim := ratelimit.ClaimHold(h, "k", 1).As("job")
		first, err := ratelimit.WaitAll(t.Context(), claim)
		require.NoError(t, err)
		again, err := ratelimit.WaitAll(t.Context(), claim)
		require.NoError(t, err)
		require.Equal(t, []bool{false, true}, []bool{first.Repeated, again.Repeated})
	})
}

// TestAWaitThroughAnOutage ends with its error, or goes on by the secondary.
func TestAWaitThroughAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := ratelimittest.New(t)
		f := ratelimit.Must(ratelimit.NewInFlight(env.Client(), 1, time.Hour))
		outage := ratelimit.Must(ratelimit.NewHoldFallback(f, ratelimit.Must(ratelimit.NewLocalInFlight(1))))
		_, _, err := f.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		bare := make(chan error, 1)
		go func() {
			_, err := ratelimit.WaitAll(context.Background(), ratelimit.ClaimHold(f, "k", 1))
			bare <- err
		}()
		go func() {
			time.Sleep(time.Second)
			env.Down()
		}()
		r, err := ratelimit.WaitAll(t.Context(), ratelimit.ClaimHold(outage, "k", 1))
		require.NoError(t, err)
		require.True(t, r.Fallback)
		require.ErrorContains(t, <-bare, "connect")
	})
}

// TestManyWaiters: no more than the limit at once, and everybody is served.
func TestManyWaiters(t *testing.T) {
	f := ratelimit.Must(ratelimit.NewLocalInFlight(3))
	var running, most, served atomic.Int64
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			for i := range 15 {
				r, err := ratelimit.WaitAll(ctx, ratelimit.ClaimHold(f, fmt.Sprint(i%2), 1+i%3))
				if err != nil {
					return
				}
				n := running.Add(int64(1 + i%3))
				for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
				}
				running.Add(-int64(1 + i%3))
				served.Add(1)
				_ = r.Finish(ctx, nil)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 32*15, served.Load())
	require.LessOrEqual(t, most.Load(), int64(6), "of two keys")
}

// TestWaitersOfSeveralProcesses on a real server: the limit holds over all of them, and everybody is served.
func TestWaitersOfSeveralProcesses(t *testing.T) {
	s := limitertest.OnRedis(t)
	var running, most, served atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		f := ratelimit.Must(ratelimit.NewInFlight(s.Client, 3, time.Minute, ratelimit.WithName("waiters")))
		for range 6 {
			all.Go(func() {
				for range 3 {
					r, err := ratelimit.WaitAll(ctx, ratelimit.ClaimHold(f, "k", 1))
					if err != nil {
						t.Error(err)
						return
					}
					n := running.Add(1)
					for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
					}
					time.Sleep(time.Millisecond) // the work
					running.Add(-1)
					served.Add(1)
					if err := r.Finish(ctx, nil); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	all.Wait()
	require.EqualValues(t, 4*6*3, served.Load())
	require.LessOrEqual(t, most.Load(), int64(3))
}
