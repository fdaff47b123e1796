package errclass_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
	"github.com/tryacquire/ratelimit/internal/errclass"
	"github.com/tryacquire/ratelimit/internal/rpclimit"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/observe"
)

// reply is an error that Redis replies.
type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

// A meaning is what every consumer makes of an error.
type meaning struct {
	secondary bool // a Fallback asks its secondary, and a breaker counts a failure
	success   bool // a breaker counts a success
	source    ratelimit.Source
	status    int // of HTTP
	code      uint32
	open      bool // ServeInOutages lets the request pass
}

var (
	mistake  = meaning{source: ratelimit.Source(0), status: 500, code: 13}
	noKey    = meaning{source: ratelimit.Source(0), status: 400, code: 3}
	decision = meaning{success: true, source: ratelimit.SourceRedis, status: 429, code: 8}
	lost     = meaning{success: true, source: ratelimit.SourceRedis, status: 503, code: 14}
	damaged  = meaning{source: ratelimit.SourceRedis, status: 500, code: 13}
	unpicked = meaning{source: ratelimit.Source(0), status: 503, code: 14}
	outage   = meaning{secondary: true, source: ratelimit.SourceRedis, status: 503, code: 14, open: true}
)

var meanings = []struct {
	err   error
	kind  string
	means meaning
}{
	{ratelimit.ErrInvalidConfig, "invalid_config", mistake},
	{ratelimit.ErrInvalidKey, "invalid_key", mistake},
	{ratelimit.ErrInvalidPermits, "invalid_permits", mistake},
	{ratelimit.ErrCrossSlot, "cross_slot", mistake},
	{ratelimit.ErrIDReused, "id_reused", mistake},
	{ratelimit.ErrSettled, "settled", mistake},
	{ratelimit.ErrExceedsLimit, "exceeds_limit", noKey},
	{httplimit.ErrNoKey, "no_key", noKey},
	{httplimit.ErrBadKey, "bad_key", noKey},
	{ratelimit.ErrDenied, "denied", decision},
	{&ratelimit.DeniedError{}, "denied", decision},
	{ratelimit.ErrWaitTooLong, "wait_too_long", decision},
	{&ratelimit.WaitError{}, "wait_too_long", decision},
	{ratelimit.ErrTooMuchDebt, "too_much_debt", decision},
	{ratelimit.ErrTooManyTickets, "too_many_tickets", decision},
	{ratelimit.ErrLeaseLost, "lease_lost", lost},
	{ratelimit.ErrCorruptState, "corrupt_state", damaged},
	{ratelimit.ErrOverBudget, "over_budget", outage},
	{ratelimit.ErrBreakerOpen, "breaker_open", outage},
	{context.Canceled, "context_canceled", outage}, // not the caller's own
	{context.DeadlineExceeded, "context_deadline_exceeded", outage},
	{redis.ErrPoolTimeout, "pool_timeout", outage},
	{errors.New("dial"), "_OTHER", outage},
	{&errclass.PickError{Err: errors.New("dial")}, "pick_failed", unpicked},
	{&errclass.PickError{Err: context.DeadlineExceeded}, "pick_failed", unpicked},
	{&errclass.PickError{Err: ratelimit.ErrBreakerOpen}, "pick_failed", unpicked},
	{&errclass.PickError{Err: ratelimit.ErrDenied}, "pick_failed", unpicked}, // DenyAll denies
	{&errclass.PickError{Err: ratelimit.ErrInvalidConfig}, "invalid_config", mistake},
	{&errclass.PickError{Err: httplimit.ErrNoKey}, "no_key", noKey},
	{reply("CROSSSLOT Keys in request don't hash to the same slot"), "cross_slot", mistake},
	{reply("ERR Error compiling script (new function): user_script:1: too many local variables"), "invalid_config", mistake},
	{reply("WRONGTYPE Operation against a key holding the wrong kind of value"), "corrupt_state", damaged},
	{reply("CORRUPT it holds no bucket"), "corrupt_state", damaged},
	{reply("ERR value is not an integer or out of range"), "corrupt_state", damaged},
	{reply("BUSY Redis is busy running a script."), "redis_busy", outage},
	{reply("CLUSTERDOWN The cluster is down"), "redis_clusterdown", outage},
	{reply("LOADING Redis is loading the dataset in memory"), "redis_loading", outage},
	{reply("MASTERDOWN Link with MASTER is down"), "redis_masterdown", outage},
	{reply("MISCONF Redis is configured to save RDB snapshots"), "redis_misconf", outage},
	{reply("NOAUTH Authentication required."), "redis_noauth", outage},
	{reply("NOPERM User default has no permissions"), "invalid_config", mistake},
	{reply("ERR The user executing the script can't run this command or subcommand script: x"), "invalid_config", mistake},
	{reply("NOREPLICAS Not enough good replicas to write."), "redis_noreplicas", outage},
	{reply("OOM command not allowed when used memory > 'maxmemory'."), "redis_oom", outage},
	{reply("READONLY You can't write against a read only replica."), "redis_readonly", outage},
	{reply("TRYAGAIN Multiple keys request during rehashing of slot"), "redis_tryagain", outage},
	{reply("WRONGPASS invalid username-password pair"), "redis_wrongpass", outage},
	{reply("ERR unknown command 'evalsha', with args beginning with: 'x'"), "invalid_config", mistake},
	{reply("ERR Could not find scripting engine 'lua'"), "invalid_config", mistake},
	{reply("ERR Unknown Redis command called from script script: x"), "invalid_config", mistake},
	{reply("BUSYGROUP Consumer Group name already exists"), "redis", outage},
}

// TestWhatAnErrorMeansToEveryConsumer has every class of errors before every consumer.
func TestWhatAnErrorMeansToEveryConsumer(t *testing.T) {
	for _, m := range meanings {
		t.Run(fmt.Sprintf("%T %v", m.err, m.err), func(t *testing.T) {
			err := fmt.Errorf("wrapped: %w", m.err)
			require.Equal(t, m.kind, observe.ErrorType(err))
			askFallbacks(t, err, m.means)
			askHTTP(t, err, m.means)
			code, _ := rpclimit.CodeOf(t.Context(), err)
			require.EqualValues(t, m.means.code, code)
			require.Equal(t, m.means.open, rpclimit.IsOutage(t.Context(), err))
		})
	}
}

// askFallbacks asks one of each kind, whose primary returns err.
func askFallbacks(t *testing.T, err error, means meaning) {
	for name, opts := range map[string][]ratelimit.PolicyOption{
		"no breaker": nil, "a budget": {ratelimit.WithBudget(time.Hour)}, "budget and breaker": {ratelimit.WithBudget(time.Hour), ratelimit.WithBreaker(&ratelimit.Breaker{})},
	} {
		for _, peek := range []bool{false, true} {
			f := ratelimit.Must(ratelimit.NewFallback(&limitertest.Stub{Err: err}, ratelimit.AllowAll(), opts...))
			ask := f.TryAcquire
			if peek {
				ask = f.Peek
			}
			r, got := ask(t.Context(), "k")
			if means.secondary {
				require.NoError(t, got, name)
				require.Equal(t, ratelimit.Result{Allowed: true, Fallback: true}, r, name)
				continue
			}
			require.Equal(t, err, got, name)
			require.Equal(t, ratelimit.Result{}, r, name)
		}
	}

	// One failure opens this breaker; after one failure of two, a success keeps the other closed.
	down := errors.New("down")
	for _, test := range []struct {
		failures int
		answers  []error
		open     bool
	}{
		{1, []error{err}, means.secondary},
		{2, []error{down, err, down}, means.secondary || !means.success},
	} {
		b := &ratelimit.Breaker{Failures: test.failures, ProbeEvery: time.Hour}
		primary := &limitertest.Stub{}
		f := ratelimit.Must(ratelimit.NewFallback(primary, ratelimit.AllowAll(), ratelimit.WithBreaker(b)))
		for _, primary.Err = range test.answers {
			_, _ = f.TryAcquire(t.Context(), "k")
		}
		require.Equal(t, test.open, b.State() == ratelimit.BreakerOpen, "%d failures", test.failures)
	}
}

func askHTTP(t *testing.T, err error, means meaning) {
	served := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	for _, open := range []bool{false, true} {
		var opts []httplimit.Option
		want := means.status
		if open {
			opts = append(opts, httplimit.WithErrorHandler(httplimit.ServeInOutages))
			if means.open {
				want = http.StatusNoContent
			}
		}
		wrap := ratelimit.Must(httplimit.New(&limitertest.Stub{Err: err}, httplimit.Everyone(), opts...))
		w := httptest.NewRecorder()
		wrap(served).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		require.Equal(t, want, w.Code)
	}
}

// TestRepliesOfServersMatchAndAreObserved: a limiter makes of a reply an error that can be matched,
// and its observers hear whether Redis decided.
func TestRepliesOfServersMatchAndAreObserved(t *testing.T) {
	for prefix, is := range map[reply]error{
		"CROSSSLOT Keys": ratelimit.ErrCrossSlot, "ERR Error compiling script (new function): x": ratelimit.ErrInvalidConfig,
		"WRONGTYPE Operation": ratelimit.ErrCorruptState, "CORRUPT x": ratelimit.ErrCorruptState,
		"ERR value is not an integer or out of range": ratelimit.ErrCorruptState, "OOM command": nil,
	} {
		var seen []ratelimit.Observation
		watch := ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) { seen = append(seen, o) })
		l := ratelimit.Must(ratelimit.NewFixedWindow(fakes.Failing(prefix), 10, time.Minute, watch))
		_, err := l.TryAcquire(t.Context(), "k")
		require.ErrorAs(t, err, new(redis.Error), "the server's own words stay")
		for _, s := range []error{ratelimit.ErrCrossSlot, ratelimit.ErrInvalidConfig, ratelimit.ErrCorruptState, ratelimit.ErrTooMuchDebt} {
			require.Equal(t, s == is, errors.Is(err, s), "%v is %v", prefix, s)
		}
		require.Len(t, seen, 1)
		require.Equal(t, ratelimit.OutcomeFailed, seen[0].Outcome)
		want := ratelimit.SourceRedis
		if is == ratelimit.ErrCrossSlot || is == ratelimit.ErrInvalidConfig {
			want = ratelimit.Source(0)
		}
		require.Equal(t, want, seen[0].Source, "%v", prefix)
	}
}

// A pair takes a permit of a key, and one of another key, in one call.
type pair struct {
	a, b  *ratelimit.FixedWindow
	other string
}

func (p pair) TryAcquire(ctx context.Context, key string) (ratelimit.Result, error) {
	return p.TryAcquireN(ctx, key, 1)
}

func (p pair) TryAcquireN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	all, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(p.a, key, n), ratelimit.ClaimOf(p.b, p.other, n))
	return all.Result, err
}

func (p pair) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	return p.TryAcquire(ctx, key) // takes nothing here: the keys are in several slots
}

func (p pair) Reset(ctx context.Context, key string) error { return p.a.Reset(ctx, key) }

// TestKeysInSeveralSlotsNeverTakeTheLimitOff: what a user chooses as a key is no outage, and opens
// no breaker that others share.
func TestKeysInSeveralSlotsNeverTakeTheLimitOff(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": "127.0.0.1:1"}, MaxRetries: -1})
	t.Cleanup(func() { _ = ring.Close() })
	window := func(name string) *ratelimit.FixedWindow {
		return ratelimit.Must(ratelimit.NewFixedWindow(ring, 2, time.Minute, ratelimit.WithName(name)))
	}
	b := &ratelimit.Breaker{Failures: 1}
	limiter := ratelimit.Must(ratelimit.NewFallback(pair{window("user"), window("address"), "everybody"}, ratelimit.AllowAll(), ratelimit.WithBreaker(b)))
	for _, key := range []string{"user", "{}}", "{" + "}" + "}", "{", "}{"} {
		for range 5 {
			r, err := limiter.TryAcquire(t.Context(), key)
			require.ErrorIs(t, err, ratelimit.ErrCrossSlot, key)
			require.Equal(t, ratelimit.Result{}, r, key)
			_, err = limiter.Peek(t.Context(), key)
			require.ErrorIs(t, err, ratelimit.ErrCrossSlot, key)
			require.Equal(t, ratelimit.BreakerClosed, b.State(), key)
		}
	}
}

// TestOneDamagedKeyIsAnErrorOfThatKey, on Redis: it neither loses its limit in silence nor opens
// the breaker of the others.
func TestOneDamagedKeyIsAnErrorOfThatKey(t *testing.T) {
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	window := ratelimit.Must(ratelimit.NewFixedWindow(client, 2, time.Minute))
	b := &ratelimit.Breaker{Failures: 1}
	limiter := ratelimit.Must(ratelimit.NewFallback(window, ratelimit.AllowAll(), ratelimit.WithBreaker(b)))
	ctx := t.Context()
	_, err := limiter.TryAcquire(ctx, "damaged")
	require.NoError(t, err)
	require.Len(t, server.Keys(), 1)
	require.NoError(t, client.Set(ctx, server.Keys()[0], "no state", time.Minute).Err())
	for range 5 {
		r, err := limiter.TryAcquire(ctx, "damaged")
		require.ErrorIs(t, err, ratelimit.ErrCorruptState)
		require.Equal(t, ratelimit.Result{}, r)
		require.Equal(t, ratelimit.BreakerClosed, b.State())
	}
	r, err := limiter.TryAcquire(ctx, "sound")
	require.NoError(t, err)
	require.Equal(t, ratelimit.Result{Allowed: true, Limit: 2, Window: time.Minute, Remaining: 1, ResetAfter: time.Minute}, r)
	require.NoError(t, limiter.Reset(ctx, "damaged"))
	_, err = limiter.TryAcquire(ctx, "damaged")
	require.NoError(t, err)
}

// TestTheSecondarysErrors: a mistake that only the secondary makes is not that of the call, and a
// damaged key of the secondary is never passed over as an outage.
func TestTheSecondarysErrors(t *testing.T) {
	down := errors.New("down")
	for _, test := range []struct {
		err      error
		is, isNo []error
	}{
		{ratelimit.ErrInvalidConfig, []error{down}, []error{ratelimit.ErrInvalidConfig}},
		{ratelimit.ErrCrossSlot, []error{ratelimit.ErrCrossSlot}, []error{down}},
		{ratelimit.ErrInvalidPermits, []error{ratelimit.ErrInvalidPermits}, []error{down}},
		{ratelimit.ErrCorruptState, []error{down, ratelimit.ErrCorruptState}, nil},
	} {
		inner := ratelimit.Must(ratelimit.NewFallback(&limitertest.Stub{Err: down}, &limitertest.Stub{Err: test.err}))
		_, err := inner.TryAcquire(t.Context(), "k")
		for _, is := range test.is {
			require.ErrorIs(t, err, is)
		}
		for _, is := range test.isNo {
			require.NotErrorIs(t, err, is)
		}
		outer := ratelimit.Must(ratelimit.NewFallback(inner, ratelimit.AllowAll()))
		r, got := outer.TryAcquire(t.Context(), "k")
		if test.err == ratelimit.ErrInvalidConfig {
			require.NoError(t, got)
			require.Equal(t, ratelimit.Result{Allowed: true, Fallback: true}, r)
			continue
		}
		require.Equal(t, err, got, "%v", test.err)
	}
}
