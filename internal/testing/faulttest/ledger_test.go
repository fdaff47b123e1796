package faulttest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// A quota is a variant at any scale: limit permits a window, for a bucket also
// the burst. The window is divisible by 20, and a limit by 4.
type quota struct {
	name  string
	kind  quotaKind
	build func(c ratelimit.Client, limit int, window time.Duration, opts ...ratelimit.Option) (ratelimit.Limiter, error)
}

type quotaKind int

const (
	anyWindow quotaKind = iota // at most limit in any interval of one window
	perWindow                  // at most limit in one of its own windows
	perRate                    // at most burst + rate × t in any interval t
	perStep                    // at most burst + a step for each begun quarter of a window
)

var processStart = time.Now()

// quotas are the algorithms and storages of variants(), by the same names.
// The boundaries of long calendar windows are half a window away from the start
// of the tests, which do not run that long.
func quotas() []quota {
	window := func(o ...ratelimit.Option) func(ratelimit.Client, int, time.Duration, ...ratelimit.Option) (ratelimit.Limiter, error) {
		return func(c ratelimit.Client, limit int, window time.Duration, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
			return ratelimit.NewSlidingWindow(c, limit, window, append(o, opts...)...)
		}
	}
	all := []quota{
		{"FixedWindow", perWindow, func(c ratelimit.Client, limit int, window time.Duration, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
			return ratelimit.NewFixedWindow(c, limit, window, opts...)
		}},
		{"FixedWindow aligned", perWindow, func(c ratelimit.Client, limit int, window time.Duration, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
			var offset time.Duration
			if window >= clockWindow {
				offset = window/2 + time.Duration(processStart.Unix())*time.Second%window
			}
			return ratelimit.NewFixedWindow(c, limit, window, append(opts, ratelimit.WithAlignment(offset))...)
		}},
		{"SlidingWindow of one sub-window", anyWindow, window(ratelimit.WithStorage(ratelimit.StorageHash), ratelimit.WithSubWindows(1))},
		{"SlidingLog", anyWindow, func(c ratelimit.Client, limit int, window time.Duration, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
			return ratelimit.NewSlidingLog(c, []ratelimit.Rule{{Limit: limit, Window: window}}, opts...)
		}},
		{"SlidingLog with a resolution", anyWindow, func(c ratelimit.Client, limit int, window time.Duration, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
			return ratelimit.NewSlidingLog(c, []ratelimit.Rule{{Limit: limit, Window: window}}, append(opts, ratelimit.WithResolution(window/20))...)
		}},
		{"TokenBucket", perRate, func(c ratelimit.Client, limit int, window time.Duration, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
			return ratelimit.NewTokenBucket(c, ratelimit.Per(limit, window), limit, opts...)
		}},
		{"TokenBucket in an All", perRate, func(c ratelimit.Client, limit int, window time.Duration, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
			l, err := ratelimit.NewTokenBucket(c, ratelimit.Per(limit, window), limit, opts...)
			if err != nil {
				return nil, err
			}
			return ratelimit.NewAll(l)
		}},
		{"TokenBucket stepped", perStep, func(c ratelimit.Client, limit int, window time.Duration, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
			return ratelimit.NewTokenBucket(c, ratelimit.Per(limit, window), limit, append(opts, ratelimit.WithRefillEvery(window/4))...)
		}},
		{"LeakyBucket", perRate, func(c ratelimit.Client, limit int, window time.Duration, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
			return ratelimit.NewLeakyBucket(c, ratelimit.Per(limit, window), limit, opts...)
		}},
		{"TokenBucket with headroom", perRate, func(c ratelimit.Client, limit int, window time.Duration, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
			return ratelimit.NewTokenBucket(c, ratelimit.Per(limit, window), limit+2, append(opts, ratelimit.WithHeadroom(2))...)
		}},
		{"SlidingLog with headroom", anyWindow, func(c ratelimit.Client, limit int, window time.Duration, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
			return ratelimit.NewSlidingLog(c, []ratelimit.Rule{{Limit: limit + 2, Window: window}}, append(opts, ratelimit.WithHeadroom(2))...)
		}},
	}
	for i, in := range algorithms.Storages() {
		all = append(all, quota{"SlidingWindow " + in.Storage, anyWindow, window(ratelimit.WithStorage(ratelimit.Storage(i)))})
	}
	return all
}

func TestQuotasAreTheVariants(t *testing.T) {
	var have, want []string
	for _, q := range quotas() {
		have = append(have, q.name)
	}
	for _, v := range limitertest.Variants() {
		if v.Name != "CalendarWindow" && !v.Tenants { // whose window cannot be chosen: a quota of any time; see TestProcessesShareOneLimit
			want = append(want, v.Name)
		}
	}
	require.ElementsMatch(t, want, have)
}

// A span is what the caller's clock said when a call began and when it had
// returned: Redis executed it somewhere in between. Instants are nanoseconds
// since 1970; callers and servers of a test read the clock of the same host.
type span struct {
	Call, Return int64
}

func clock() int64 { return time.Now().UnixNano() }

// A take is N permits that an allowed call took.
type take struct {
	span
	N    int
	Left int64 // ResetAfter, nanoseconds
}

// mostBetween is a lower bound of the permits that were certainly allowed within
// some interval, less what slope × its length allows; length bounds the
// intervals, in nanoseconds, unless it is 0. It also returns the permits and the
// length of that interval.
//
// A take was certainly made within [a, b] when a ≤ call and return ≤ b: its
// true instant lies between. Of those that returned by b, at most the ones that
// were called before a do not count, so
//
//	certain(a, b) ≥ returned(b) − called before(a),
//
// which falls short only by calls that span all of [a, b]. Whatever it reports
// too many was therefore allowed too many. Only instants of calls and returns
// need to be looked at, and for each b the best a has the largest
// slope×a − called before(a).
func mostBetween(takes []take, slope float64, length int64) (most float64, permits int, over int64) {
	starts, ends := slices.Clone(takes), slices.Clone(takes)
	slices.SortFunc(starts, func(a, b take) int { return int(a.Call - b.Call) })
	slices.SortFunc(ends, func(a, b take) int { return int(a.Return - b.Return) })
	if len(takes) == 0 {
		return 0, 0, 0
	}
	origin := starts[0].Call // floating-point numbers stay small
	type beginning struct {
		at     int64
		before int
		score  float64
	}
	var open []beginning // by time, scores falling: the first is the best that is not too old
	var called, returned, next int
	for _, e := range ends {
		returned += e.N
		for next < len(starts) && starts[next].Call <= e.Return {
			s := starts[next]
			b := beginning{s.Call, called, slope*float64(s.Call-origin) - float64(called)}
			for len(open) > 0 && open[len(open)-1].score <= b.score {
				open = open[:len(open)-1]
			}
			open = append(open, b)
			called += s.N
			next++
		}
		for length > 0 && len(open) > 0 && e.Return-open[0].at > length {
			open = open[1:]
		}
		if len(open) == 0 {
			continue
		}
		if excess := open[0].score + float64(returned) - slope*float64(e.Return-origin); excess > most {
			most, permits, over = excess, returned-open[0].before, e.Return-open[0].at
		}
	}
	return most, permits, over
}

// tooMany says how the takes of one key break the rule of its quota, judged by
// calls and returns, or "" when they do not; and the most that was certainly
// allowed in one window. Clocks must not have been stepped in between.
//
// Redis counts in microseconds, cut off: two takes that it sees a window apart
// may be up to one microsecond less apart. The rules are therefore applied to
// intervals that much shorter, or with the refill of one microsecond more.
func tooMany(kind quotaKind, limit int, window time.Duration, takes []take) (broken string, most int) {
	const tick = int64(time.Microsecond)
	rate := float64(limit) / float64(window)
	within, permits, over := mostBetween(takes, 0, int64(window)-tick)
	most = int(within)
	switch kind {
	case anyWindow:
		if most > limit {
			broken = fmt.Sprintf("%d permits within %v", permits, time.Duration(over))
		}
	case perWindow:
		// A take shows when its window ends: between call + left and return +
		// left, less the millisecond (of Redis's expiry) to which left was
		// rounded up. The ends of different windows are at least a window apart,
		// so that takes whose ends certainly lie closer together share one.
		ends := slices.Clone(takes)
		for i := range ends {
			ends[i].Call += ends[i].Left - int64(time.Millisecond)
			ends[i].Return += ends[i].Left
		}
		if n, _, _ := mostBetween(ends, 0, int64(window)-2*int64(time.Millisecond)); int(n) > limit {
			broken = fmt.Sprintf("%d permits in one window", int(n))
		}
		if most > 2*limit { // whatever the answers say of their windows
			broken = fmt.Sprintf("%d permits within %v", permits, time.Duration(over))
		}
	case perRate:
		// A millionth of a permit is beyond what the sums can be off.
		if n, permits, over := mostBetween(takes, rate, 0); n > float64(limit)+rate*float64(tick)+1e-6 {
			broken = fmt.Sprintf("%d permits within %v", permits, time.Duration(over))
		}
	case perStep:
		// An interval t meets at most t/step + 1 steps, of a quarter of the limit.
		if n, permits, over := mostBetween(takes, rate, 0); n > float64(limit)+float64(limit)/4+rate*float64(tick)+1e-6 {
			broken = fmt.Sprintf("%d permits within %v", permits, time.Duration(over))
		}
	}
	return broken, most
}

// tooMany finds what is there, and nothing else.
func TestTooManyFindsEveryBrokenRuleAndNoOther(t *testing.T) {
	const w = time.Second
	at := func(call, ret time.Duration, n int, left time.Duration) take {
		return take{span{int64(call), int64(ret)}, n, int64(left)}
	}
	ms := time.Millisecond
	full := []take{at(0, 10*ms, 4, w), at(900*ms, 910*ms, 4, 100*ms)}
	for _, kind := range []quotaKind{anyWindow, perWindow, perRate, perStep} {
		broken, most := tooMany(kind, 8, w, full)
		require.Empty(t, broken)
		require.Equal(t, 8, most)
		broken, _ = tooMany(kind, 8, w, nil)
		require.Empty(t, broken)
		// The last may have come when the first had left.
		broken, _ = tooMany(kind, 8, w, append(full, at(950*ms, 1001*ms, 4, w)))
		require.Empty(t, broken, kind)
	}
	for kind, extra := range map[quotaKind]take{
		anyWindow: at(911*ms, 990*ms, 1, 0),
		perWindow: at(911*ms, 990*ms, 1, 80*ms),
		perRate:   at(911*ms, 990*ms, 8, 0),
		perStep:   at(911*ms, 990*ms, 12, 0),
	} {
		broken, _ := tooMany(kind, 8, w, append(full, extra))
		require.NotEmpty(t, broken, kind)
	}
	broken, _ := tooMany(perWindow, 8, w, []take{at(0, 1*ms, 8, 10*ms), at(20*ms, 21*ms, 8, w), at(40*ms, 41*ms, 8, 2*w)})
	require.NotEmpty(t, broken, "answers that lie")

	// Against the exact checker: with calls that take no time it finds the same.
	rng := model.Seeded(1)
	found := 0
	for range 300 {
		var takes []take
		var exact []model.Taken
		now := int64(0)
		for range 1 + rng.IntN(60) {
			now += rng.Int64N(120_000)
			n := 1 + rng.IntN(2)
			takes = append(takes, take{span{now * 1000, now * 1000}, n, 0})
			exact = append(exact, model.Taken{At: now, N: n})
		}
		_, most := tooMany(anyWindow, 8, w, takes)
		require.Equal(t, model.MaxInAnyWindow(exact, w), most)
		broken, _ := tooMany(perRate, 8, w, takes)
		exceeds, worst := model.ExceedsBucket(exact, 8, w, 8)
		if over, _ := worst.Over.Float64(); over > 1e-4 || over < 0 { // not within the tick
			require.Equal(t, exceeds, broken != "", worst)
		}
		if exceeds {
			found++
		}
	}
	require.Greater(t, found, 10)
	require.Less(t, found, 290)
}

// An account is what the callers of one key have seen.
type account struct {
	quota
	key    string
	limit  int
	window time.Duration
	by     []ratelimit.Limiter // the same limiter over several clients

	mu       sync.Mutex // guards all below
	takes    []take
	permits  int // of the takes
	denials  int // since the last takeDenials
	failures int // permits of the calls that brought an error: perhaps taken
	asking   int // permits of the calls under way
}

// received are the permits that callers were given.
func (a *account) received() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.permits
}

// most is how many permits can have been taken, including by calls that have yet to
// return.
func (a *account) most() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.permits + a.failures + a.asking
}

// denied reports whether a call was denied since the last time it was asked.
func (a *account) denied() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.denials > 0
	a.denials = 0
	return was
}

// used are the permits that Redis knows to be taken. The window is long enough
// that none comes back during the call.
func (a *account) used(t testing.TB, l ratelimit.Limiter) int {
	t.Helper()
	return a.limit - must(t)(l.Peek(ctx, a.key)).Remaining
}

// A tally is the figures of a test.
type tally struct {
	decisions, allowed, denied, failed atomic.Int64 // calls

	mu      sync.Mutex // guards all below
	kinds   map[string]int
	longest time.Duration
	spans   []failure
}

type failure struct {
	span
	err error
}

func (s *tally) note(sp span, r ratelimit.Result, err error) {
	switch {
	case err != nil:
		s.failed.Add(1)
	case r.Allowed:
		s.decisions.Add(1)
		s.allowed.Add(1)
	default:
		s.decisions.Add(1)
		s.denied.Add(1)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.longest = max(s.longest, time.Duration(sp.Return-sp.Call))
	if err != nil {
		if s.kinds == nil {
			s.kinds = map[string]int{}
		}
		s.kinds[errorKind(err)]++
		s.spans = append(s.spans, failure{sp, err})
	}
}

// failures are the failed calls since the last time it was asked.
func (s *tally) failures() []failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	spans := s.spans
	s.spans = nil
	return spans
}

func (s *tally) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("%d decisions: %d allowed, %d denied; %d errors %v; longest call %v",
		s.decisions.Load(), s.allowed.Load(), s.denied.Load(), s.failed.Load(), s.kinds, s.longest.Round(time.Millisecond/10))
}

func errorKind(err error) string {
	var network *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "deadline"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "EOF"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "reset"
	case errors.As(err, &network) && network.Timeout():
		return "timeout"
	}
	for _, code := range []string{"READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "MOVED", "ASK", "TRYAGAIN", "NOSCRIPT", "UNBLOCKED"} {
		if redis.HasErrorPrefix(err, code) {
			return code
		}
	}
	for _, text := range []string{"pool timeout", "i/o timeout", "all sentinels", "closed"} {
		if strings.Contains(err.Error(), text) {
			return text
		}
	}
	return err.Error()
}

// ask makes one call and books what it brings.
func (a *account) ask(ctx context.Context, s *tally, l ratelimit.Limiter, n int) error {
	a.mu.Lock()
	a.asking += n
	a.mu.Unlock()
	sp := span{Call: clock()}
	r, err := l.TryAcquireN(ctx, a.key, n)
	sp.Return = clock()
	s.note(sp, r, err)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asking -= n
	switch {
	case err != nil:
		a.failures += n
	case r.Allowed:
		a.takes = append(a.takes, take{sp, n, int64(r.ResetAfter)})
		a.permits += n
	default:
		a.denials++
	}
	return err
}

// A load is callers that never pause for longer than a moment.
type load struct {
	tally
	quit chan struct{}
	wg   sync.WaitGroup

	// gate is held for reading by each call, so that the holder of the write lock
	// has the servers to itself.
	gate sync.RWMutex
}

// startLoad lets workers call the accounts, any of them, for one to three
// permits, every other one with a deadline.
func startLoad(workers int, accounts func() []*account) *load {
	l := &load{quit: make(chan struct{})}
	for w := range workers {
		rng := rand.New(rand.NewPCG(uint64(w), 1))
		l.wg.Go(func() {
			for {
				select {
				case <-l.quit:
					return
				case <-time.After(time.Duration(rng.IntN(int(2 * time.Millisecond)))):
				}
				of := accounts()
				a := of[rng.IntN(len(of))]
				ctx, cancel := ctx, context.CancelFunc(func() {})
				if w%2 == 0 {
					ctx, cancel = context.WithTimeout(ctx, 5*time.Second)
				}
				l.gate.RLock()
				_ = a.ask(ctx, &l.tally, a.by[w%len(a.by)], 1+rng.IntN(3))
				l.gate.RUnlock()
				cancel()
			}
		})
	}
	return l
}

// stop waits until all callers have had their answers.
func (l *load) stop(t testing.TB) {
	t.Helper()
	close(l.quit)
	done := make(chan struct{})
	go func() { l.wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		stacks := make([]byte, 1<<20)
		t.Fatalf("callers hang:\n%s", stacks[:runtime.Stack(stacks, true)])
	}
}

// eventually waits for what a busy machine may take its time for.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		require.False(t, time.Now().After(deadline), "not within a minute: %s", what)
	}
}

// goroutinesEnded waits until no more goroutines run than before.
func goroutinesEnded(t testing.TB, before int) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for runtime.NumGoroutine() > before {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, and %d before:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
		}
		time.Sleep(10 * time.Millisecond)
	}
}
