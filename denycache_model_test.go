package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// A steppingLimiter stops every call before it is decided and again before the
// reply, until the test lets it go on. One goroutine runs at a time, so that the
// order of everything is the test's.
type steppingLimiter struct {
	decide func(key string, n int) ratelimit.Result
	events chan *steppingCall // the call that ran has stopped or is done
}

type steppingCall struct {
	run    chan struct{}
	asked  bool // it reached the limiter
	done   bool
	result ratelimit.Result
	err    error

	// What the limiter replied.
	reply    ratelimit.Result
	replyErr error
	fail     func() (before, after error) // nil: neither
}

func newSteppingLimiter(decide func(key string, n int) ratelimit.Result) *steppingLimiter {
	return &steppingLimiter{decide: decide, events: make(chan *steppingCall)}
}

type steppingKey struct{}

// start runs f until it stops at the limiter or is done.
func (s *steppingLimiter) start(f func(context.Context) (ratelimit.Result, error)) *steppingCall {
	call := &steppingCall{run: make(chan struct{})}
	s.startCall(call, f)
	return call
}

func (s *steppingLimiter) startCall(call *steppingCall, f func(context.Context) (ratelimit.Result, error)) {
	go func() {
		call.result, call.err = f(context.WithValue(context.Background(), steppingKey{}, call))
		call.done = true
		s.events <- call
	}()
	<-s.events
}

// resume lets a call go on to its next stop.
func (s *steppingLimiter) resume(call *steppingCall) {
	call.run <- struct{}{}
	<-s.events
}

// pass takes a call through both stops, with decide between them.
func (s *steppingLimiter) pass(ctx context.Context, decide func() (ratelimit.Result, error)) (ratelimit.Result, error) {
	call := ctx.Value(steppingKey{}).(*steppingCall)
	call.asked = true
	stop := func() {
		s.events <- call
		<-call.run
	}
	var before, after error
	if call.fail != nil {
		before, after = call.fail()
	}
	stop()
	if before == nil {
		call.reply, call.replyErr = decide()
		if after != nil {
			call.reply, call.replyErr = ratelimit.Result{}, after
		}
	} else {
		call.replyErr = before
	}
	stop()
	return call.reply, call.replyErr
}

func (s *steppingLimiter) TryAcquire(ctx context.Context, key string) (ratelimit.Result, error) {
	return s.TryAcquireN(ctx, key, 1)
}

func (s *steppingLimiter) TryAcquireN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	return s.pass(ctx, func() (ratelimit.Result, error) { return s.decide(key, n), nil })
}

func (s *steppingLimiter) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	return s.pass(ctx, func() (ratelimit.Result, error) { return s.decide(key, 1), nil })
}

func (s *steppingLimiter) Reset(ctx context.Context, _ string) error {
	_, err := s.pass(ctx, func() (ratelimit.Result, error) { return ratelimit.Result{}, nil })
	return err
}

// A trueLimiter is an exact limiter of one key on a clock of its own, which ticks.
type trueLimiter interface {
	// decide returns whether n permits can be had, and takes them if take is set.
	decide(now time.Duration, n int, take bool) (ratelimit.Result, error)
	grain() time.Duration
}

// trueBucket holds burst tokens, of which one comes every interval.
type trueBucket struct {
	burst    int
	interval time.Duration
	full     time.Duration // when it will be
}

func (b *trueBucket) grain() time.Duration { return time.Microsecond }

func (b *trueBucket) decide(now time.Duration, n int, take bool) (ratelimit.Result, error) {
	if n > b.burst {
		return ratelimit.Result{}, ratelimit.ErrExceedsLimit
	}
	now = now.Truncate(b.grain())
	size := time.Duration(b.burst) * b.interval
	r := ratelimit.Result{Limit: b.burst, Window: size}
	full := max(b.full, now)
	if after := full + time.Duration(n)*b.interval; after <= now+size {
		full, r.Allowed = after, true
	} else {
		r.RetryAfter = after - size - now
	}
	if take {
		b.full = full
	}
	r.Remaining = int((now + size - full) / b.interval)
	r.ResetAfter = full - now
	return r, nil
}

// trueWindow allows limit permits in a window that starts with the first.
type trueWindow struct {
	limit  int
	window time.Duration
	used   int
	ends   time.Duration
}

func (w *trueWindow) grain() time.Duration { return time.Millisecond }

func (w *trueWindow) decide(now time.Duration, n int, take bool) (ratelimit.Result, error) {
	if n > w.limit {
		return ratelimit.Result{}, ratelimit.ErrExceedsLimit
	}
	now = now.Truncate(w.grain())
	used, ends := w.used, w.ends
	if now >= ends {
		used, ends = 0, now+w.window
	}
	r := ratelimit.Result{Limit: w.limit, Window: w.window, ResetAfter: ends - now}
	if used+n <= w.limit {
		used, r.Allowed = used+n, true
		if take {
			w.used, w.ends = used, ends
		}
	} else {
		r.RetryAfter = ends - now
	}
	r.Remaining = w.limit - used
	return r, nil
}

// trueLog allows what every rule allows. The limit of its denials is that of the
// rule that blocks longest, which may be more than it can allow at once.
type trueLog struct {
	rules []ratelimit.Rule
	log   []time.Duration
}

func (l *trueLog) grain() time.Duration { return time.Microsecond }

func (l *trueLog) decide(now time.Duration, n int, take bool) (ratelimit.Result, error) {
	now = now.Truncate(l.grain())
	r := ratelimit.Result{Allowed: true}
	for _, rule := range l.rules {
		if n > rule.Limit {
			return ratelimit.Result{}, ratelimit.ErrExceedsLimit
		}
		first := slices.IndexFunc(l.log, func(at time.Duration) bool { return at > now-rule.Window })
		if first < 0 {
			first = len(l.log)
		}
		used := len(l.log) - first
		wait := time.Duration(0)
		if over := used + n - rule.Limit; over > 0 {
			wait = l.log[first+over-1] + rule.Window - now
		}
		if r.Limit == 0 || wait > r.RetryAfter {
			r.Limit, r.Window, r.Remaining, r.RetryAfter = rule.Limit, rule.Window, rule.Limit-used, wait
		}
		if used > 0 {
			r.ResetAfter = max(r.ResetAfter, l.log[len(l.log)-1]+rule.Window-now)
		}
	}
	if r.RetryAfter > 0 {
		r.Allowed = false
		return r, nil
	}
	if take {
		for range n {
			l.log = append(l.log, now)
		}
		r.Remaining -= n
	}
	return r, nil
}

// A denyModel is the true limiter of every key behind a network with delays and
// faults, and the time.
type denyModel struct {
	*steppingLimiter
	rng    *rand.Rand
	now    time.Duration // true time
	offset time.Duration // of the deciding clock
	keys   map[string]trueLimiter
	fresh  func() trueLimiter
}

func (m *denyModel) ask(key string, n int, take bool) (ratelimit.Result, error) {
	k, ok := m.keys[key]
	if !ok {
		k = m.fresh()
		m.keys[key] = k
	}
	return k.decide(m.now+m.offset, n, take)
}

func (m *denyModel) TryAcquire(ctx context.Context, key string) (ratelimit.Result, error) {
	return m.TryAcquireN(ctx, key, 1)
}

func (m *denyModel) TryAcquireN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	return m.pass(ctx, func() (ratelimit.Result, error) { return m.ask(key, n, true) })
}

func (m *denyModel) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	return m.pass(ctx, func() (ratelimit.Result, error) { return m.ask(key, 1, false) })
}

func (m *denyModel) Reset(ctx context.Context, key string) error {
	_, err := m.pass(ctx, func() (ratelimit.Result, error) {
		delete(m.keys, key)
		return ratelimit.Result{}, nil
	})
	return err
}

var errUndecided = errors.New("connection lost")

// faults loses some calls before they are decided and some after.
func (m *denyModel) faults() (before, after error) {
	switch m.rng.IntN(30) {
	case 0:
		return errUndecided, nil
	case 1:
		return nil, errUndecided
	}
	return nil, nil
}

// pause is how long nothing happens: often nothing at all, often less than a tick.
func (m *denyModel) pause() time.Duration {
	const us = int64(time.Microsecond)
	switch r := m.rng.IntN(200); {
	case r == 0:
		return time.Duration(m.rng.Int64N(10_000 * us))
	case r < 50:
		return 0
	case r < 100:
		return time.Duration(m.rng.Int64N(2 * us))
	default:
		return time.Duration(m.rng.Int64N(20 * us))
	}
}

// Whatever a DenyCache answers from memory is a denial that the true limiter would
// have given at that instant, with many calls on their way, resets among them,
// replies lost, and other processes taking permits.
func TestDenyCacheModel(t *testing.T) {
	raceflag.SkipSequential(t)
	const ms = time.Millisecond
	truths := map[string]func() trueLimiter{
		"token bucket": func() trueLimiter { return &trueBucket{burst: 8, interval: 700 * time.Microsecond} },
		"fast bucket":  func() trueLimiter { return &trueBucket{burst: 3, interval: 200 * time.Microsecond} },
		"fixed window": func() trueLimiter { return &trueWindow{limit: 6, window: 5 * ms} },
		"sliding log": func() trueLimiter {
			return &trueLog{rules: []ratelimit.Rule{{Limit: 7, Window: 9 * ms}, {Limit: 4, Window: 3 * ms}}}
		},
	}
	options := map[string][]ratelimit.PolicyOption{
		"plain":       {ratelimit.WithMaxKeys(64)},
		"small":       {ratelimit.WithMaxKeys(4)},
		"max denial":  {ratelimit.WithMaxDenial(ms)},
		"max, 8 keys": {ratelimit.WithMaxDenial(2 * ms), ratelimit.WithMaxKeys(8)},
	}
	for kind, fresh := range truths {
		for name, opts := range options {
			t.Run(kind+", "+name, func(t *testing.T) {
				seed := rand.Uint64()
				if given := os.Getenv("RATELIMIT_SEED"); given != "" { // repeats an earlier run
					var err error
					seed, err = strconv.ParseUint(given, 10, 64)
					require.NoError(t, err)
				}
				t.Logf("RATELIMIT_SEED=%d", seed)
				runDenyCacheModel(t, seed, fresh, opts)
			})
		}
	}
}

func runDenyCacheModel(t *testing.T, seed uint64, fresh func() trueLimiter, opts []ratelimit.PolicyOption) {
	rng := rand.New(rand.NewPCG(seed, 0))
	m := &denyModel{
		steppingLimiter: newSteppingLimiter(nil),
		rng:             rng,
		offset:          time.Duration(rng.Int64N(int64(time.Hour))),
		keys:            map[string]trueLimiter{},
		fresh:           fresh,
	}
	c, _ := newTestDenyCache(t, m, opts...)
	c.Table().Now = func() time.Duration { return m.now }

	steps := 30_000
	if testing.Short() {
		steps = 5_000
	}
	var calls, hits, more, resets int
	var onTheirWay []*steppingCall
	check := func(call *steppingCall, what, key string, n int) {
		t.Helper()
		if call.asked {
			require.True(t, call.err == call.replyErr, "%s: got error %v, the limiter returned %v", what, call.err, call.replyErr)
			require.Equal(t, call.reply, call.result, what)
			return
		}
		hits++
		real, err := m.ask(key, n, false)
		require.NoError(t, err, what)
		require.NoError(t, call.err, what)
		got := call.result
		require.False(t, got.Allowed, what)
		require.False(t, real.Allowed, what)
		// The truth is exact to a tick; the remembered denial is of another instant.
		grain := m.keys[key].grain()
		require.Positive(t, got.RetryAfter, what)
		require.Less(t, got.RetryAfter, real.RetryAfter+grain, what)
		require.GreaterOrEqual(t, got.ResetAfter, time.Duration(0), what)
		require.Less(t, got.ResetAfter, real.ResetAfter+grain, what)
		require.GreaterOrEqual(t, got.Limit, n, what)
		require.Positive(t, got.Window, what)
		require.GreaterOrEqual(t, got.Remaining, 0, what)
		require.LessOrEqual(t, got.Remaining, got.Limit, what)
	}
	for step := range steps {
		m.now += m.pause()
		key, n := fmt.Sprint("key", rng.IntN(5)), 1+rng.IntN(5)
		switch action := rng.IntN(100); {
		case action < 50 && len(onTheirWay) < 6:
			call := &steppingCall{run: make(chan struct{}), fail: m.faults}
			what := fmt.Sprintf("step %d, %d of %s", step, n, key)
			switch {
			case rng.IntN(60) == 0:
				resets++
				m.startCall(call, func(ctx context.Context) (ratelimit.Result, error) { return ratelimit.Result{}, c.Reset(ctx, key) })
			case rng.IntN(5) == 0:
				calls, n = calls+1, 1
				m.startCall(call, func(ctx context.Context) (ratelimit.Result, error) { return c.Peek(ctx, key) })
			default:
				calls++
				m.startCall(call, func(ctx context.Context) (ratelimit.Result, error) { return c.TryAcquireN(ctx, key, n) })
			}
			if !call.done {
				onTheirWay = append(onTheirWay, call)
				break
			}
			check(call, what, key, n)
			if n > 1 {
				more++
			}
		case action < 90 && len(onTheirWay) > 0:
			i := rng.IntN(len(onTheirWay))
			call := onTheirWay[i]
			m.resume(call)
			if call.done {
				onTheirWay = slices.Delete(onTheirWay, i, i+1)
				check(call, fmt.Sprintf("step %d", step), "", 0)
			}
		case action < 95: // another process
			_, _ = m.ask(key, n, true)
		}
	}
	for _, call := range onTheirWay {
		for !call.done {
			m.resume(call)
		}
	}
	t.Logf("of %d calls %d were denied from memory, %d of them for several permits; %d resets", calls, hits, more, resets)
	require.GreaterOrEqual(t, hits, calls/50, "too few calls were denied from memory")
	require.NotZero(t, more, "no call for several permits")
	require.NotZero(t, resets, "no reset")
}
