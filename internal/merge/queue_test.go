package merge

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/redisexec"
)

// TestFewCallsAreSentAtOnce, each on its own, whether they can be cancelled or not.
func TestFewCallsAreSentAtOnce(t *testing.T) {
	for _, cancellable := range []bool{false, true} {
		held(t, 100, func(t *testing.T, s *server, m *Merger) {
			within := ctx
			if cancellable {
				var cancel context.CancelFunc
				within, cancel = context.WithCancel(ctx)
				defer cancel()
			}
			var calls []*call
			for i := range FewCalls {
				calls = append(calls, acquire(within, m, "a", 1))
				require.Equal(t, singly("a"), s.take(), "call %d", i)
			}
			calls = append(calls, acquire(within, m, "a", 1))
			require.Empty(t, s.take())
			s.answerNext(nil)
			require.Equal(t, allowed(99), *calls[0])
			require.Equal(t, singly("a"), s.take(), "the one that waited")
			for i, c := range calls[1:] {
				require.Equal(t, waiting, *c)
				s.answerNext(nil)
				require.Equal(t, allowed(int64(98-i)), *c)
			}
			require.True(t, m.common.idle())
		})
	}
}

func TestCallsThatWaitAreSentTogether(t *testing.T) {
	held(t, 3, func(t *testing.T, s *server, m *Merger) {
		first := few(t, s, m)
		others := acquireAll(m, 1, "a", "a", "a", "a", "b")
		require.Empty(t, s.take(), "they wait for the first")
		s.answerNext(nil)
		requireCalls(t, first[:2], allowed(2), waiting)
		require.Equal(t, []string{"a 1x4, b 1"}, s.take())
		s.answerFew()
		requireCalls(t, others, allowed(2), allowed(1), allowed(0), denied(0), allowed(2))
		require.Empty(t, s.take())
	})
}

// TestManyCallersAreSoonMerged: the calls that were sent at once, while there were few,
// wait when they come again, and do not go on their own for ever.
func TestManyCallersAreSoonMerged(t *testing.T) {
	held(t, 1000, func(t *testing.T, s *server, m *Merger) {
		few(t, s, m)
		acquireAll(m, 1, slices.Repeat([]string{"a"}, 50)...)
		s.answerNext(nil)
		require.Equal(t, []string{"a 1x50"}, s.take())
		for range FewCalls - 1 {
			acquireAll(m, 1, "a")
			s.answerNext(nil)
			require.Empty(t, s.take(), "many are in flight")
		}
		s.answerNext(nil)
		require.Equal(t, []string{fmt.Sprintf("a 1x%d", FewCalls-1)}, s.take())
	})
}

// TestCallsThatWaitGoWhenFewAreLeft in flight, though a batch is among these.
func TestCallsThatWaitGoWhenFewAreLeft(t *testing.T) {
	held(t, 1000, func(t *testing.T, s *server, m *Merger) {
		few(t, s, m)
		acquireAll(m, 1, "a", "a", "a")
		s.answerNext(nil)
		require.Equal(t, []string{"a 1x3"}, s.take())
		acquireAll(m, 1, "b", "b")
		for range 2 {
			s.answerNext(nil)
			require.Empty(t, s.take())
		}
		s.answerNext(nil) // leaves four, and the three of the batch
		require.Equal(t, []string{"b 1x2"}, s.take())
		acquireAll(m, 1, "c")
		require.Empty(t, s.take())
	})
}

func TestACallThatGivesUpWhileItWaitsIsNotSent(t *testing.T) {
	held(t, 3, func(t *testing.T, s *server, m *Merger) {
		few(t, s, m)
		within, cancel := context.WithCancel(ctx)
		quitter := acquire(within, m, "a", 1)
		waiting := acquireAll(m, 1, "a")
		cancel()
		synctest.Wait()
		require.Equal(t, failed(context.Canceled), *quitter)
		s.answerNext(nil)
		require.Equal(t, singly("a"), s.take())
		s.answerFew()
		requireCalls(t, waiting, allowed(2))
	})
}

func TestACallThatGivesUpInFlightHarmsNoOther(t *testing.T) {
	held(t, 3, func(t *testing.T, s *server, m *Merger) {
		within, cancel := context.WithCancel(ctx)
		few(t, s, m)
		quitter := acquire(within, m, "a", 1)
		others := acquireAll(m, 1, "a", "b")
		s.answerNext(nil)
		require.Equal(t, []string{"a 1x2, b 1"}, s.take())
		cancel()
		synctest.Wait()
		require.Equal(t, failed(context.Canceled), *quitter)
		s.answerFew()
		requireCalls(t, others, allowed(1), allowed(2))
	})
}

// TestACallThatGivesUpStaysInFlight until Redis has answered: callers that give up do not
// make room for more executions.
func TestACallThatGivesUpStaysInFlight(t *testing.T) {
	held(t, 100, func(t *testing.T, s *server, m *Merger) {
		within, cancel := context.WithCancel(ctx)
		var quitters []*call
		for range FewCalls {
			quitters = append(quitters, acquire(within, m, "a", 1))
		}
		require.Len(t, s.take(), FewCalls)
		cancel()
		synctest.Wait()
		for _, c := range quitters {
			require.Equal(t, failed(context.Canceled), *c)
		}
		other := acquireAll(m, 1, "a")
		require.Empty(t, s.take())
		s.answerNext(nil)
		require.Equal(t, singly("a"), s.take())
		s.answerFew()
		requireCalls(t, other, allowed(100-FewCalls-1))
		require.True(t, m.common.idle())
	})
}

func TestAnErrorReachesExactlyTheCallsOfItsExecution(t *testing.T) {
	held(t, 3, func(t *testing.T, s *server, m *Merger) {
		boom := errors.New("boom")
		first := few(t, s, m)
		second := acquireAll(m, 1, "a", "b")
		s.answerNext(boom)
		third := acquireAll(m, 1, "a", "b")
		for range FewCalls - 1 {
			s.answerNext(nil)
		}
		s.answerNext(boom)
		s.answerNext(nil)
		requireCalls(t, first[:2], failed(boom), allowed(2))
		requireCalls(t, second, failed(boom), failed(boom))
		requireCalls(t, third, allowed(2), allowed(2))
	})
}

func TestASlowServerDoesNotHoldCallsBack(t *testing.T) {
	held(t, 100, func(t *testing.T, s *server, m *Merger) {
		few(t, s, m)
		for range maxInFlight {
			time.Sleep(minInterval)
			acquireAll(m, 1, "a")
			require.Equal(t, singly("a"), s.take())
		}
		acquireAll(m, 1, "a")
		time.Sleep(time.Second)
		require.Empty(t, s.take(), "what is in flight is bounded")
		s.answerFew()
		require.Empty(t, s.take(), "so many batches are in flight")
		s.answerNext(nil)
		require.Equal(t, singly("a"), s.take())
	})
}

// twoBatches has two batches held, so that not even 64 waiting calls are sent. Three
// answers later, few calls are in flight; FewCalls answers later, only these batches.
func twoBatches(t *testing.T, s *server, m *Merger) {
	t.Helper()
	few(t, s, m)
	for _, key := range []string{"first", "second"} {
		time.Sleep(minInterval)
		acquireAll(m, 1, key)
		require.Equal(t, singly(key), s.take())
	}
}

func TestABatchTakesABoundedNumberOfKeys(t *testing.T) {
	held(t, 100, func(t *testing.T, s *server, m *Merger) {
		twoBatches(t, s, m)
		var keys []string
		for i := range 2 * maxKeys {
			keys = append(keys, fmt.Sprint(i%(maxKeys+1)))
		}
		calls := acquireAll(m, 1, keys...)
		require.Empty(t, s.take())
		requests := func(keys []string) []string { return []string{strings.Join(singly(keys...), ", ")} }
		s.answerFew()
		require.Equal(t, requests(keys[:maxKeys]), s.take())
		s.answerNext(nil)
		require.Equal(t, requests(keys[maxKeys:]), s.take(), "in their order: a key that the first has waits behind another one")
		for range 3 {
			s.answerNext(nil)
		}
		for _, c := range calls {
			require.True(t, c.allowed)
		}
	})
}

func TestABatchTakesABoundedNumberOfCalls(t *testing.T) {
	held(t, 10_000, func(t *testing.T, s *server, m *Merger) {
		twoBatches(t, s, m)
		acquireAll(m, 1, slices.Repeat([]string{"k"}, maxCalls)...)
		acquireAll(m, 2, "k")
		s.answerFew()
		require.Equal(t, []string{fmt.Sprintf("k 1x%d", maxCalls)}, s.take())
		s.answerNext(nil)
		require.Equal(t, []string{"k 2"}, s.take())
	})
	held(t, 10_000, func(t *testing.T, s *server, m *Merger) {
		twoBatches(t, s, m)
		for i := range maxCalls + 1 { // each a run of its own
			acquireAll(m, 1+i%2, "k")
		}
		s.answerFew()
		require.Equal(t, []string{"k " + strings.Repeat("1x1,2x1,", maxCalls/2-1) + "1x1,2x1"}, s.take())
	})
}

// TestABatchThatCostsEnoughIsFollowedByAnother, in the order of their calls.
func TestABatchThatCostsEnoughIsFollowedByAnother(t *testing.T) {
	held(t, 10_000, func(t *testing.T, s *server, m *Merger) {
		s.Cost = redisexec.Cost{Permit: 1}
		few(t, s, m)
		for _, n := range []int{maxCost - 1, 2, maxCost - 1, 1} {
			acquire(ctx, m, "a", n)
		}
		s.answerNext(nil)
		require.Equal(t, []string{fmt.Sprint("a ", maxCost-1)}, s.take())
		s.answerNext(nil)
		require.Equal(t, []string{"a 2"}, s.take())
		s.answerNext(nil)
		require.Equal(t, []string{fmt.Sprintf("a %dx1,1x1", maxCost-1)}, s.take())
	})
}

// TestCallsThatABatchHasNoRoomForGoToo, while few are in flight.
func TestCallsThatABatchHasNoRoomForGoToo(t *testing.T) {
	for _, calls := range []int{FewCalls, FewCalls + 2} {
		held(t, 100_000, func(t *testing.T, s *server, m *Merger) {
			s.Cost = redisexec.Cost{Permit: 1}
			few(t, s, m)
			acquireAll(m, 1, slices.Repeat([]string{"a"}, FewCalls)...)
			s.answerFew()
			s.take()
			dear := fmt.Sprint("b ", maxCost)
			for range calls {
				acquire(ctx, m, "b", maxCost)
			}
			require.Empty(t, s.take())
			s.answerNext(nil)
			require.Equal(t, slices.Repeat([]string{dear}, FewCalls), s.take())
		})
	}
}

func TestRequestsAreRunsOfEqualCalls(t *testing.T) {
	type request struct {
		key string
		n   int
	}
	for want, requests := range map[string][]request{
		"k 1":              {{"k", 1}},
		"k 2":              {{"k", 2}},
		"k 2x1, l 1":       {{"k", 2}, {"l", 1}},
		"k 1x3":            {{"k", 1}, {"k", 1}, {"k", 1}},
		"k 1x2,5x1":        {{"k", 1}, {"k", 1}, {"k", 5}},
		"k 3x1,1x1,3x2":    {{"k", 3}, {"k", 1}, {"k", 3}, {"k", 3}},
		"k 2x3, l 2x1,1x1": {{"k", 2}, {"l", 2}, {"k", 2}, {"k", 2}, {"l", 1}},
	} {
		held(t, 100, func(t *testing.T, s *server, m *Merger) {
			few(t, s, m)
			left, calls, wants := map[string]int64{"k": 100, "l": 100}, []*call{}, []call{}
			for _, r := range requests {
				calls = append(calls, acquire(ctx, m, r.key, r.n))
			}
			for _, r := range requests {
				left[r.key] -= int64(r.n)
				wants = append(wants, allowed(left[r.key]))
			}
			s.answerNext(nil)
			require.Equal(t, []string{want}, s.take())
			s.answerFew()
			requireCalls(t, calls, wants...)
		})
	}
}

// TestCallsAfterABatchOfSeveralWaitForOthers, for crowdTime; after a batch of one call they are sent directly at once.
func TestCallsAfterABatchOfSeveralWaitForOthers(t *testing.T) {
	held(t, 100, func(t *testing.T, s *server, m *Merger) {
		time.Sleep(time.Second)
		inBatches := func(keys ...string) int {
			few(t, s, m)
			acquireAll(m, 1, keys...)
			s.answerFew()
			s.answerNext(nil)
			require.True(t, m.common.idle())
			s.take()
			time.Sleep(crowdTime)
			acquireAll(m, 1, "b")
			require.Equal(t, singly("b"), s.take())
			return m.common.batches
		}
		require.Zero(t, inBatches("a"))
		s.answerNext(nil)
		require.Equal(t, 1, inBatches("a", "a"))
		acquireAll(m, 1, "c")
		require.Equal(t, singly("c"), s.take())
		require.Equal(t, 2, m.common.batches)
		time.Sleep(time.Nanosecond)
		acquireAll(m, 1, "d")
		require.Equal(t, singly("d"), s.take())
		require.Equal(t, 2, m.common.batches)
		require.Zero(t, m.common.gathers)
	})
}

// TestCallsThatCanRunGoTogetherAfterABatch of several: the first one lets the others run before it is sent.
func TestCallsThatCanRunGoTogetherAfterABatch(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	q := New(&redisexec.Executor{}, behindP).common
	q.together = time.Since(epoch) + time.Hour // just now, for as long as the test takes
	var calls sync.WaitGroup
	var sent []*batch // one goroutine runs at a time
	for i := range FewCalls + 2 {
		calls.Go(func() {
			_, b, direct := q.enter(ctx, given, fmt.Sprint(i), take(1), noDeadline)
			if require.False(t, direct); b != nil {
				sent = append(sent, b)
			}
		})
	}
	calls.Wait()
	require.Len(t, sent, 1)
	require.Equal(t, FewCalls+2, sent[0].callers)
	require.Equal(t, FewCalls+2, q.calls)
	require.Zero(t, q.gathers)

	q.calls, q.gathers = 0, 1
	for _, key := range []string{"a", "b"} {
		_, b, direct := q.enter(ctx, given, key, take(1), noDeadline)
		require.False(t, direct)
		require.Nil(t, b, "another one gathers")
	}
	require.Equal(t, 2, q.callers)
}

func TestACrowdIsSentBehindASingleBatch(t *testing.T) {
	held(t, 1000, func(t *testing.T, s *server, m *Merger) {
		few(t, s, m)
		crowd := []string{fmt.Sprintf("a 1x%d", crowdThreshold)}
		for range 2 {
			acquireAll(m, 1, slices.Repeat([]string{"a"}, crowdThreshold-1)...)
			require.Empty(t, s.take())
			acquireAll(m, 1, "a")
			require.Equal(t, crowd, s.take())
		}
		acquireAll(m, 1, slices.Repeat([]string{"a"}, crowdThreshold)...)
		require.Empty(t, s.take(), "two are in flight")
	})
}

func TestACallIsSentOnceTheLastSendWasAWhileAgo(t *testing.T) {
	held(t, 100, func(t *testing.T, s *server, m *Merger) {
		time.Sleep(time.Second)
		few(t, s, m)
		time.Sleep(minInterval - 1)
		acquireAll(m, 1, "a")
		require.Empty(t, s.take())
		time.Sleep(time.Nanosecond)
		acquireAll(m, 1, "a")
		require.Equal(t, []string{"a 1x2"}, s.take())
	})
}

func TestACallThatWaitsIsSentThoughNothingElseHappens(t *testing.T) {
	held(t, 100, func(t *testing.T, s *server, m *Merger) {
		few(t, s, m)
		acquireAll(m, 1, "a")
		time.Sleep(maxDelay - 1)
		synctest.Wait()
		require.Empty(t, s.take())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Equal(t, []string{"a 1"}, s.take())
	})
}

func TestACallThatFoundNoSlotIsSentThoughNothingElseHappens(t *testing.T) {
	held(t, 100, func(t *testing.T, s *server, m *Merger) {
		twoBatches(t, s, m)
		for i := range 2*maxKeys + 1 {
			acquireAll(m, 1, fmt.Sprint(i))
		}
		for _, keys := range []int{maxKeys, maxKeys, 1} {
			require.Empty(t, s.take())
			time.Sleep(maxDelay)
			synctest.Wait()
			sent := s.take()
			require.Len(t, sent, 1)
			require.Equal(t, keys, strings.Count(sent[0], ",")+1)
		}
	})
}

func TestABatchHasTheLatestDeadlineOfItsCalls(t *testing.T) {
	held(t, 100, func(t *testing.T, s *server, m *Merger) {
		near, cancelNear := context.WithTimeout(ctx, time.Hour)
		far, cancelFar := context.WithTimeout(ctx, 2*time.Hour)
		defer cancelNear()
		defer cancelFar()
		latest, _ := far.Deadline()
		few(t, s, m)
		for _, within := range []context.Context{near, far, near} {
			acquire(within, m, "a", 1)
		}
		s.answerNext(nil)
		got := s.contexts[FewCalls]
		deadline, ok := got.Deadline()
		require.True(t, ok)
		require.True(t, deadline.Equal(latest), "%v, not %v", deadline, latest)
		require.NotNil(t, got.Done(), "or what a hook derives from it never ends")
		acquire(near, m, "a", 1)
		acquire(ctx, m, "a", 1)
		s.answerFew()
		require.ErrorIs(t, got.Err(), context.Canceled, "it ends with its batch")
		_, ok = s.contexts[FewCalls+1].Deadline()
		require.False(t, ok, "a call without a deadline waits for ever")
		s.answerNext(nil)
	})
}

func TestACallThatIsSentOnItsOwnHasItsOwnContext(t *testing.T) {
	type name struct{}
	held(t, 100, func(t *testing.T, s *server, m *Merger) {
		own := context.WithValue(ctx, name{}, "own")
		cancellable, cancel := context.WithCancel(own)
		defer cancel()
		acquire(own, m, "a", 1)
		acquire(cancellable, m, "a", 1)
		require.Equal(t, []context.Context{own, cancellable}, s.contexts, "sent directly")
		s.answerNext(nil)
		s.answerNext(nil)
		for i, alone := range []bool{true, false} {
			s.take()
			few(t, s, m)
			acquire(cancellable, m, "a", 1)
			if !alone {
				acquire(cancellable, m, "a", 1)
			}
			s.answerNext(nil)
			got := s.contexts[2+i*(FewCalls+1)+FewCalls]
			require.Equal(t, alone, got == cancellable, "a batch of one call, or of two")
			require.Equal(t, alone, got.Value(name{}) != nil)
			s.answerFew()
		}
	})
}

// TestABatchEndsWithTheLatestOfItsDeadlines, even for a hook that waits for that.
func TestABatchEndsWithTheLatestOfItsDeadlines(t *testing.T) {
	held(t, 100, func(t *testing.T, s *server, m *Merger) {
		begin := time.Now()
		var calls []*call
		few(t, s, m)
		for _, after := range []time.Duration{10 * time.Millisecond, 20 * time.Millisecond} {
			within, cancel := context.WithTimeout(ctx, after)
			defer cancel()
			calls = append(calls, acquire(within, m, "a", 1))
		}
		s.answerNext(nil)
		<-s.contexts[FewCalls].Done()
		require.Equal(t, 20*time.Millisecond, time.Since(begin))
		synctest.Wait()
		requireCalls(t, calls, failed(context.DeadlineExceeded), failed(context.DeadlineExceeded))
		s.answerFew()
	})
}

// TestGoroutinesEndWithTheirCalls: the bubble ends only when they have.
func TestGoroutinesEndWithTheirCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(1_000_000)
		m := New(s.Executor, asGiven)
		within, cancel := context.WithCancel(ctx)
		defer cancel()
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				for range 20 {
					if _, err := m.Acquire(within, "k", 1); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		require.Equal(t, 1000, s.used["k"])
		require.True(t, m.common.idle())
		require.Zero(t, m.common.gathers)
		require.Empty(t, m.common.waiting)
	})
}

// TestAPanicInACallersGoroutineLeavesTheQueueAsItWas.
func TestAPanicInACallersGoroutineLeavesTheQueueAsItWas(t *testing.T) {
	s := newServer(10)
	s.Client = panicking
	m := New(s.Executor, asGiven)
	for range 2 * maxInFlight {
		require.Panics(t, func() { _, _ = m.Acquire(ctx, "k", 1) })
	}
	require.True(t, m.common.idle())
}

// aQueue is one whose timer never fires, and whose last send was just now for as long
// as the test takes.
func aQueue(batches int) *queue {
	q := New(&redisexec.Executor{}, behindP).common
	q.batches, q.calls = batches, FewCalls
	q.timerSet = true
	justSent(q)
	return q
}

func justSent(q *queue) { q.lastSent = time.Since(epoch) + time.Hour }

// TestABatchThatNobodyWaitsForIsDropped, so that a hung server cannot fill the memory.
func TestABatchThatNobodyWaitsForIsDropped(t *testing.T) {
	q := aQueue(maxInFlight)
	var waiting []slot
	for i := range 10 * maxCalls {
		s, b, direct := q.enter(ctx, given, "k", take(1), noDeadline)
		require.Nil(t, b)
		require.False(t, direct)
		if i%(4*maxCalls) == 0 {
			waiting = append(waiting, s)
			continue
		}
		q.leave(s)
		require.LessOrEqual(t, len(q.waiting), len(waiting)+1)
		require.Equal(t, len(waiting), q.callers)
	}
	require.Len(t, waiting, 3)
	q.batches = 0
	for _, p := range waiting {
		b := q.take()
		require.Same(t, p.batch, b)
		require.Equal(t, 1, b.callers)
	}
	require.Nil(t, q.take())
	require.Empty(t, q.waiting)
	q.leave(waiting[0])
	require.Zero(t, q.callers, "its batch was sent")
}

// TestAFullBatchStaysFull when the one behind it is dropped.
func TestAFullBatchStaysFull(t *testing.T) {
	q := aQueue(maxInFlight)
	enter := func(key string, n int) slot {
		s, _, _ := q.enter(ctx, given, key, take(n), noDeadline)
		return s
	}
	for i := range maxKeys {
		enter(fmt.Sprint(i), 1)
	}
	full := q.waiting[0]
	q.leave(enter("x", 1))
	require.Len(t, q.waiting, 1)
	for i, key := range []string{"x", "0", "x"} {
		s := enter(key, 1+i%2)
		require.Same(t, q.waiting[1], s.batch)
	}
	require.Equal(t, maxKeys, full.calls)
	q.batches = 0
	require.Same(t, full, q.take())
	justSent(q)
	enter("0", 1)
	require.Equal(t, 4, q.take().calls)
	justSent(q)
	require.NotNil(t, enter("0", 1).batch)
	require.Len(t, q.waiting, 1)
}

// TestACallThatJoinsARunWhileABatchGathersGoesWithIt, and does not read the clock.
func TestACallThatJoinsARunWhileABatchGathersGoesWithIt(t *testing.T) {
	q := aQueue(2)
	q.gathers = 1
	enter := func(key string) *batch {
		_, b, _ := q.enter(ctx, given, key, take(1), noDeadline)
		return b
	}
	require.Nil(t, enter("a"))
	q.lastSent -= 2 * time.Hour // long ago
	require.Nil(t, enter("a"))
	require.NotNil(t, enter("b"), "it joined no run")
	justSent(q)
	require.Nil(t, enter("a"), "the last send was just now")
	q.lastSent -= 2 * time.Hour
	q.gathers = 0
	require.NotNil(t, enter("a"))
}
