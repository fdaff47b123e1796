package limits

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

// A stage is a file of limits, and a Redis.
type stage struct {
	*ratelimittest.Env
	t    testing.TB
	file string
}

// onStage runs test in a bubble, where time passes at once.
func onStage(t *testing.T, test func(t *testing.T, s stage)) {
	synctest.Test(t, func(t *testing.T) {
		test(t, stage{ratelimittest.New(t), t, filepath.Join(t.TempDir(), "limits.yaml")})
	})
}

func (s stage) write(text string) { require.NoError(s.t, os.WriteFile(s.file, []byte(text), 0o600)) }

func (s stage) load(text string, o Options) *Set {
	s.write(text)
	set, err := Load(s.Client(), s.file, o)
	require.NoError(s.t, err)
	return set
}

func (s stage) limiter(set *Set, name string) ratelimit.Limiter {
	l, err := set.Limiter(name)
	require.NoError(s.t, err)
	return l
}

func take(t testing.TB, l ratelimit.Limiter, key string, n int) ratelimit.Result {
	t.Helper()
	r, err := l.TryAcquireN(t.Context(), key, n)
	require.NoError(t, err)
	return r
}

// TestEachAlgorithmDecides asserts all of a Result of each limit in testdata/all.yaml.
func TestEachAlgorithmDecides(t *testing.T) {
	onStage(t, func(t *testing.T, s stage) {
		text, err := os.ReadFile("testdata/all.yaml")
		require.NoError(t, err)
		set := s.load(string(text), Options{})
		for name, want := range map[string]ratelimit.Result{
			"api":    {Allowed: true, Limit: 100, Window: 10 * time.Second, Remaining: 98, ResetAfter: 200 * time.Millisecond},
			"steps":  {Allowed: true, Limit: 100, Window: 100 * time.Second, Remaining: 98, ResetAfter: 2 * time.Second},
			"shaper": {Allowed: true, Limit: 10, Window: 2 * time.Second, Remaining: 8, ResetAfter: 400 * time.Millisecond},
			"login":  {Allowed: true, Limit: 5, Window: 15 * time.Minute, Remaining: 3, ResetAfter: 990*time.Second - time.Microsecond},
			"exact":  {Allowed: true, Limit: 20, Window: time.Second, Remaining: 18, ResetAfter: time.Minute + time.Millisecond - time.Microsecond},
			"second": {Allowed: true, Limit: 10, Window: time.Second, Remaining: 8, ResetAfter: time.Second},
			"quota":  {Allowed: true, Limit: 50_000, Window: 31 * 24 * time.Hour, Remaining: 49_998, ResetAfter: 31*24*time.Hour - time.Hour}, // Berlin is an hour ahead
			"week":   {Allowed: true, Limit: 500, Window: 7 * 24 * time.Hour, Remaining: 498, ResetAfter: 24 * time.Hour},                     // 2000-01-01 is a Saturday
		} {
			require.Equal(t, want, take(t, s.limiter(set, name), "k", 2), name)
		}
		require.Equal(t, 46, take(t, s.limiter(set, "batch"), "k", 2).Remaining, "it shares its state with api, and leaves 50")
		both := take(t, s.limiter(set, "both"), "k", 2)
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: 100, Window: 10 * time.Second, Remaining: 94, ResetAfter: 31*24*time.Hour - time.Hour}, both)
		require.Equal(t, 49_996, take(t, s.limiter(set, "quota"), "k", 1).Remaining+1, "both counts for its parts")

		reports, err := set.Holder("reports")
		require.NoError(t, err)
		hold, r, err := reports.TryAcquireN(t.Context(), "k", 2)
		require.NoError(t, err)
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: 20, Window: 30 * time.Second, Remaining: 18, ResetAfter: 30 * time.Second}, r)
		require.NoError(t, hold.Release(t.Context()))
	})
}

// TestKeysAreThoseOfThePrograms: a limit of a file shares its state with one that a program builds under its name.
func TestKeysAreThoseOfThePrograms(t *testing.T) {
	onStage(t, func(t *testing.T, s stage) {
		set := s.load("prefix: shop\nlimits: {api: {algorithm: fixed_window, rate: 10/h}}", Options{})
		take(t, s.limiter(set, "api"), "k", 3)
		own := ratelimit.Must(ratelimit.NewFixedWindow(s.Client(), 10, time.Hour, ratelimit.WithName("api"), ratelimit.WithPrefix("shop")))
		require.Equal(t, 6, take(t, own, "k", 1).Remaining)
	})
}

func TestPlans(t *testing.T) {
	onStage(t, func(t *testing.T, s stage) {
		plans := map[string]string{"user:pro": "pro", "user:staff": "staff", "user:banned": "banned", "user:odd": "unknown"}
		set := s.load(`
outages: {default: {fallback: allow, budget: 50ms}}
limits:
  api: {algorithm: fixed_window, rate: 10/h, plans: {pro: {rate: 100/h}, staff: unlimited, banned: denied}}
  day: {algorithm: fixed_window, rate: 20/24h, plans: {pro: {rate: 50/24h}}}
  both: {all: [api, day]}
`, Options{PlanOf: func(_ context.Context, key string) string { return plans[key] }})
		api, both := s.limiter(set, "api"), s.limiter(set, "both")
		require.Equal(t, 9, take(t, api, "user:free", 1).Remaining)
		require.Equal(t, 9, take(t, api, "user:odd", 1).Remaining, "a plan that the limit does not have")
		require.Equal(t, 99, take(t, api, "user:pro", 1).Remaining)
		plans["user:free"] = "pro"
		require.Equal(t, 98, take(t, api, "user:free", 1).Remaining, "what was used counts after a change of plan")
		require.True(t, take(t, api, "user:staff", 1).Unlimited())
		require.False(t, take(t, api, "user:banned", 1).Allowed)

		require.Equal(t, 20, take(t, both, "user:staff", 1).Limit, "unlimited by api, and limited by day")
		require.Equal(t, 50, take(t, both, "user:pro", 1).Limit)
		require.False(t, take(t, both, "user:banned", 1).Allowed)

		s.Down()
		require.True(t, take(t, api, "user:free", 1).Fallback)
		require.False(t, take(t, api, "user:banned", 1).Allowed, "also in an outage that allows every call")
		require.False(t, take(t, both, "user:banned", 1).Allowed)
	})
}

func TestOutagePolicies(t *testing.T) {
	onStage(t, func(t *testing.T, s stage) {
		var seen []ratelimit.Observation
		var mu sync.Mutex
		set := s.load(`
outages:
  default: {fallback: local, budget: 50ms, instances: 4}
  open: {fallback: allow, budget: 50ms}
  closed: {fallback: deny, budget: 50ms}
limits:
  api: {algorithm: token_bucket, rate: 100/m, burst: 20, headroom: 4}
  login: {algorithm: sliding_window, rate: 9/h, outage: closed}
  read: {algorithm: sliding_window, rate: 9/h, outage: open}
  window: {algorithm: sliding_window, rate: 9/h}
  log: {algorithm: sliding_log, rates: [20/s, 100/m]}
  quota: {algorithm: calendar_window, limit: 3100, every: month, time_zone: UTC}
  bare: {algorithm: sliding_window, rate: 9/h, outage: none}
  both: {all: [window, api]}
  jobs: {algorithm: in_flight, limit: 9, lease: 30s}
`, Options{Observers: []ratelimit.Observer{func(_ context.Context, o ratelimit.Observation) {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, o)
		}}})
		s.Down()
		for name, want := range map[string]ratelimit.Result{
			"api":    {Allowed: true, Limit: 4, Window: 9600 * time.Millisecond, Remaining: 3, ResetAfter: 2400 * time.Millisecond, Fallback: true},
			"login":  {RetryAfter: time.Second, ResetAfter: time.Second, Fallback: true},
			"read":   {Allowed: true, Fallback: true},
			"window": {Allowed: true, Limit: 2, Window: 3200 * time.Second, Remaining: 1, ResetAfter: 1600 * time.Second, Fallback: true},
			"log":    {Allowed: true, Limit: 5, Window: 12 * time.Second, Remaining: 4, ResetAfter: 2400 * time.Millisecond, Fallback: true},
			"quota":  {Allowed: true, Limit: 775, Window: 31 * 24 * time.Hour, Remaining: 774, ResetAfter: 4 * 31 * 24 * time.Hour / 3100, Fallback: true},
		} {
			got := take(t, s.limiter(set, name), "k", 1)
			got.Window, got.ResetAfter = got.Window.Round(time.Microsecond), got.ResetAfter.Round(time.Microsecond)
			require.Equal(t, want, got, name)
		}
		both := take(t, s.limiter(set, "both"), "k", 1)
		require.Equal(t, []int{2, 0}, []int{both.Limit, both.Remaining}, "its parts share their memory with the limits themselves")
		_, err := s.limiter(set, "bare").TryAcquire(t.Context(), "k")
		require.Error(t, err)
		jobs, err := set.Holder("jobs")
		require.NoError(t, err)
		hold, r, err := jobs.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: 2, Remaining: 1, Fallback: true}, r)
		require.NoError(t, hold.Release(t.Context()))

		// A reload keeps what was counted in memory.
		s.write(`
outages: {default: {fallback: local, budget: 50ms, instances: 2}}
limits:
  api: {algorithm: token_bucket, rate: 100/m, burst: 20, headroom: 4}
  login: {algorithm: sliding_window, rate: 9/h}
  read: {algorithm: sliding_window, rate: 9/h}
  window: {algorithm: sliding_window, rate: 8/h}
  log: {algorithm: sliding_log, rates: [20/s, 100/m]}
  quota: {algorithm: calendar_window, limit: 3100, every: month, time_zone: UTC}
  bare: {algorithm: sliding_window, rate: 9/h, outage: none}
  both: {all: [window, api]}
  jobs: {algorithm: in_flight, limit: 9, lease: 30s}
`)
		require.NoError(t, set.Reload())
		got := take(t, s.limiter(set, "window"), "k", 1)
		require.Equal(t, []any{true, 4, 1}, []any{got.Allowed, got.Limit, got.Remaining}, "two of four were used before")

		mu.Lock()
		defer mu.Unlock()
		var breakers, fallbacks int
		for _, o := range seen {
			if o.Call == "breaker" {
				breakers++
			}
			if o.Source == ratelimit.SourceFallback {
				fallbacks++
			}
		}
		require.Positive(t, breakers)
		require.Equal(t, 9, fallbacks)
	})
}

// TestEveryOperation: the limiter of a name is a Choice, so that everything works that works with the limiter itself.
func TestEveryOperation(t *testing.T) {
	onStage(t, func(t *testing.T, s stage) {
		set := s.load(`
outages: {default: {fallback: local, budget: 50ms, instances: 1}}
limits:
  api: {algorithm: token_bucket, rate: 10/s, burst: 10, deny_cache: true}
  day: {algorithm: fixed_window, rate: 100/24h}
`, Options{})
		api, err := set.Limiter("api")
		require.NoError(t, err)
		day, err := set.Limiter("day")
		require.NoError(t, err)
		ctx := t.Context()
		taken, _, err := api.TryAcquireUpTo(ctx, "k", 4)
		require.NoError(t, err)
		require.Equal(t, 4, taken)
		ticket, r, err := api.Estimate(ctx, "k", 4)
		require.NoError(t, err)
		require.Equal(t, 2, r.Remaining)
		require.NoError(t, ticket.Settle(ctx, 1))
		r, err = api.Charge(ctx, "k", 5)
		require.NoError(t, err)
		require.Equal(t, 0, r.Remaining)
		reservation, err := api.Reserve(ctx, "k", 1, time.Minute)
		require.NoError(t, err)
		require.NotNil(t, reservation)
		_, err = ratelimit.Wait(ctx, api, "k")
		require.NoError(t, err)
		all, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(api, "other", 1), ratelimit.ClaimOf(day, "other", 2))
		require.NoError(t, err)
		require.Equal(t, []int{9, 98}, []int{all.Parts[0].Result.Remaining, all.Parts[1].Result.Remaining})
		require.Equal(t, "api", all.Parts[0].Name)
		require.NoError(t, api.Reset(ctx, "k"))
		require.Equal(t, 9, take(t, api, "k", 1).Remaining)
	})
}

func TestReload(t *testing.T) {
	onStage(t, func(t *testing.T, s stage) {
		set := s.load("limits:\n  api: {algorithm: token_bucket, rate: 10/h, burst: 10, deny_cache: true}\n  day: {algorithm: fixed_window, rate: 5/24h}\n", Options{})
		api, day := s.limiter(set, "api"), s.limiter(set, "day")
		take(t, api, "k", 8)
		take(t, day, "k", 3)
		before := set.current.Load().limits

		s.write("limits:\n  new: {algorithm: fixed_window, rate: 1/s}\n  day: {rate: 7/24h, algorithm: fixed_window}\n  api: {algorithm: token_bucket, rate: 10/h, burst: 10, deny_cache: true}\n")
		require.NoError(t, set.Reload())
		after := set.current.Load().limits
		require.Same(t, before["api"].limiter, after["api"].limiter, "an unchanged limit keeps its limiter, wherever it stands")
		require.NotSame(t, before["day"].limiter, after["day"].limiter)
		require.Equal(t, ratelimit.Result{Allowed: true, Limit: 7, Window: 24 * time.Hour, Remaining: 3, ResetAfter: 24 * time.Hour}, take(t, day, "k", 1), "a changed one goes on from the count")
		require.Equal(t, 1, take(t, api, "k", 1).Remaining)

		for text, want := range map[string]string{
			"limits: {api: {algorithm: token_bucket, rate: 10, burst: 10}}": s.file + ":1: limit api: rate cannot work: ",
			"limits: {api: {algorithm: token_bucket, rate: 10/h, burst: 10}}": "ratelimit: invalid configuration: " + s.file +
				":1: limit day, which the program uses, is not there; put it back, or stop the program first",
			"limits: {day: {algorithm: fixed_window, rate: 1/s}, api: {algorithm: in_flight, limit: 1, lease: 1s}}": "ratelimit: invalid configuration: " + s.file +
				":1: limit api, which the program uses, cannot become in_flight or cease to be; give the new limit another name",
		} {
			s.write(text)
			err := set.Reload()
			require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
			require.Contains(t, err.Error(), want)
			require.Equal(t, 7, ratelimit.Must(day.Peek(t.Context(), "k")).Limit, "the former file stays in force")
		}
		require.NoError(t, os.Remove(s.file))
		require.ErrorIs(t, set.Reload(), os.ErrNotExist)

		_, err := set.Limiter("dya")
		require.EqualError(t, err, "ratelimit: invalid configuration: "+s.file+" has no limit \"dya\"; did you mean day?")
		_, err = set.Holder("day")
		require.EqualError(t, err, "ratelimit: invalid configuration: "+s.file+": limit day is not in_flight; use Limiter")
		_, err = Load(s.Client(), s.file, Options{})
		require.ErrorIs(t, err, os.ErrNotExist)
		s.write("limits: {api: {algorithm: token_bucket, rate: 10/h, burst: 10}}")
		_, err = Load(s.Client(), s.file, Options{Limiters: []ratelimit.Option{ratelimit.WithSubWindows(3)}})
		require.ErrorContains(t, err, "limit api: ")
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	})
}

// TestTheBreakerIsKept: one breaker for all limits, also after a reload that does not change it.
func TestTheBreakerIsKept(t *testing.T) {
	onStage(t, func(t *testing.T, s stage) {
		const outages = "outages: {default: {fallback: allow, budget: 50ms}}\n"
		set := s.load(outages+"limits: {a: {algorithm: fixed_window, rate: 1/s}, b: {algorithm: fixed_window, rate: 1/s}}", Options{})
		s.Down()
		a, b := s.limiter(set, "a"), s.limiter(set, "b")
		for range 5 {
			require.True(t, take(t, a, "k", 1).Fallback)
		}
		require.Equal(t, ratelimit.BreakerOpen, set.breaker.State())
		s.write(outages + "limits: {a: {algorithm: fixed_window, rate: 1/s}, b: {algorithm: fixed_window, rate: 2/s}}")
		require.NoError(t, set.Reload())
		require.Equal(t, ratelimit.BreakerOpen, set.breaker.State())
		require.True(t, take(t, b, "k", 1).Fallback)
		s.write("breaker: {failures: 7}\n" + outages + "limits: {a: {algorithm: fixed_window, rate: 1/s}, b: {algorithm: fixed_window, rate: 2/s}}")
		require.NoError(t, set.Reload())
		require.Equal(t, ratelimit.BreakerClosed, set.breaker.State())
		require.Equal(t, 7, set.breaker.Failures)
		require.Same(t, set.breaker, set.breaker)
	})
}

// TestReloadUnderLoad: while the file changes all the time, no call fails, each answer is by a rule of the file, and
// what was allowed has been counted, exactly.
func TestReloadUnderLoad(t *testing.T) {
	env := ratelimittest.New(t)
	s := stage{env, t, filepath.Join(t.TempDir(), "limits.yaml")}
	text := func(limit int) string {
		return fmt.Sprintf("limits:\n  api: {algorithm: fixed_window, rate: %[1]d/720h}\n  both: {all: [api, tokens]}\n  tokens: {algorithm: token_bucket, rate: %[1]d/720h, burst: %[1]d}\n", limit)
	}
	limits := []int{100_000, 150_000, 200_000}
	set := s.load(text(limits[0]), Options{})
	api, both := s.limiter(set, "api"), s.limiter(set, "both")
	var allowed, calls [2]atomic.Int64
	var failed sync.Map
	var callers sync.WaitGroup
	stop := make(chan struct{})
	for i := range 8 {
		callers.Go(func() {
			for n := 1; ; n = n%3 + 1 {
				select {
				case <-stop:
					return
				default:
				}
				l := []ratelimit.Limiter{api, both}[i%2]
				r, err := l.TryAcquireN(t.Context(), "k", n)
				switch {
				case err != nil:
					failed.Store(err.Error(), err)
				case !r.Allowed || r.Limit != limits[0] && r.Limit != limits[1] && r.Limit != limits[2]:
					failed.Store(fmt.Sprintf("%+v", r), errors.New("wrong answer"))
				}
				calls[i%2].Add(1)
				allowed[i%2].Add(int64(n))
			}
		})
	}
	const reloads = 100
	for i := range reloads {
		s.write(text(limits[i%3]))
		require.NoError(t, set.Reload())
		for before := calls[0].Load(); calls[0].Load() < before+2; {
			time.Sleep(100 * time.Microsecond) // some calls by each rule
		}
	}
	close(stop)
	callers.Wait()
	failed.Range(func(what, why any) bool {
		t.Errorf("%v: %v", why, what)
		return true
	})
	s.write(text(200_000))
	require.NoError(t, set.Reload())
	taken := int(allowed[0].Load() + allowed[1].Load())
	require.Equal(t, 200_000-taken, ratelimit.Must(api.Peek(t.Context(), "k")).Remaining)
	require.GreaterOrEqual(t, ratelimit.Must(s.limiter(set, "tokens").Peek(t.Context(), "k")).Remaining, 200_000-int(allowed[1].Load()), "it refills")
	t.Logf("%d calls, %d permits, %d reloads", calls[0].Load()+calls[1].Load(), taken, reloads)
}

func TestWatch(t *testing.T) {
	onStage(t, func(t *testing.T, s stage) {
		text := func(n int) string {
			return fmt.Sprintf("limits: {api: {algorithm: fixed_window, rate: %d/h}}", n)
		}
		set := s.load(text(5), Options{})
		api := s.limiter(set, "api")
		var reports []string
		w := set.watcher(func(err error) { reports = append(reports, fmt.Sprint(err)) })
		expect := func(limit int, want ...string) {
			t.Helper()
			w.Look()
			require.Equal(t, want, reports)
			reports = nil
			require.Equal(t, limit, ratelimit.Must(api.Peek(t.Context(), "k")).Limit)
		}
		expect(5)
		expect(5)
		s.write(text(6))
		expect(5) // it may still be being written
		expect(6, "<nil>")
		expect(6)
		s.write("limits: {api: {algorithm: fixed_window, rate: 7")
		expect(6)
		s.write(text(7) + "x")
		expect(6)
		expect(6, s.file+":1: this is no YAML: did not find expected key")
		expect(6) // it is reported once
		require.NoError(t, os.Remove(s.file))
		expect(6, "open "+s.file+": no such file or directory")
		expect(6)
		s.write(text(6))
		expect(6)
		expect(6)
		s.write(text(7) + "x")
		expect(6)
		expect(6, s.file+":1: this is no YAML: did not find expected key")
		s.write(text(8))
		expect(6)
		expect(8, "<nil>")

		ctx, stop := context.WithCancel(t.Context())
		reported := make(chan error)
		var watching sync.WaitGroup
		watching.Go(func() { set.Watch(ctx, time.Second, func(err error) { reported <- err }) })
		began := time.Now()
		s.write(text(9))
		require.NoError(t, <-reported)
		require.Equal(t, 2*time.Second, time.Since(began), "read twice")
		require.Equal(t, 9, ratelimit.Must(api.Peek(t.Context(), "k")).Limit)
		stop()
		watching.Wait()
	})
}
