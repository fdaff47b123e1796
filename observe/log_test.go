package observe_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/observe"
)

// logged is what a Log writes, line by line.
type logged struct {
	bytes.Buffer
	logger *slog.Logger
}

func newLogged() *logged {
	l := &logged{}
	l.logger = slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	return l
}

func (l *logged) took() []string {
	lines := strings.Split(strings.TrimSuffix(l.String(), "\n"), "\n")
	l.Reset()
	if lines[0] == "" {
		return nil
	}
	return lines
}

func denial(limiter, key string) ratelimit.Observation {
	o := denied(limiter, key)
	o.Result = ratelimit.Result{Limit: 20, Window: 2 * time.Second, RetryAfter: 100 * time.Millisecond}
	return o
}

func failure(limiter string, err error) ratelimit.Observation {
	return ratelimit.Observation{
		Limiter: limiter, Call: "acquire", Outcome: ratelimit.OutcomeFailed, Source: ratelimit.SourceRedis, Key: "secret", N: 1, Err: err,
	}
}

const line = `level=WARN msg="rate limit exceeded" limiter=api source=redis n=1 limit=20 window=2s retry_after=100ms`

func TestLogWritesALineForAKeyInAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := newLogged()
		log, err := observe.NewLog(out.logger)
		require.NoError(t, err)
		for range 5 {
			log.Observe(ctx, denial("api", "k"))
		}
		log.Observe(ctx, denial("api", "other"))
		log.Observe(ctx, denial("login", "k"))
		require.Equal(t, []string{line, line, strings.Replace(line, "api", "login", 1)}, out.took())
		time.Sleep(time.Minute - time.Nanosecond)
		log.Observe(ctx, denial("api", "k"))
		require.Empty(t, out.took())
		time.Sleep(time.Nanosecond)
		log.Observe(ctx, denial("api", "k"))
		log.Observe(ctx, denial("api", "k"))
		require.Equal(t, []string{line + " left_out=5"}, out.took())
	})
}

func TestLogWritesFewLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := newLogged()
		log, err := observe.NewLog(out.logger, observe.WithEvery(time.Second), observe.WithMaxLines(3))
		require.NoError(t, err)
		for i := range 1000 {
			log.Observe(ctx, denial("api", fmt.Sprint("k", i)))
		}
		log.Observe(ctx, denial("api", "k1")) // is known
		require.Equal(t, []string{line, line, line}, out.took())
		time.Sleep(time.Second)
		log.Observe(ctx, denial("api", "new")) // in place of k0
		log.Observe(ctx, denial("api", "k1"))
		log.Observe(ctx, denial("api", "k0")) // in place of k2
		log.Observe(ctx, denial("api", "k2"))
		require.Equal(t, []string{line + " others_left_out=997", line + " left_out=1", line}, out.took())
		time.Sleep(time.Second)
		log.Observe(ctx, denial("api", "k3"))
		require.Equal(t, []string{line + " others_left_out=1"}, out.took())
	})
}

// Nothing that was left out is lost: what is known of a key that makes room counts as others.
func TestLogLosesNoCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := newLogged()
		log, err := observe.NewLog(out.logger, observe.WithMaxLines(1))
		require.NoError(t, err)
		for range 8 {
			log.Observe(ctx, denial("api", "a"))
		}
		log.Observe(ctx, denial("api", "b"))
		out.took()
		time.Sleep(time.Minute)
		log.Observe(ctx, denial("api", "b"))
		require.Equal(t, []string{line + " others_left_out=8"}, out.took())
	})
}

func TestLogWritesFailuresWithoutTheKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := newLogged()
		log, err := observe.NewLog(out.logger, observe.WithKeys(observe.PlainKeys))
		require.NoError(t, err)
		down := fmt.Errorf("key secret: %w", &net.OpError{Op: "dial", Err: errors.New("refused")})
		log.Observe(ctx, failure("api", down))
		log.Observe(ctx, failure("api", down))
		log.Observe(ctx, failure("api", fmt.Errorf("key secret: %w", os.ErrDeadlineExceeded)))
		fell := denial("api", "secret")
		fell.Source, fell.Outcome, fell.Reason = ratelimit.SourceFallback, ratelimit.OutcomeAllowed, ratelimit.ErrBreakerOpen
		log.Observe(ctx, fell)
		log.Observe(ctx, fell)
		log.Observe(ctx, changed("api", ratelimit.BreakerClosed, ratelimit.BreakerOpen))
		for outcome := range ratelimit.OutcomeCanceled + 1 { // and one that is not set
			if outcome != ratelimit.OutcomeDenied && outcome != ratelimit.OutcomeFailed {
				quiet := denial("api", "secret")
				quiet.Outcome = outcome
				log.Observe(ctx, quiet)
			}
		}
		require.Equal(t, []string{
			`level=ERROR msg="rate limiter failed" limiter=api call=acquire source=redis error.type=connection`,
			`level=ERROR msg="rate limiter failed" limiter=api call=acquire source=redis error.type=timeout`,
			`level=WARN msg="rate limiter uses its fallback" limiter=api error.type=breaker_open`,
			`level=WARN msg="circuit breaker changed" limiter=api from=closed to=open open=1`,
		}, out.took())
	})
}

func changed(limiter string, from, to ratelimit.BreakerState) ratelimit.Observation {
	return ratelimit.Observation{Limiter: limiter, Call: "breaker", Outcome: ratelimit.OutcomeDone, From: from, Breaker: to}
}

const shut, half, open = ratelimit.BreakerClosed, ratelimit.BreakerHalfOpen, ratelimit.BreakerOpen

// An outage of three minutes with twenty breakers, each of which probes every 200 ms: five lines.
func TestLogWritesAnOutageOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := newLogged()
		log, err := observe.NewLog(out.logger)
		require.NoError(t, err)
		each := func(from, to ratelimit.BreakerState) {
			for i := range 20 {
				log.Observe(ctx, changed(fmt.Sprint("limit", i), from, to))
			}
		}
		each(shut, open)
		require.Equal(t, []string{`level=WARN msg="circuit breaker changed" limiter=limit0 from=closed to=open open=1`}, out.took())
		for range 3 * 60 * 5 {
			time.Sleep(200 * time.Millisecond)
			each(open, half)
			each(half, open)
		}
		const between = `level=WARN msg="circuit breaker changed" limiter=limit0 from=open to=half-open open=20 left_out=`
		require.Equal(t, []string{between + fmt.Sprint(19+299*40), between + fmt.Sprint(299*40+39), between + fmt.Sprint(299*40+39)}, out.took())
		time.Sleep(200 * time.Millisecond)
		each(open, half)
		each(half, shut)
		require.Equal(t, []string{`level=WARN msg="circuit breaker changed" limiter=limit19 from=half-open to=closed open=0 left_out=78`}, out.took())
	})
}

// Every outage that has lasted six seconds is written, and the end of every one that is. Those that are shorter count.
func TestLogWritesFewLinesOfABreakerThatFlaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := newLogged()
		log, err := observe.NewLog(out.logger)
		require.NoError(t, err)
		flap := func(between time.Duration) {
			for _, to := range []ratelimit.BreakerState{open, half, shut} {
				log.Observe(ctx, changed("api", map[ratelimit.BreakerState]ratelimit.BreakerState{open: shut, half: open, shut: half}[to], to))
				time.Sleep(between)
			}
		}
		begins, ends := `level=WARN msg="circuit breaker changed" limiter=api from=closed to=open open=1`, `level=WARN msg="circuit breaker changed" limiter=api from=half-open to=closed open=0`
		flap(time.Second)
		require.Equal(t, []string{begins, ends + " left_out=1"}, out.took())
		flap(time.Second - time.Nanosecond)
		require.Empty(t, out.took(), "3 s after the other began")
		time.Sleep(3 * time.Nanosecond)
		flap(time.Second)
		require.Equal(t, []string{begins + " left_out=3", ends + " left_out=1"}, out.took(), "6 s after it began")
		for range 600 { // a minute
			flap(100 * time.Millisecond / 3)
		}
		require.LessOrEqual(t, len(out.took()), 2*10+2)
	})
}

// A breaker that nobody uses any more, as after a new configuration, does not hide the end of the next outage.
func TestLogForgetsABreakerThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := newLogged()
		log, err := observe.NewLog(out.logger)
		require.NoError(t, err)
		log.Observe(ctx, changed("gone", shut, open))
		time.Sleep(time.Minute + time.Nanosecond)
		log.Observe(ctx, changed("api", shut, open))
		log.Observe(ctx, changed("api", open, half))
		log.Observe(ctx, changed("api", half, shut))
		require.Equal(t, []string{
			`level=WARN msg="circuit breaker changed" limiter=gone from=closed to=open open=1`,
			`level=WARN msg="circuit breaker changed" limiter=api from=closed to=open open=1`,
			`level=WARN msg="circuit breaker changed" limiter=api from=half-open to=closed open=0 left_out=1`,
		}, out.took())
	})
}

func TestLogKeys(t *testing.T) {
	long := strings.Repeat("x", 300)
	for keys, want := range map[observe.Keys][2]string{
		observe.NoKeys:     {"", ""},
		observe.HashedKeys: {" key.sha256=ea3fd43be1e57d62", " key.sha256=0d4e2ca9e9cbced7"},
		observe.PlainKeys:  {" key=user:42", " key=" + long[:200]},
	} {
		out := newLogged()
		log, err := observe.NewLog(out.logger, observe.WithKeys(keys))
		require.NoError(t, err)
		log.Observe(ctx, denial("api", "user:42"))
		log.Observe(ctx, denial("api", long))
		require.Equal(t, []string{
			strings.Replace(line, " n=1", want[0]+" n=1", 1), strings.Replace(line, " n=1", want[1]+" n=1", 1),
		}, out.took())
	}
}

func TestWhatIsNotWrittenAllocatesNothing(t *testing.T) {
	loud, err := observe.NewLog(newLogged().logger)
	require.NoError(t, err)
	allowed := denial("api", "k")
	allowed.Outcome = ratelimit.OutcomeAllowed
	require.Zero(t, testing.AllocsPerRun(100, func() { loud.Observe(ctx, allowed) }))
	o := denial("api", "k")
	loud.Observe(ctx, o)
	require.Zero(t, testing.AllocsPerRun(100, func() { loud.Observe(ctx, o) }), "what is sampled away")
}

func TestLogConcurrently(t *testing.T) {
	out := &counter{Handler: slog.DiscardHandler}
	log, err := observe.NewLog(slog.New(out), observe.WithEvery(time.Hour), observe.WithMaxLines(50))
	require.NoError(t, err)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range 500 {
				log.Observe(ctx, denial("api", fmt.Sprint(i)))
			}
		})
	}
	all.Wait()
	require.Equal(t, 50, out.lines)
}

// A counter counts lines.
type counter struct {
	slog.Handler
	mu    sync.Mutex // guards lines
	lines int
}

func (c *counter) Enabled(context.Context, slog.Level) bool { return true }

func (c *counter) Handle(context.Context, slog.Record) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lines++
	return nil
}

func TestLogConfigErrors(t *testing.T) {
	for _, test := range []struct {
		logger *slog.Logger
		opts   []observe.LogOption
		want   string
	}{
		{nil, nil, "NewLog: the logger is nil; give slog.Default()"},
		{slog.Default(), []observe.LogOption{nil}, "NewLog: option 1 is nil"},
		{slog.Default(), []observe.LogOption{observe.WithEvery(time.Millisecond - 1)}, "WithEvery: 999.999µs is below 1ms"},
		{slog.Default(), []observe.LogOption{observe.WithMaxLines(0)}, "WithMaxLines: 0 is not between 1 and 1000000"},
		{slog.Default(), []observe.LogOption{observe.WithMaxLines(1_000_001)}, "WithMaxLines: 1000001 is not between 1 and 1000000"},
		{slog.Default(), []observe.LogOption{observe.WithKeys(3)}, "WithKeys: 3 is not one of NoKeys, HashedKeys and PlainKeys"},
	} {
		_, err := observe.NewLog(test.logger, test.opts...)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, test.want)
	}
}

// reply is an error that Redis replies.
type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

func TestErrorTypes(t *testing.T) {
	wrap := func(err error) error { return fmt.Errorf("ratelimit: key %q: %w", "secret", err) }
	for _, test := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{errors.New("secret"), "_OTHER"},
		{wrap(context.Canceled), "context_canceled"},
		{wrap(context.DeadlineExceeded), "context_deadline_exceeded"},
		{errors.Join(wrap(io.EOF), context.Canceled), "context_canceled"},
		{wrap(ratelimit.ErrOverBudget), "over_budget"},
		{wrap(ratelimit.ErrBreakerOpen), "breaker_open"},
		{wrap(ratelimit.ErrInvalidKey), "invalid_key"},
		{wrap(ratelimit.ErrInvalidPermits), "invalid_permits"},
		{wrap(ratelimit.ErrExceedsLimit), "exceeds_limit"},
		{wrap(ratelimit.ErrInvalidConfig), "invalid_config"},
		{errors.Join(ratelimit.ErrCorruptState, reply("WRONGTYPE x")), "corrupt_state"},
		{wrap(ratelimit.ErrCrossSlot), "cross_slot"},
		{wrap(ratelimit.ErrTooMuchDebt), "too_much_debt"},
		{wrap(ratelimit.ErrSettled), "settled"},
		{wrap(ratelimit.ErrLeaseLost), "lease_lost"},
		{&ratelimit.WaitError{Key: "secret"}, "wait_too_long"},
		{wrap(redis.ErrPoolTimeout), "pool_timeout"},
		{wrap(redis.ErrClosed), "client_closed"},
		{wrap(io.EOF), "connection"},
		{wrap(&net.OpError{Op: "dial", Err: errors.New("refused")}), "connection"},
		{wrap(&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}), "timeout"},
		{wrap(os.ErrDeadlineExceeded), "timeout"},
		{wrap(reply("LOADING Redis is loading the dataset in memory")), "redis_loading"},
		{wrap(reply("READONLY You can't write against a read only replica.")), "redis_readonly"},
		{wrap(reply("OOM command not allowed when used memory > 'maxmemory'.")), "redis_oom"},
		{wrap(reply("secret words")), "redis"},
	} {
		require.Equal(t, test.want, observe.ErrorType(test.err), "%v", test.err)
	}
}

// TestAFloodOfDenialsHidesNoOutage: failures and fallbacks have lines of their own.
func TestAFloodOfDenialsHidesNoOutage(t *testing.T) {
	l := newLogged()
	log := ratelimit.Must(observe.NewLog(l.logger, observe.WithMaxLines(2)))
	for i := range 1000 {
		log.Observe(ctx, denial("api", fmt.Sprint("key ", i)))
	}
	require.Len(t, l.took(), 2)
	log.Observe(ctx, failure("api", io.EOF))
	fallback := denial("api", "one more")
	fallback.Source, fallback.Reason = ratelimit.SourceFallback, ratelimit.ErrBreakerOpen
	log.Observe(ctx, fallback)
	require.Equal(t, []string{
		`level=ERROR msg="rate limiter failed" limiter=api call=acquire source=redis error.type=connection`,
		`level=WARN msg="rate limiter uses its fallback" limiter=api error.type=breaker_open`,
	}, l.took())
	log.Observe(ctx, failure("other", io.EOF))
	require.Empty(t, l.took(), "these have a bound too")
}

// TestNilAndZeroObservers do nothing.
func TestNilAndZeroObservers(t *testing.T) {
	for _, l := range []*observe.Log{nil, {}} {
		l.Observe(ctx, denial("api", "k"))
	}
	for _, top := range []*observe.Top{nil, {}} {
		top.Observe(ctx, denial("api", "k"))
		require.Empty(t, top.Top(1))
		n, since := top.Denials()
		require.Zero(t, n)
		require.Zero(t, since)
		top.Reset()
	}
}
