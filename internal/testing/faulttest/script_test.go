package faulttest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
)

// slow are limiters of every kind that allow the limit and then, for as long as
// a test takes, no more.
func slow(t testing.TB, limit int, c ratelimit.Client, o ...ratelimit.Option) map[string]ratelimit.Limiter {
	const long = 1000 * time.Hour
	made := map[string]ratelimit.Limiter{}
	add := func(name string, l ratelimit.Limiter, err error) {
		require.NoError(t, err)
		made[name] = l
	}
	fixed, err := ratelimit.NewFixedWindow(c, limit, long, o...)
	add("fixed window", fixed, err)
	begins := time.Now().AddDate(0, 0, 15).Day() // so that no month begins during a test
	calendar, err := ratelimit.NewCalendarWindow(c, limit, ratelimit.Monthly(begins, time.UTC), o...)
	add("calendar window", calendar, err)
	for _, storage := range []ratelimit.Storage{ratelimit.StorageHash, ratelimit.StorageList, ratelimit.StorageZSet} {
		sliding, err := ratelimit.NewSlidingWindow(c, limit, long, append(o, ratelimit.WithStorage(storage))...)
		add("sliding window "+storage.String(), sliding, err)
	}
	log, err := ratelimit.NewSlidingLog(c, []ratelimit.Rule{{Limit: limit, Window: long}}, o...)
	add("sliding log", log, err)
	token, err := ratelimit.NewTokenBucket(c, ratelimit.Per(1, long), limit, o...)
	add("token bucket", token, err)
	leaky, err := ratelimit.NewLeakyBucket(c, ratelimit.Per(1, long), limit, o...)
	add("leaky bucket", leaky, err)
	return made
}

// Traffic is calls of limiters from many goroutines. It goes on to the next key
// when one has been asked more often than it has permits, so that the permits
// allowed of each key are known exactly.
type traffic struct {
	figures
	limit, perKey int
	limiters      []*metered
	done          chan struct{}
	workers       sync.WaitGroup
}

type metered struct {
	name    string
	l       ratelimit.Limiter
	calls   atomic.Int64
	allowed sync.Map // by number of the key: *atomic.Int64
}

// startTraffic starts goroutines that call until stop. The keys have the tag.
func startTraffic(limiters map[string]ratelimit.Limiter, limit, goroutines int, tag string) *traffic {
	tr := &traffic{limit: limit, perKey: limit + limit/2, done: make(chan struct{})}
	for name, l := range limiters {
		tr.limiters = append(tr.limiters, &metered{name: name, l: l})
	}
	for i := range goroutines {
		tr.workers.Go(func() {
			for next := i; ; next++ {
				select {
				case <-tr.done:
					return
				default:
				}
				q := tr.limiters[next%len(tr.limiters)]
				number := int(q.calls.Add(1)-1) / tr.perKey
				start := time.Now()
				r, err := q.l.TryAcquire(ctx, fmt.Sprintf("{%s}%d", tag, number))
				tr.count(start, r, err)
				if r.Allowed {
					n, _ := q.allowed.LoadOrStore(number, new(atomic.Int64))
					n.(*atomic.Int64).Add(1)
				}
			}
		})
	}
	return tr
}

// stop ends the traffic, when permits have been taken and calls denied.
func (tr *traffic) stop(t testing.TB) {
	t.Helper()
	eventually(t, "calls are allowed, and denied", func() bool {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		return tr.allowed > 0 && tr.denied > 0
	})
	close(tr.done)
	tr.workers.Wait()
}

// requireExact checks that no call failed and that of every key its limit was allowed,
// and logs the figures.
func (tr *traffic) requireExact(t testing.TB) {
	t.Helper()
	var keys, over, under int
	for _, q := range tr.limiters {
		calls := int(q.calls.Load())
		for number := 0; number*tr.perKey < calls; number++ {
			keys++
			want := min(calls-number*tr.perKey, tr.limit)
			got := 0
			if n, ok := q.allowed.Load(number); ok {
				got = int(n.(*atomic.Int64).Load())
			}
			require.Equal(t, want, got, "%s: key %d allowed %d of %d", q.name, number, got, want)
			over += max(got-want, 0)
			under += max(want-got, 0)
		}
	}
	t.Logf("%v; %d keys, %d permits allowed too many, %d too few", &tr.figures, keys, over, under)
	require.Zero(t, tr.failed, "%v", tr.firstErr)
	require.Positive(t, tr.allowed)
	require.Positive(t, tr.denied)
}

// masters does something to every master.
func masters(t testing.TB, admin redis.UniversalClient, do func(ctx context.Context, c *redis.Client) error) {
	t.Helper()
	switch c := admin.(type) {
	case *redis.Client:
		require.NoError(t, do(ctx, c))
	case *redis.ClusterClient:
		require.NoError(t, c.ForEachMaster(ctx, do))
	default:
		t.Fatalf("what are the masters of a %T?", admin)
	}
}

// errorReplies is how often the masters have replied with an error of this code.
func errorReplies(t testing.TB, admin redis.UniversalClient, code string) int {
	t.Helper()
	var sum atomic.Int64
	masters(t, admin, func(ctx context.Context, c *redis.Client) error {
		info, err := c.Info(ctx, "errorstats").Result()
		for line := range strings.Lines(info) {
			if count, ok := strings.CutPrefix(strings.TrimSpace(line), "errorstat_"+code+":count="); ok {
				var n int64
				if _, err := fmt.Sscan(count, &n); err != nil {
					return err
				}
				sum.Add(n)
			}
		}
		return err
	})
	return int(sum.Load())
}

// Redis forgets all scripts every two milliseconds, as it would after a restart
// or after a SCRIPT FLUSH.
func TestUnknownScriptsAreSentAgain(t *testing.T) {
	t.Parallel()
	g := startGrid(t)
	g.each(t, 5*time.Second, func(t *testing.T, r *rig) {
		tr := startTraffic(slow(t, 20, r.client, r.opts...), 20, 48, t.Name())
		flushes, unknown := 0, errorReplies(t, r.admin, "NOSCRIPT")
		for end := time.Now().Add(600 * time.Millisecond); time.Now().Before(end); flushes++ {
			masters(t, r.admin, func(ctx context.Context, c *redis.Client) error { return c.ScriptFlush(ctx).Err() })
			time.Sleep(2 * time.Millisecond)
		}
		tr.stop(t)
		unknown = errorReplies(t, r.admin, "NOSCRIPT") - unknown
		tr.requireExact(t)
		t.Logf("%d flushes, %d times the script was not known", flushes, unknown)
		require.Positive(t, unknown)
	})
}
