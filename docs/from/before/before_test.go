package before

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"

	"github.com/tryacquire/ratelimit"
)

func onServer(t *testing.T) *redis.Client {
	server := miniredis.RunT(t)
	server.SetTime(time.Unix(1_500_000_000, 0)) // seconds as floating point numbers are exact enough there
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// TestSnippetsLimit: what the pages show works, and has the limit that they say.
func TestSnippetsLimit(t *testing.T) {
	ok := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	store, err := memstore.NewCtx(100)
	require.NoError(t, err)
	byUlule, err := ulule(onServer(t), ok)
	require.NoError(t, err)
	byThrottled, err := throttle(store, ok)
	require.NoError(t, err)
	for name, limit := range map[string]struct {
		handler http.Handler
		allowed int
	}{
		"redis_rate": {redisRate(onServer(t), ok), 10},
		"after it":   {redisRateAfter(onServer(t), ok), 10}, // no X-User here: the prefix is the key
		"ulule":      {byUlule, 5},
		"throttled":  {byThrottled, 6}, // MaxBurst + 1
		"httprate":   {perAddress(ok), 100},
	} {
		for i := range limit.allowed + 1 {
			want := http.StatusOK
			if i == limit.allowed {
				want = http.StatusTooManyRequests
			}
			response := httptest.NewRecorder()
			limit.handler.ServeHTTP(response, httptest.NewRequest(http.MethodGet, "/", nil))
			require.Equal(t, want, response.Code, "%s: request %d", name, i+1)
		}
	}
	require.NoError(t, xtime(t.Context()))
	var _ throttled.GCRAStoreCtx = store
}

// TestBothForOneReleaseNeverAllowMore: instances of three releases together allow the limit, whatever
// the order in which they are asked, while no instance of the first meets one of the last.
func TestBothForOneReleaseNeverAllowMore(t *testing.T) {
	ctx := t.Context()
	for _, firstRelease := range []bool{true, false} {
		for turn := range 2 {
			client := onServer(t)
			old := redis_rate.NewLimiter(client)
			now := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerMinute(10), 10))
			allowed := 0
			for i := range 40 {
				ok, err := false, error(nil)
				switch {
				case (i/20+turn)%2 == 0: // 20 calls to one release, then 20 to the other
					ok, err = both(ctx, old, now, "k")
				case firstRelease:
					var res *redis_rate.Result
					res, err = old.Allow(ctx, "k", redis_rate.PerMinute(10))
					ok = err == nil && res.Allowed > 0
				default:
					var result ratelimit.Result
					result, err = now.TryAcquire(ctx, "k")
					ok = result.Allowed
				}
				require.NoError(t, err)
				if ok {
					allowed++
				}
			}
			require.Equal(t, 10, allowed)
		}
	}
}
