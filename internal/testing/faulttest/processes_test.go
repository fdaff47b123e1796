package faulttest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

const workerEnv = "RATELIMIT_TEST_WORKER"

// work is what a worker process gets to do.
type work struct {
	Addr    string
	Process int
	Callers int
	Limit   int
	Window  time.Duration
	Start   int64         // the first round's instant, for all processes
	Round   time.Duration // one for each quota
}

// found is what it reports, a line for each quota.
type found struct {
	Calls, Denials int
	Longest        time.Duration
	Takes          []take
}

// TestWorkerProcess is one of the processes of TestManyProcessesShareOneQuota.
func TestWorkerProcess(t *testing.T) {
	given := os.Getenv(workerEnv)
	if given == "" {
		t.Skip("started by TestManyProcessesShareOneQuota")
	}
	var w work
	require.NoError(t, json.Unmarshal([]byte(given), &w))
	client := redis.NewClient(&redis.Options{Addr: w.Addr})
	defer client.Close()
	var opts []ratelimit.Option
	if w.Process%2 == 1 {
		opts = append(opts, ratelimit.WithoutMerging())
	}
	out := json.NewEncoder(os.NewFile(3, "results"))
	for i, q := range quotas() {
		l, err := q.build(client, w.Limit, w.Window, opts...)
		require.NoError(t, err)
		a := &account{quota: q, key: q.name}
		begin := time.Unix(0, w.Start).Add(time.Duration(i) * w.Round)
		time.Sleep(time.Until(begin)) // so that the processes meet on each key
		var s tally
		var callers sync.WaitGroup
		for c := range w.Callers {
			rng := rand.New(rand.NewPCG(uint64(w.Process), uint64(c)))
			callers.Go(func() {
				for late := time.Since(begin); late < w.Round*9/10 || s.denied.Load() == 0 && late < time.Minute; late = time.Since(begin) {
					if err := a.ask(ctx, &s, l, 1+rng.IntN(3)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		callers.Wait()
		require.NoError(t, out.Encode(found{int(s.decisions.Load()), int(s.denied.Load()), s.longest, a.takes}))
	}
}

// TestManyProcessesShareOneQuota lets processes compete for one key of each quota, half of
// them with merged calls. What they were allowed is judged by the instants of
// calls and returns, see mostBetween.
func TestManyProcessesShareOneQuota(t *testing.T) {
	t.Parallel()
	const processes, callers, limit = 4, 16, 40
	const window = 200 * time.Millisecond
	const round = 700 * time.Millisecond
	server := redistest.Start(t)
	start := time.Now().Add(1500 * time.Millisecond).UnixNano() // they need a moment to start
	var mu sync.Mutex
	byQuota := make([]found, len(quotas()))
	var running sync.WaitGroup
	for p := range processes {
		running.Go(func() {
			job, err := json.Marshal(work{server.Addr(), p, callers, limit, window, start, round})
			if err != nil {
				t.Error(err)
				return
			}
			read, write, err := os.Pipe()
			if err != nil {
				t.Error(err)
				return
			}
			defer read.Close()
			var printed bytes.Buffer
			cmd := exec.Command(os.Args[0], "-test.run=^TestWorkerProcess$", "-test.timeout=2m")
			cmd.Env = append(os.Environ(), workerEnv+"="+string(job))
			cmd.ExtraFiles = []*os.File{write}
			cmd.Stdout, cmd.Stderr = &printed, &printed
			err = cmd.Start()
			_ = write.Close()
			if err != nil {
				t.Error(err)
				return
			}
			results := json.NewDecoder(bufio.NewReader(read))
			for i := range byQuota {
				var f found
				if err := results.Decode(&f); err != nil {
					t.Errorf("process %d, quota %d: %v", p, i, err)
					break
				}
				mu.Lock()
				sum := &byQuota[i]
				sum.Calls += f.Calls
				sum.Denials += f.Denials
				sum.Longest = max(sum.Longest, f.Longest)
				sum.Takes = append(sum.Takes, f.Takes...)
				mu.Unlock()
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("process %d: %v\n%s", p, err, printed.Bytes())
			}
		})
	}
	running.Wait()
	for i, q := range quotas() {
		f := byQuota[i]
		broken, most := tooMany(q.kind, limit, window, f.Takes)
		permits := 0
		for _, g := range f.Takes {
			permits += g.N
		}
		t.Logf("%-32s %6d decisions, %4d permits in %3d allowed calls, at most %2d of %d certainly within one window, longest call %v",
			q.name, f.Calls, permits, len(f.Takes), most, limit, f.Longest.Round(time.Millisecond/10))
		require.Empty(t, broken, q.name)
		require.GreaterOrEqual(t, permits, limit-2, "%s: it was asked until it denied", q.name)
		require.Positive(t, f.Denials, "%s: it was asked until it denied", q.name)
	}
}

// An input is one call of a history.
type input struct {
	op model.Op
	n  int
}

// An output is what it brought. Of a lost one, whose reply never arrived, only
// the call is known.
type output struct {
	result ratelimit.Result
	lost   bool
}

// A history is the calls of many goroutines for one key.
type history struct {
	mu  sync.Mutex
	ops []porcupine.Operation
}

func (h *history) add(client int, in input, out output, call, ret int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: ret})
}

// record lets callers make calls for a key: for up to a quarter of the limit at a
// time, a fifth of them Peeks, and Resets now and then so that there is something
// to take again. Before one call in 20 it calls fault, if there is one; a call that
// brings an error then goes on record as lost.
//
// The callers wait for each other after every few calls. This is for the checker,
// which may have to try all orders of calls that chain without a break.
func (h *history) record(t testing.TB, by []ratelimit.Limiter, key string, limit, callers int, fault func()) {
	const bursts, calls = 6, 7
	for burst := range bursts {
		h.burst(t, by, key, limit, callers, calls, burst, fault)
	}
}

func (h *history) burst(t testing.TB, by []ratelimit.Limiter, key string, limit, callers, calls, burst int, fault func()) {
	var wg sync.WaitGroup
	for c := range callers {
		rng := rand.New(rand.NewPCG(uint64(c), uint64(burst)))
		l := by[c%len(by)]
		wg.Go(func() {
			for range calls {
				in := input{model.Take, 1 + rng.IntN(limit/4)}
				switch rng.IntN(40) {
				case 0, 1, 2, 3, 4, 5, 6, 7:
					in = input{model.Peek, 1}
				case 8:
					in = input{model.Reset, 0}
				}
				if fault != nil && rng.IntN(20) == 0 {
					fault()
				}
				var out output
				var err error
				call := clock()
				switch in.op {
				case model.Take:
					out.result, err = l.TryAcquireN(ctx, key, in.n)
				case model.Peek:
					out.result, err = l.Peek(ctx, key)
				case model.Reset:
					err = l.Reset(ctx, key)
				}
				ret := clock()
				if err != nil {
					if fault == nil {
						t.Error(err)
						return
					}
					out = output{lost: true}
				}
				h.add(c, in, out, call, ret)
			}
		})
	}
	wg.Wait()
}

// counter is what a limiter is whose clock stands still: a count of the permits
// taken, of which every answer follows. The answers are those of the exact
// models. With exact unset the durations are not compared.
//
// A call whose reply was lost has been executed, once: the model takes its
// permits if they are there, and expects nothing of the answer. Had it been
// executed twice, or not at all, the answers to the calls that follow would not
// fit.
func counter(fresh func() model.Model, limit int, now time.Time, exact bool) porcupine.Model {
	at := now.UnixMicro()
	answers := map[input][]ratelimit.Result{} // by permits taken before
	for used := 0; used <= limit; used++ {
		for _, in := range append([]input{{model.Peek, 1}}, takes(limit)...) {
			m := fresh()
			if used > 0 {
				m.Take(at, used, false)
			}
			answers[in] = append(answers[in], limitertest.ResultOf(m.Take(at, in.n, in.op == model.Peek)))
		}
	}
	return porcupine.Model{
		Init: func() any { return 0 },
		Step: func(state, given, got any) (bool, any) {
			used, in, out := state.(int), given.(input), got.(output)
			if in.op == model.Reset {
				return true, 0
			}
			want := answers[in][used]
			fits := out.lost || out.result == want
			if !exact && !fits {
				fits = out.result.Allowed == want.Allowed && out.result.Remaining == want.Remaining && out.result.Limit == want.Limit
			}
			if in.op == model.Take && want.Allowed {
				used += in.n
			}
			return fits, used
		},
		DescribeOperation: func(given, got any) string { return fmt.Sprintf("%+v %+v", given, got) },
	}
}

func takes(limit int) []input {
	var in []input
	for n := 1; n <= limit; n++ {
		in = append(in, input{model.Take, n})
	}
	return in
}

// models are those of quotas(), by the caller's clock.
func models(limit int, window time.Duration) map[string]func() model.Model {
	slidingWindow := func(buckets int) func() model.Model {
		return func() model.Model { return model.NewSlidingWindow(limit, window, buckets) }
	}
	log := func(resolution time.Duration) func() model.Model {
		return func() model.Model {
			return model.NewSlidingLog([]model.Rule{{Limit: limit, Window: window}}, resolution)
		}
	}
	return map[string]func() model.Model{
		"FixedWindow":                     func() model.Model { return model.NewClockWindow(limit, window) },
		"FixedWindow aligned":             func() model.Model { return model.NewAlignedWindow(limit, window, 0) },
		"SlidingWindow Hash":              slidingWindow(40),
		"SlidingWindow List":              slidingWindow(40),
		"SlidingWindow of one sub-window": slidingWindow(1),
		"SlidingWindow ZSet":              func() model.Model { return model.NewSlidingZSet(limit, window) },
		"SlidingLog":                      log(time.Microsecond),
		"SlidingLog with a resolution":    log(window / 20),
		"TokenBucket":                     func() model.Model { return model.NewTokenBucket(limit, window, limit) },
		"TokenBucket in an All":           func() model.Model { return model.NewTokenBucket(limit, window, limit) },
		"TokenBucket stepped":             func() model.Model { return model.NewSteppedBucket(limit, window, limit, window/4) },
		"LeakyBucket":                     func() model.Model { return model.NewLeakyBucket(limit, window, limit) },
		"TokenBucket with headroom": func() model.Model {
			return model.Headroom{Model: model.NewTokenBucket(limit, window, limit+2), X: 2}
		},
		"SlidingLog with headroom": func() model.Model {
			return model.Headroom{Model: model.NewSlidingLog([]model.Rule{{Limit: limit + 2, Window: window}}, time.Microsecond), X: 2}
		},
	}
}

// linearizable checks a history, in which each call has to fit in somewhere
// between its call and its return.
func linearizable(t testing.TB, name string, m porcupine.Model, h *history) {
	t.Helper()
	begun := time.Now()
	verdict, info := porcupine.CheckOperationsVerbose(m, h.ops, time.Minute)
	if verdict == porcupine.Illegal {
		if dir := os.Getenv("RATELIMIT_ARTIFACTS"); dir != "" {
			_ = porcupine.VisualizePath(m, info, dir+"/history.html")
		}
	}
	require.Equal(t, porcupine.CheckResult(porcupine.Ok), verdict, "%s: a history of %d calls", name, len(h.ops))
	allowed, denied, lost, overlaps := 0, 0, 0, 0
	latest := int64(0)
	for _, op := range h.ops { // in the order of their returns
		if op.Call < latest {
			overlaps++
		}
		latest = max(latest, op.Return)
		switch out := op.Output.(output); {
		case out.lost:
			lost++
		case op.Input.(input).op != model.Take:
		case out.result.Allowed:
			allowed++
		default:
			denied++
		}
	}
	t.Logf("%-32s %4d calls (%d concurrent), %d allowed, %d denied, %d lost replies: linearizable, checked in %v",
		name, len(h.ops), overlaps, allowed, denied, lost, time.Since(begun).Round(time.Millisecond/10))
}

// TestEveryAnswerFitsOneOrderOfTheCalls records what many goroutines are answered by one key, and
// finds an order of the calls that explains every answer. By the caller's clock,
// which stands still, all fields of the answers must fit.
func TestEveryAnswerFitsOneOrderOfTheCalls(t *testing.T) {
	t.Parallel()
	const limit, callers = 24, 12
	const window = 2 * time.Second
	client := redistest.Shared(t).Client(t, func(o *redis.Options) { o.PoolSize = callers })
	caller := ratelimit.WithClock(func() time.Time { return limitertest.Start })
	for name, opts := range map[string][]ratelimit.Option{
		"merged": {caller}, "unmerged": {caller, ratelimit.WithoutMerging()},
	} {
		t.Run("caller's clock, "+name, func(t *testing.T) {
			for _, q := range quotas() {
				l, err := q.build(client, limit, window, append(opts, ratelimit.WithPrefix("linear "+name))...)
				require.NoError(t, err)
				var h history
				h.record(t, []ratelimit.Limiter{l}, q.name, limit, callers, nil)
				linearizable(t, q.name, counter(models(limit, window)[q.name], limit, limitertest.Start, true), &h)
			}
		})
	}

	// By the server's clock, of quotas a day of which nothing comes back
	// at the same time, merged calls and others on the same key. A day's bucket of 24
	// refills one in an hour.
	t.Run("server's clock", func(t *testing.T) {
		for _, q := range quotas() {
			merged, err := q.build(client, limit, aDay, ratelimit.WithPrefix("linear"))
			require.NoError(t, err)
			unmerged, err := q.build(client, limit, aDay, ratelimit.WithPrefix("linear"), ratelimit.WithoutMerging())
			require.NoError(t, err)
			var h history
			h.record(t, []ratelimit.Limiter{merged, unmerged}, q.name, limit, callers, nil)
			linearizable(t, q.name, counter(models(limit, aDay)[q.name], limit, limitertest.Start, false), &h)
		}
	})
}

// TestEveryAnswerFitsOneOrderThoughRepliesAreLost does the same while replies get lost: the call
// brings an error and has been executed, exactly once. The scripts are loaded
// beforehand, for a lost NOSCRIPT would mean that nothing was.
func TestEveryAnswerFitsOneOrderThoughRepliesAreLost(t *testing.T) {
	t.Parallel()
	const limit, callers = 24, 8
	const window = 2 * time.Second
	server := redistest.Shared(t)
	proxy := redistest.NewProxy(t, server.Addr())
	client := redis.NewClient(&redis.Options{Addr: proxy.Addr(), PoolSize: callers})
	defer client.Close()
	for name, opts := range map[string][]ratelimit.Option{"merged": nil, "unmerged": {ratelimit.WithoutMerging()}} {
		t.Run(name, func(t *testing.T) {
			for _, q := range quotas() {
				l, err := q.build(client, limit, window, append(opts, ratelimit.WithPrefix("lossy "+name),
					ratelimit.WithClock(func() time.Time { return limitertest.Start }))...)
				require.NoError(t, err)
				require.NoError(t, ratelimit.Preload(ctx, ratelimit.ClaimOf(l, "k", 1)))
				var mu sync.Mutex
				var faults []*redistest.Fault
				var h history
				h.record(t, []ratelimit.Limiter{l}, q.name, limit, callers, func() {
					fault := proxy.DropNextReply(redistest.OnScript())
					mu.Lock()
					defer mu.Unlock()
					faults = append(faults, fault)
				})
				proxy.Disarm()
				struck := 0
				for _, fault := range faults {
					struck += fault.Hits()
				}
				linearizable(t, q.name, counter(models(limit, window)[q.name], limit, limitertest.Start, true), &h)
				require.Positive(t, struck, "replies were lost")
			}
		})
	}
}
