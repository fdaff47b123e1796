package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/model"
	"github.com/tryacquire/ratelimit/internal/redistest"
	"github.com/tryacquire/ratelimit/internal/script"
)

// boarded is a flight of calls for these keys, and their seats.
func boarded(t testing.TB, m *merger, calls []model.Step, keys []string) (*flight, []seat) {
	t.Helper()
	f, last := newFlight(), map[string]int{}
	seats := make([]seat, len(calls))
	for i, call := range calls {
		var ok bool
		seats[i], ok = f.board(ctx, m.c.prefix, keys[i], call.N, endless, last)
		require.True(t, ok)
	}
	return f, seats
}

// fly sends calls together, as the merger would, and returns their results.
func fly(t testing.TB, c *core, calls []model.Step, keys []string) []Result {
	t.Helper()
	m := newMerger(c)
	f, seats := boarded(t, m, calls, keys)
	m.execute(f)
	<-f.landed
	results := make([]Result, len(calls))
	for i, s := range seats {
		words, index, err := s.outcome()
		require.NoError(t, err)
		results[i] = c.explain(words, int64(calls[i].N), index)
	}
	return results
}

func coreOf(t testing.TB, l Limiter) *core {
	t.Helper()
	switch l := l.(type) {
	case *FixedWindow:
		return l.core
	case *SlidingWindow:
		return l.core
	case *SlidingLog:
		return l.core
	case *TokenBucket:
		return l.core
	case *LeakyBucket:
		return l.core
	}
	t.Fatalf("%T has no core", l)
	return nil
}

// A gate is a client whose commands wait until it opens.
type gate struct {
	*redis.Client
	arrived chan redis.Cmder
	open    chan error // nil lets a command through
}

func newGate(client *redis.Client) *gate {
	return &gate{Client: client, arrived: make(chan redis.Cmder, 100), open: make(chan error, 100)}
}

func (g *gate) Process(ctx context.Context, cmd redis.Cmder) error {
	g.arrived <- cmd
	if err := <-g.open; err != nil {
		cmd.SetErr(err)
		return err
	}
	return g.Client.Process(ctx, cmd)
}

// gated is a limiter of 3 a second that merges behind a gate.
func gated(t testing.TB) (*TokenBucket, *gate) {
	s := onMini(t)
	g := newGate(s.client.(*redis.Client))
	h := &hand{at: start}
	l := Must(NewTokenBucket(g, PerSecond(3), 3, WithClock(h.now)))
	l.pooled = true
	l.merger = newMerger(l.core)
	return l, g
}

// waitFor polls until n calls wait for the next flight.
func waitFor(t testing.TB, m *merger, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		m.common.mu.Lock()
		defer m.common.mu.Unlock()
		return m.common.waiting == n
	}, 10*time.Second, time.Millisecond)
}

// atRest polls until nothing is in flight: no flight outlives its calls.
func atRest(t testing.TB, m *merger) {
	t.Helper()
	require.Eventually(t, func() bool {
		m.common.mu.Lock()
		defer m.common.mu.Unlock()
		return m.common.flying == 0
	}, 10*time.Second, time.Millisecond, "no flight outlives its calls")
}

// grounded keeps a merger from a second flight while one is in the air.
func grounded(m *merger) {
	m.common.mu.Lock()
	defer m.common.mu.Unlock()
	m.common.tookOff = time.Since(epoch) + time.Hour
}

type reply struct {
	Result
	err error
}

func acquireAll(l Limiter, ctx context.Context, n int, keys ...string) []chan reply {
	var replies []chan reply
	for _, key := range keys {
		done := make(chan reply, 1)
		replies = append(replies, done)
		go func() {
			r, err := l.TryAcquireN(ctx, key, n)
			done <- reply{r, err}
		}()
	}
	return replies
}

func TestCallsThatWaitGoTogether(t *testing.T) {
	l, g := gated(t)
	first := acquireAll(l, ctx, 1, "a")[0]
	require.Equal(t, "evalsha", (<-g.arrived).Args()[0], "a lone call goes at once")
	grounded(l.merger)
	others := acquireAll(l, ctx, 1, "a", "a", "a", "b")
	waitFor(t, l.merger, 4)
	require.Empty(t, g.arrived, "they wait for the landing")
	g.open <- nil // evalsha: NOSCRIPT
	<-g.arrived
	g.open <- nil // eval
	require.Equal(t, 2, (<-first).Remaining)
	require.Equal(t, "2", (<-g.arrived).Args()[2], "two keys")
	g.open <- nil
	<-g.arrived
	g.open <- nil
	granted := map[int]int{}
	denied := 0
	for i, done := range others {
		r := <-done
		require.NoError(t, r.err)
		switch {
		case i == 3:
			require.Equal(t, 2, r.Remaining, "key b")
		case r.Allowed:
			granted[r.Remaining]++
		default:
			denied++
		}
	}
	require.Equal(t, map[int]int{1: 1, 0: 1}, granted)
	require.Equal(t, 1, denied)
	require.Empty(t, g.arrived)
}

func TestWhoGivesUpWhileWaitingIsNotCharged(t *testing.T) {
	l, g := gated(t)
	first := acquireAll(l, ctx, 1, "a")[0]
	<-g.arrived
	grounded(l.merger)
	impatient, cancel := context.WithCancel(ctx)
	quitter := acquireAll(l, impatient, 1, "a")[0]
	waitFor(t, l.merger, 1)
	patient := acquireAll(l, ctx, 1, "a")[0]
	waitFor(t, l.merger, 2)
	cancel()
	gone := <-quitter
	require.ErrorIs(t, gone.err, context.Canceled)
	require.Zero(t, gone.Result)
	for range 3 { // evalsha, eval, and the patient one's evalsha
		g.open <- nil
	}
	require.Equal(t, 2, (<-first).Remaining)
	require.Equal(t, 1, (<-patient).Remaining, "the quitter took nothing")
}

func TestWhoGivesUpInFlightHarmsNobody(t *testing.T) {
	l, g := gated(t)
	impatient, cancel := context.WithCancel(ctx)
	quitter := acquireAll(l, impatient, 1, "a")[0]
	<-g.arrived
	grounded(l.merger)
	others := acquireAll(l, ctx, 1, "a", "b")
	waitFor(t, l.merger, 2)
	cancel()
	require.ErrorIs(t, (<-quitter).err, context.Canceled)
	for range 4 {
		g.open <- nil
	}
	for _, other := range others {
		r := <-other
		require.NoError(t, r.err)
		require.Equal(t, 2, r.Remaining, "go-redis did not send the quitter's call any more")
	}
}

func TestAnErrorReachesExactlyTheCallsOfItsExecution(t *testing.T) {
	l, g := gated(t)
	boom := errors.New("boom")
	first := acquireAll(l, ctx, 1, "a")[0]
	<-g.arrived
	grounded(l.merger)
	second := acquireAll(l, ctx, 1, "a", "b")
	waitFor(t, l.merger, 2)
	g.open <- nil
	<-g.arrived
	g.open <- nil
	require.NoError(t, (<-first).err)
	<-g.arrived // the second flight
	grounded(l.merger)
	third := acquireAll(l, ctx, 1, "a", "b")
	waitFor(t, l.merger, 2)
	g.open <- boom
	for i, key := range []string{"a", "b"} {
		r := <-second[i]
		require.ErrorIs(t, r.err, boom)
		require.ErrorContains(t, r.err, fmt.Sprintf("token bucket \"default\", key %q", key))
		require.Zero(t, r.Result)
	}
	g.open <- nil
	g.open <- nil
	require.Equal(t, 1, (<-third[0]).Remaining)
	require.Equal(t, 2, (<-third[1]).Remaining)
}

func TestSlowNetworkDoesNotMakeCallsWait(t *testing.T) {
	l, g := gated(t)
	for i := range maxFlying {
		l.merger.common.mu.Lock()
		l.merger.common.tookOff -= headway // as if the last left a while ago
		l.merger.common.mu.Unlock()
		acquireAll(l, ctx, 1, "a")
		<-g.arrived
		l.merger.common.mu.Lock()
		require.Equal(t, i+1, l.merger.common.flying)
		l.merger.common.mu.Unlock()
	}
	l.merger.common.mu.Lock()
	l.merger.common.tookOff -= headway
	l.merger.common.mu.Unlock()
	acquireAll(l, ctx, 1, "a")
	waitFor(t, l.merger, 1)
	require.Empty(t, g.arrived, "flights are bounded")
	close(g.open)
	atRest(t, l.merger)
}

func TestFlightsTakeABoundedNumberOfKeys(t *testing.T) {
	l := aLane(t, 0)
	var seats []seat
	for i := range 2 * maxKeys {
		seats = append(seats, l.board(ctx, fmt.Sprint(i%(maxKeys+1)), 1, endless))
	}
	require.Len(t, l.boarding, 2)
	require.Equal(t, maxKeys, l.boarding[0].keys)
	require.Equal(t, maxKeys, l.boarding[0].seats, "one that is known comes no more once another had to wait")
	require.Equal(t, maxKeys, l.boarding[1].seats)
	require.Equal(t, l.m.c.prefix+fmt.Sprint(maxKeys), l.boarding[1].runs[0].key, "in their order")
	require.Same(t, l.boarding[1], seats[maxKeys+1].flight)
}

func TestFlightsTakeABoundedNumberOfCalls(t *testing.T) {
	l := aLane(t, 0)
	for i := range maxSeats {
		require.Equal(t, i/2, l.board(ctx, "k", 1+i%2, endless).run/2)
	}
	require.Len(t, l.boarding, 1)
	l.board(ctx, "k", 2, endless)
	require.Len(t, l.boarding, 2)

	f, last := newFlight(), map[string]int{}
	_, ok := f.join("k", 1, 0)
	require.False(t, ok, "nobody is there to be joined")
	_, ok = f.board(ctx, "", "k", 1, 0, last)
	require.True(t, ok)
	for i := 1; i < maxSeats; i++ {
		s, ok := f.join("k", 1, 0)
		require.True(t, ok)
		require.Equal(t, seat{f, 0, i}, s)
	}
	_, ok = f.join("k", 1, 0)
	require.False(t, ok)
	_, ok = f.board(ctx, "", "k", 1, 0, last)
	require.False(t, ok)
}

func TestOnlyEqualRequestsForAKeyJoin(t *testing.T) {
	f, last := newFlight(), map[string]int{}
	f.board(ctx, "", "k", 2, 0, last)
	_, ok := f.join("k", 1, 0)
	require.False(t, ok)
	_, ok = f.join("l", 2, 0)
	require.False(t, ok)
	s, ok := f.join("k", 2, 0)
	require.True(t, ok)
	require.Equal(t, seat{f, 0, 1}, s)
	s, _ = f.board(ctx, "", "l", 2, 0, last)
	require.Equal(t, seat{f, 1, 0}, s)
	_, ok = f.join("k", 2, 0)
	require.False(t, ok, "it is not the latest")
	s, _ = f.board(ctx, "", "k", 2, 0, last)
	require.Equal(t, seat{f, 0, 2}, s)
	s, ok = f.join("k", 2, 0)
	require.True(t, ok)
	require.Equal(t, seat{f, 0, 3}, s)
}

func TestGoroutinesEndWithTheirCalls(t *testing.T) {
	s := onMini(t)
	l := Must(NewFixedWindow(s.client, 1000, time.Minute))
	must(t)(l.TryAcquire(ctx, "k"))
	before := runtime.NumGoroutine()
	cancellable, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 5 {
				must(t)(l.TryAcquire(cancellable, "k"))
			}
		})
	}
	wg.Wait()
	// Connections that miniredis serves may add a goroutine each.
	require.Eventually(t, func() bool {
		return runtime.NumGoroutine() <= before+2*int(s.client.(*redis.Client).PoolStats().TotalConns)
	}, 10*time.Second, time.Millisecond)
	atRest(t, l.merger)
	require.Zero(t, l.merger.common.landing)
	require.Zero(t, l.merger.common.waiting)
	require.Empty(t, l.merger.common.boarding)
}

func TestRunsAreWrittenShort(t *testing.T) {
	for want, permits := range map[string][]int{
		"1":           {1},
		"2x1":         {2},
		"1x3":         {1, 1, 1},
		"1x2,5x1":     {1, 1, 5},
		"3x1,1x1,3x2": {3, 1, 3, 3},
	} {
		f, last := newFlight(), map[string]int{}
		for _, n := range permits {
			f.board(ctx, "p:", "k", n, endless, last)
		}
		require.Equal(t, "p:k", f.runs[0].key)
		require.Equal(t, want, fmt.Sprintf("%s", f.requests(0)))
	}
}

// BenchmarkMerged is here for profiles; the comparison with others is in bench/.
func BenchmarkMerged(b *testing.B) {
	for _, keys := range []int{1, 10_000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			client := redistest.Shared(b).Client(b)
			l := Must(NewTokenBucket(client, PerSecond(1000), 100))
			names := make([]string, keys)
			for i := range names {
				names[i] = fmt.Sprint("user:", i)
			}
			b.ReportAllocs()
			b.SetParallelism(256 / runtime.GOMAXPROCS(0))
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := l.TryAcquire(ctx, names[rand.IntN(keys)]); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}

func TestFlightHasTheDeadlineOfTheMostPatient(t *testing.T) {
	near, far := time.Hour, 2*time.Hour
	f, last := newFlight(), map[string]int{}
	f.board(ctx, "", "k", 1, near, last)
	f.board(ctx, "", "k", 1, far, last)
	f.join("k", 1, near)
	c, cancel := f.context()
	got, ok := c.Deadline()
	require.True(t, ok)
	require.Equal(t, epoch.Add(far), got)
	require.NotNil(t, c.Done(), "or what a hook derives from it never ends")
	cancel()
	require.ErrorIs(t, c.Err(), context.Canceled)
	f.join("k", 1, endless)
	c, _ = f.context()
	_, ok = c.Deadline()
	require.False(t, ok)
}

// TestAFlightEndsWithItsMostPatientCall: also for a hook that waits for that.
func TestAFlightEndsWithItsMostPatientCall(t *testing.T) {
	s := onMini(t)
	client := s.client.(*redis.Client)
	var waited atomic.Int64
	client.AddHook(hook{process: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		ctx, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		<-ctx.Done()
		waited.Add(1)
		return ctx.Err()
	}})
	l := Must(NewTokenBucket(client, PerHour(1), 3))
	f, last := newFlight(), map[string]int{}
	deadline := time.Since(epoch) + 20*time.Millisecond
	for range 2 {
		f.board(ctx, l.prefix, "k", 1, deadline, last)
	}
	l.merger.execute(f)
	_, _, err := seat{f, 0, 0}.outcome()
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.EqualValues(t, 1, waited.Load())
}

func TestASingleCallHasItsOwnContext(t *testing.T) {
	type name struct{}
	own := context.WithValue(ctx, name{}, "own")
	f, last := newFlight(), map[string]int{}
	f.board(own, "", "k", 1, endless, last)
	c, _ := f.context()
	require.Equal(t, own, c)
	f.join("k", 1, endless)
	c, _ = f.context()
	require.Nil(t, c.Value(name{}))
}

// aLane is one by itself: its timer never rings, and the last take-off was just now
// for as long as the test takes.
func aLane(t *testing.T, flying int) *lane {
	m := newMerger(Must(NewTokenBucket(onMini(t).client, PerSecond(1), 1)).core)
	m.common.flying = flying
	m.common.armed = true
	grounded(m)
	return m.common
}

// TestFlightsThatNobodyWaitsForAreLetGo, lest a server that hangs fills the
// memory.
func TestFlightsThatNobodyWaitsForAreLetGo(t *testing.T) {
	l := aLane(t, maxFlying)
	var patient []seat
	for i := range 10 * maxSeats {
		s, f, alone := l.enter(ctx, "k", 1, endless, false)
		require.Nil(t, f)
		require.False(t, alone)
		if i%(4*maxSeats) == 0 {
			patient = append(patient, s)
			continue
		}
		l.leave(s)
		require.LessOrEqual(t, len(l.boarding), len(patient)+1)
		require.Equal(t, len(patient), l.waiting)
	}
	require.Len(t, patient, 3)
	l.flying = 0
	for _, p := range patient {
		f := l.takeOff()
		require.Same(t, p.flight, f)
		require.Equal(t, 1, f.seats)
	}
	require.Nil(t, l.takeOff())
	require.Empty(t, l.boarding)
	l.leave(patient[0])
	require.Zero(t, l.waiting, "it was on board")
}

// TestAFullFlightStaysFull when the one behind it is let go.
func TestAFullFlightStaysFull(t *testing.T) {
	l := aLane(t, maxFlying)
	enter := func(key string, n int) seat {
		s, _, _ := l.enter(ctx, key, n, endless, false)
		return s
	}
	for i := range maxKeys {
		enter(fmt.Sprint(i), 1)
	}
	full := l.boarding[0]
	l.leave(enter("x", 1))
	require.Len(t, l.boarding, 1)
	for i, key := range []string{"x", "0", "x"} {
		s := enter(key, 1+i%2)
		require.True(t, s.flight == l.boarding[1])
	}
	require.Equal(t, maxKeys, full.handed)
	l.flying = 0
	require.True(t, full == l.takeOff())
	grounded(l.m)
	enter("0", 1)
	require.Equal(t, 4, l.takeOff().handed)
	grounded(l.m)
	require.NotNil(t, enter("0", 1).flight)
	require.Len(t, l.boarding, 1)
}

// TestManyWhoWaitTakeOffBehindASingleFlight, and fewer do not.
func TestManyWhoWaitTakeOffBehindASingleFlight(t *testing.T) {
	l, g := gated(t)
	acquireAll(l, ctx, 1, "a")
	<-g.arrived
	grounded(l.merger)
	for range rush - 1 {
		acquireAll(l, ctx, 1, "a")
	}
	waitFor(t, l.merger, rush-1)
	require.Empty(t, g.arrived)
	acquireAll(l, ctx, 1, "a")
	require.Equal(t, fmt.Sprintf("1x%d", rush), fmt.Sprintf("%s", (<-g.arrived).Args()[8]))
	grounded(l.merger)
	for range rush {
		acquireAll(l, ctx, 1, "a")
	}
	waitFor(t, l.merger, rush)
	require.Empty(t, g.arrived, "two are in the air")
	close(g.open)
}

// TestWhoJoinsARunDuringALandingGoesWithIt, and does not look at the clock.
func TestWhoJoinsARunDuringALandingGoesWithIt(t *testing.T) {
	l := aLane(t, 2)
	l.landing = 1
	enter := func(key string) *flight {
		_, f, _ := l.enter(ctx, key, 1, endless, false)
		return f
	}
	require.Nil(t, enter("a"))
	l.tookOff -= 2 * time.Hour // long ago
	require.Nil(t, enter("a"))
	require.NotNil(t, enter("b"), "it joined no run")
	grounded(l.m)
	require.Nil(t, enter("a"), "that just took off")
	l.tookOff -= 2 * time.Hour
	l.landing = 0
	require.NotNil(t, enter("a"))
}

func TestWhoWaitsTakesOffWithoutALandingOrAnotherCall(t *testing.T) {
	l, g := gated(t)
	acquireAll(l, ctx, 1, "a")
	<-g.arrived
	acquireAll(l, ctx, 1, "a")
	<-g.arrived // though the first is still in flight, and nobody else calls
	close(g.open)
}

func TestWhoFindsNoSeatTakesOffWithoutALandingOrAnotherCall(t *testing.T) {
	l, g := gated(t)
	for range 2 { // a rush takes off behind a single one
		acquireAll(l, ctx, 1, "a")
		<-g.arrived
	}
	grounded(l.merger)
	for i := range 2*maxKeys + 1 {
		acquireAll(l, ctx, 1, fmt.Sprint(i))
	}
	waitFor(t, l.merger, 2*maxKeys+1)
	lane := l.merger.common
	lane.mu.Lock()
	lane.tookOff -= time.Hour
	lane.mu.Unlock()
	lane.start(lane.ring())
	for range 3 {
		<-g.arrived
	}
	close(g.open)
}

func TestAPanicOfTheClockIsAnError(t *testing.T) {
	cancellable, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, merging := range [][]Option{nil, {WithoutMerging()}} {
		s := onMini(t)
		l := Must(NewTokenBucket(s.client, PerSecond(1), 1, WithOptions(append(merging, WithClock(func() time.Time { panic("boom") }))...)))
		for range 2 {
			_, err := l.TryAcquire(cancellable, "k")
			require.ErrorContains(t, err, `token bucket "default", key "k": the client or the clock panicked: boom`)
		}
	}
}

// hook is what a client does with commands and pipelines; nil: as it would.
type hook struct {
	process  func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error
	pipeline func(ctx context.Context, cmds []redis.Cmder) error
}

func (hook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	if h.process == nil {
		return next
	}
	return func(ctx context.Context, cmd redis.Cmder) error { return h.process(ctx, cmd, next) }
}

func (h hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	if h.pipeline == nil {
		return next
	}
	return h.pipeline
}

// exiting ends the goroutine, as FailNow of a test would.
var exiting = hook{process: func(context.Context, redis.Cmder, redis.ProcessHook) error {
	runtime.Goexit()
	return nil
}}

func TestAHookThatEndsTheGoroutineIsAnError(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	client.AddHook(exiting)
	l := Must(NewTokenBucket(client, PerSecond(1), 1))
	cancellable, cancel := context.WithCancel(ctx)
	defer cancel()
	for range 2 * maxFlying {
		_, err := l.TryAcquire(cancellable, "k")
		require.ErrorIs(t, err, errEnded)
		_, err = l.Peek(cancellable, "k")
		require.ErrorIs(t, err, errEnded)
		require.ErrorIs(t, l.Reset(cancellable, "k"), errEnded)
		require.ErrorIs(t, l.Preload(cancellable), errEnded)
	}
	atRest(t, l.merger)
}

// TestAPipelineThatWasNotSentIsAnError: go-redis tells its commands nothing then,
// and nothing is how a bucket tells that it is full.
func TestAPipelineThatWasNotSentIsAnError(t *testing.T) {
	refused := errors.New("the circuit breaker is open")
	for _, hooked := range []error{refused, nil} {
		s := onMini(t)
		ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": s.client.(*redis.Client).Options().Addr}})
		t.Cleanup(func() { _ = ring.Close() })
		ring.AddHook(hook{pipeline: func(context.Context, []redis.Cmder) error { return hooked }})
		for _, l := range []Limiter{
			Must(NewTokenBucket(ring, PerHour(1), 3)), Must(NewFixedWindow(ring, 3, time.Hour)), Must(NewSlidingWindow(ring, 3, time.Hour)),
		} {
			m := coreOf(t, l).merger
			f, seats := boarded(t, m, ones(5), []string{"a", "b", "b", "c", "d"})
			m.execute(f)
			for _, s := range seats {
				_, _, err := s.outcome()
				if hooked == nil {
					require.ErrorContains(t, err, "the client did not send the command")
				} else {
					require.ErrorIs(t, err, refused)
				}
			}
		}
		require.Zero(t, s.admin.DBSize(ctx).Val())
	}
}

// TestOutcomeOfAPipelinesCommand: what was told of it, else why the pipeline was
// not sent, and never the server's reply to another.
func TestOutcomeOfAPipelinesCommand(t *testing.T) {
	refused, corrupt := errors.New("refused"), serverError("WRONGTYPE of another key")
	packed := Must(NewTokenBucket(offline{t}, PerSecond(1), 1)).core
	listed := Must(NewSlidingWindow(offline{t}, 1, time.Second)).core
	for _, test := range []struct {
		told bool
		own  error
		exec error
		want string // empty: none
	}{
		{told: true},
		{told: true, exec: corrupt},
		{told: true, own: refused, exec: corrupt, want: "refused"},
		{exec: refused, want: "refused"},
		{exec: corrupt, want: "the client did not send the command"},
		{want: "the client did not send the command"},
	} {
		for _, c := range []*core{packed, listed} {
			for _, s := range []*script.Script{c.one, c.many} {
				l := leg{script: s, cmd: redis.NewIntSliceCmd(ctx)}
				if s == c.one {
					l.cmd = c.command(ctx, nil)
				}
				if test.told {
					l.cmd.SetErr(test.own)
					switch cmd := l.cmd.(type) {
					case *redis.IntCmd:
						cmd.SetVal(0)
					case *redis.IntSliceCmd:
						cmd.SetVal(make([]int64, c.words))
					}
				}
				_, err := l.reply(c, test.exec)
				if test.want == "" {
					require.NoError(t, err)
				} else {
					require.EqualError(t, err, test.want)
				}
			}
		}
	}
}

type serverError string

func (e serverError) Error() string { return string(e) }
func (serverError) RedisError()     {}

// TestACommandThatAHookKeptIsAnError, also if the hook says that all is well.
func TestACommandThatAHookKeptIsAnError(t *testing.T) {
	s := onMini(t)
	silent := hook{
		process:  func(context.Context, redis.Cmder, redis.ProcessHook) error { return nil },
		pipeline: func(context.Context, []redis.Cmder) error { return nil },
	}
	client := s.client.(*redis.Client)
	ring := redis.NewRing(&redis.RingOptions{
		Addrs: map[string]string{"a": client.Options().Addr},
		NewClient: func(o *redis.Options) *redis.Client {
			shard := redis.NewClient(o)
			shard.AddHook(silent)
			return shard
		},
	})
	t.Cleanup(func() { _ = ring.Close() })
	client.AddHook(silent)
	for _, c := range []Client{client, ring} {
		for _, l := range []Limiter{
			Must(NewTokenBucket(c, PerHour(1), 3)), Must(NewFixedWindow(c, 3, time.Hour)), Must(NewSlidingWindow(c, 3, time.Hour)),
		} {
			_, err := l.TryAcquire(ctx, "k")
			require.ErrorContains(t, err, "reply")
			_, err = l.Peek(ctx, "k")
			require.ErrorContains(t, err, "reply")
			_, errs := together(t, l, "a", "b", "b", "c")
			for _, err := range errs {
				require.Error(t, err)
			}
		}
	}
	require.Zero(t, s.admin.DBSize(ctx).Val())
}

// TestLanesOfServersThatAreGone are forgotten, and those in use are not.
func TestLanesOfServersThatAreGone(t *testing.T) {
	m := newMerger(Must(NewTokenBucket(offline{t}, PerSecond(1), 1)).core)
	var servers []*redis.Client
	m.route = func(_ context.Context, key string) (*redis.Client, error) {
		servers = append(servers, redis.NewClient(&redis.Options{Addr: key}))
		t.Cleanup(func() { _ = servers[len(servers)-1].Close() })
		return servers[len(servers)-1], nil
	}
	m.routed.Store(true)
	busy := m.lane(ctx, "busy")
	busy.flying = 1
	for i := range 1000 {
		l := m.lane(ctx, fmt.Sprint(i))
		at, ok := m.lanes.Load(servers[len(servers)-1])
		require.True(t, ok)
		require.Same(t, l, at)
	}
	lanes := 0
	m.lanes.Range(func(any, any) bool { lanes++; return true })
	require.LessOrEqual(t, lanes, 66)
	at, _ := m.lanes.Load(servers[0])
	require.Same(t, busy, at)
}

func TestAPlainClientOnAClusterMergesApart(t *testing.T) {
	redistest.Require(t, "redis-server")
	server := redistest.Start(t, redistest.Args("--cluster-enabled", "yes"))
	client := server.Client(t)
	require.NoError(t, client.ClusterAddSlotsRange(ctx, 0, 16383).Err())
	require.Eventually(t, func() bool { return client.Set(ctx, "x", 1, 0).Err() == nil }, 30*time.Second, 10*time.Millisecond)
	l := Must(NewTokenBucket(client, PerSecond(1000), 1000))
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			for j := range 50 {
				if _, err := l.TryAcquire(ctx, fmt.Sprint("k", i, j)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// TestAHungMasterHarmsOnlyItsKeys: calls for other masters do not wait for it.
func TestAHungMasterHarmsOnlyItsKeys(t *testing.T) {
	cluster := redistest.StartCluster(t)
	sick := cluster.Masters()[0]
	proxy := redistest.NewProxy(t, sick.Addr())
	client := cluster.Client(t, func(o *redis.ClusterOptions) {
		o.Dialer = redistest.Through(proxy)
		o.ReadTimeout = 2 * time.Second
	})
	l := Must(NewTokenBucket(client, PerSecond(1000), 1000))
	var well, ill []string
	for i := 0; len(well) < 20 || len(ill) < 20; i++ {
		key := fmt.Sprint("k", i)
		must(t)(l.TryAcquire(ctx, key))
		if cluster.NodeFor("ratelimit:default:tokenbucket:"+key) == sick {
			ill = append(ill, key)
		} else {
			well = append(well, key)
		}
	}
	proxy.Hang()
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for j := range 10 {
				short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
				_, err := l.TryAcquire(short, ill[(i+j)%len(ill)])
				cancel()
				if err == nil {
					t.Error("a hung server answered")
				}
			}
		})
		wg.Go(func() {
			for j := range 50 {
				short, cancel := context.WithTimeout(ctx, time.Second)
				if _, err := l.TryAcquire(short, well[(i+j)%len(well)]); err != nil {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	proxy.Unhang()
}

// TestUnknownScriptsGoToEachServerOnce: a flight over several servers that know
// no script sends each script to each of them once, and charges each call once.
func TestUnknownScriptsGoToEachServerOnce(t *testing.T) {
	cluster := redistest.StartCluster(t)
	l := Must(NewTokenBucket(cluster.Client(t), PerHour(1), 5))
	var calls []model.Step
	var keys []string
	for i := range 60 {
		for range 1 + i%2 { // one call for half of the keys, two for the others
			calls = append(calls, model.Step{N: 1})
			keys = append(keys, fmt.Sprint("k", i))
		}
	}
	for i, r := range fly(t, l.core, calls, keys) {
		want := 4
		if i > 0 && keys[i-1] == keys[i] {
			want = 3
		}
		require.Equal(t, want, r.Remaining, "call %d for %s", i, keys[i])
	}
	for _, master := range cluster.Masters() {
		stats := master.Client(t).Info(ctx, "commandstats").Val()
		require.Contains(t, stats, "cmdstat_eval:calls=2,", "%s: %s", master.Addr(), stats)
	}
}

// deaf answers every pipelined command with NOSCRIPT, as a proxy may.
var deaf = hook{pipeline: func(_ context.Context, cmds []redis.Cmder) error {
	for _, cmd := range cmds {
		cmd.SetErr(redis.ErrNoScript)
	}
	return redis.ErrNoScript
}}

// TestAScriptThatStaysUnknownIsAnError, also where it was sent along: nobody asks
// for ever.
func TestAScriptThatStaysUnknownIsAnError(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	client.AddHook(deaf)
	m := newMerger(Must(NewTokenBucket(client, PerSecond(1), 1)).core)
	m.apart.Store(true)
	f, seats := boarded(t, m, ones(4), []string{"a", "b", "b", "c"})
	m.execute(f)
	for _, s := range seats {
		_, _, err := s.outcome()
		require.ErrorIs(t, err, redis.ErrNoScript)
	}
}

// ones is so many calls for one permit each.
func ones(calls int) []model.Step { return slices.Repeat([]model.Step{{N: 1}}, calls) }

// TestCallsThatWereAskedForByThemselves, one after the other, have answers of their
// own, and the rest of the run follows.
func TestCallsThatWereAskedForByThemselves(t *testing.T) {
	f, last := newFlight(), map[string]int{}
	var seats []seat
	for range 5 {
		s, _ := f.board(ctx, "", "k", 1, endless, last)
		seats = append(seats, s)
	}
	seats[1].leave()
	f.runs[0].odd.alone = [][]int64{{10}, {20}}
	require.Equal(t, "1x2", fmt.Sprintf("%s", f.requests(0)))
	f.runs[0].words = []int64{30}
	type outcome struct{ word, index int64 }
	var got []outcome
	for _, i := range []int{0, 2, 3, 4} {
		words, index, err := seats[i].outcome()
		require.NoError(t, err)
		got = append(got, outcome{words[0], index})
	}
	require.Equal(t, []outcome{{10, 0}, {20, 0}, {30, 0}, {30, 1}}, got)
}
