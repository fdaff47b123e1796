package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/model"
	"github.com/tryacquire/ratelimit/internal/redistest"
)

// fly sends calls together, as the merger would, and returns their results.
func fly(t testing.TB, c *core, calls []model.Step, keys []string) []Result {
	t.Helper()
	m := newMerger(c)
	f := flights.Get().(*flight)
	waiting := make([]*passenger, len(calls))
	for i, call := range calls {
		waiting[i] = &passenger{ctx: ctx, key: keys[i], n: call.N, arrived: make(chan struct{}, 1)}
		require.True(t, f.board(waiting[i], c.prefix))
	}
	m.execute(f)
	f.clear()
	results := make([]Result, len(calls))
	for i, p := range waiting {
		<-p.arrived
		require.NoError(t, p.err)
		results[i] = c.explain(p.words, int64(p.n), p.index)
	}
	return results
}

// TestMergedCallsAnswerAsOneAfterTheOther drives batches of random calls for
// several keys through one execution each, and the models call by call.
func TestMergedCallsAnswerAsOneAfterTheOther(t *testing.T) {
	for _, f := range families() {
		t.Run(f.name, func(t *testing.T) {
			rng := model.Seeded(seed(t))
			s := onMini(t)
			for range 10 {
				first, err := f.draw(rng, s.client)
				require.NoError(t, err)
				require.NoError(t, wipe(s))
				models := map[string]model.Model{}
				keys := []string{"a", "b", "c"}
				for _, key := range keys {
					models[key] = first.another()
				}
				for range 25 {
					s.advance(time.Duration(rng.Int64N(int64(first.model.Span())/2+1)) / time.Millisecond * time.Millisecond)
					var calls []model.Step
					var on []string
					for range 1 + rng.IntN(12) {
						n := 1
						if rng.IntN(3) == 0 {
							n = 1 + rng.IntN(min(3, first.model.Max()))
						}
						calls = append(calls, model.Step{N: n})
						on = append(on, keys[rng.IntN(len(keys))])
					}
					got := fly(t, coreOf(t, first.limiter), calls, on)
					for i, call := range calls {
						want := models[on[i]].Take(s.now.UnixMicro(), call.N, false)
						require.Equal(t, result(want), got[i], "%s: call %d of %v on %v", first.about, i, calls, on)
					}
				}
			}
		})
	}
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
		return len(m.common.waiting) == n
	}, 10*time.Second, time.Millisecond)
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
		require.ErrorContains(t, r.err, fmt.Sprintf("token bucket %q", key))
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
	require.Eventually(t, func() bool {
		l.merger.common.mu.Lock()
		defer l.merger.common.mu.Unlock()
		return l.merger.common.flying == 0
	}, 10*time.Second, time.Millisecond, "no flight outlives its calls")
}

func TestFlightsTakeABoundedNumberOfKeys(t *testing.T) {
	s := onMini(t)
	l := Must(NewTokenBucket(s.client, PerSecond(3), 3))
	lane := &l.merger.common
	for i := range 2*maxKeys + 1 {
		lane.waiting = append(lane.waiting, &passenger{ctx: ctx, key: fmt.Sprint(i % (maxKeys + 1)), n: 1})
	}
	lane.waiting[3].gone, lane.gone = true, 1
	f := lane.board("")
	require.Len(t, f.groups, maxKeys)
	require.Equal(t, fmt.Sprint(maxKeys), f.groups[maxKeys-1].name, "without the one that is gone")
	require.Equal(t, "3", lane.waiting[0].key, "who came after waits")
	require.Zero(t, lane.gone)
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
	require.Eventually(t, func() bool {
		l.merger.common.mu.Lock()
		defer l.merger.common.mu.Unlock()
		return l.merger.common.flying == 0
	}, 10*time.Second, time.Millisecond)
}

func TestMergingOnAClusterAndARing(t *testing.T) {
	cluster := redistest.StartCluster(t)
	client := cluster.Client(t)
	for _, v := range variants() {
		t.Run(v.name, func(t *testing.T) {
			h := &hand{at: start}
			l, err := v.build(client, WithClock(h.now), WithPrefix(v.name))
			require.NoError(t, err)
			const keys, calls = 20, 10
			var wg sync.WaitGroup
			var mu sync.Mutex
			left := map[string]int{}
			for i := range keys * calls {
				wg.Go(func() {
					key := fmt.Sprint("k", i%keys)
					r, err := l.TryAcquire(ctx, key)
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
			require.Len(t, left, 3*keys, "each grant of each key once: %v", left)
			require.NoError(t, l.Reset(ctx, "k0"))
		})
	}
}

func TestRunsAreWrittenShort(t *testing.T) {
	for want, permits := range map[string][]int{
		"1":           {1},
		"2x1":         {2},
		"1x3":         {1, 1, 1},
		"1x2,5x1":     {1, 1, 5},
		"3x1,1x1,3x2": {3, 1, 3, 3},
	} {
		var f flight
		f.index = map[string]int{}
		for _, n := range permits {
			f.board(&passenger{ctx: ctx, key: "k", n: n}, "p:")
		}
		require.Equal(t, "p:k", f.groups[0].name)
		require.Equal(t, want, fmt.Sprintf("%s", f.groups[0].requests()))
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

func TestFlightsTakeABoundedNumberOfRuns(t *testing.T) {
	f := flight{index: map[string]int{}}
	for i := range maxRuns {
		require.True(t, f.board(&passenger{ctx: ctx, key: "k", n: 1 + i%2}, ""))
	}
	require.True(t, f.board(&passenger{ctx: ctx, key: "k", n: 2}, ""), "it joins the last run")
	require.False(t, f.board(&passenger{ctx: ctx, key: "k", n: 1}, ""))
	require.False(t, f.board(&passenger{ctx: ctx, key: "l", n: 2}, ""))
}

func TestFlightHasTheDeadlineOfTheMostPatient(t *testing.T) {
	near, far := time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
	until := func(at time.Time) context.Context {
		ctx, cancel := context.WithDeadline(ctx, at)
		t.Cleanup(cancel)
		return ctx
	}
	f := flight{index: map[string]int{}}
	f.board(&passenger{ctx: until(far), key: "k", n: 1}, "")
	f.board(&passenger{ctx: until(near), key: "k", n: 1}, "")
	got, ok := f.context().Deadline()
	require.True(t, ok)
	require.Equal(t, far, got)
	require.Nil(t, f.context().Done())
	f.board(&passenger{ctx: ctx, key: "k", n: 1}, "")
	_, ok = f.context().Deadline()
	require.False(t, ok)
}

func TestTheGoneAreLetGo(t *testing.T) {
	var l lane
	l.flying = maxFlying
	for i := range 1000 {
		p := &passenger{ctx: ctx, key: "k", n: 1}
		l.enter(p, nil, false)
		if i%100 != 0 {
			l.leave(p)
		}
		require.LessOrEqual(t, len(l.waiting), 2*(i/100+1)+1)
	}
	f := l.board("")
	require.Equal(t, 10, f.seats)
	require.Zero(t, l.gone)
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
	acquireAll(l, ctx, 1, "a")
	<-g.arrived
	grounded(l.merger)
	for i := range 2*maxKeys + 1 {
		acquireAll(l, ctx, 1, fmt.Sprint(i))
	}
	waitFor(t, l.merger, 2*maxKeys+1)
	lane := &l.merger.common
	lane.mu.Lock()
	lane.tookOff -= time.Hour
	lane.mu.Unlock()
	l.merger.start(lane, lane.ring(l.merger))
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
		l := Must(NewTokenBucket(s.client, PerSecond(1), 1, widen[TokenBucketOption](append(merging, WithClock(func() time.Time { panic("boom") })))...))
		for range 2 {
			_, err := l.TryAcquire(cancellable, "k")
			require.ErrorContains(t, err, `token bucket "k": the client or the clock panicked: boom`)
		}
	}
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
		if cluster.NodeFor("ratelimit:tokenbucket:"+key) == sick {
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
type deaf struct{ redis.Hook }

func (deaf) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			cmd.SetErr(redis.ErrNoScript)
		}
		return redis.ErrNoScript
	}
}

func (deaf) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (deaf) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// TestAScriptThatStaysUnknownIsAnError, also where it was sent along: nobody asks
// for ever.
func TestAScriptThatStaysUnknownIsAnError(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	client.AddHook(deaf{})
	m := newMerger(Must(NewTokenBucket(client, PerSecond(1), 1)).core)
	m.apart.Store(true)
	f := flights.Get().(*flight)
	var waiting []*passenger
	for _, key := range []string{"a", "b", "b", "c"} {
		p := &passenger{ctx: ctx, key: key, n: 1, arrived: make(chan struct{}, 1)}
		require.True(t, f.board(p, ""))
		waiting = append(waiting, p)
	}
	m.execute(f)
	for _, p := range waiting {
		<-p.arrived
		require.ErrorIs(t, p.err, redis.ErrNoScript)
	}
}
