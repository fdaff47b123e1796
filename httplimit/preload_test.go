package httplimit_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// TestTheFirstRequestAfterPreload finds a connection and its scripts, and so do its settlement and its release.
func TestTheFirstRequestAfterPreload(t *testing.T) {
	server := redistest.Start(t)
	admin, proxy := server.Client(t), redistest.NewProxy(t, server.Addr())
	type planKey struct{}
	planned := context.WithValue(t.Context(), planKey{}, "paid")
	for name, limits := range map[string]func(client *redis.Client) (func(http.Handler) http.Handler, error){
		"New": func(client *redis.Client) (func(http.Handler) http.Handler, error) {
			return httplimit.New(bucketOf(client, "api"), httplimit.Everyone(), httplimit.WithMaxWait(time.Second))
		},
		"New with a cost": func(client *redis.Client) (func(http.Handler) http.Handler, error) {
			return httplimit.New(bucketOf(client, "tokens"), httplimit.Everyone(), httplimit.WithReportedCost())
		},
		"NewInFlight": func(client *redis.Client) (func(http.Handler) http.Handler, error) {
			return httplimit.NewInFlight(ratelimit.Must(ratelimit.NewInFlight(client, 5, time.Hour)), httplimit.Everyone())
		},
		"NewAll": func(client *redis.Client) (func(http.Handler) http.Handler, error) {
			paid := bucketOf(client, "plan")
			plans := ratelimit.Must(ratelimit.NewChoice(func(ctx context.Context, _ string) (ratelimit.Limiter, error) {
				if ctx.Value(planKey{}) == "paid" {
					return paid, nil
				}
				return ratelimit.DenyAll(), nil
			}))
			window := ratelimit.Must(ratelimit.NewSlidingWindow(client, 100, time.Hour, ratelimit.WithName("address")))
			return httplimit.NewAll(
				httplimit.Limit(ratelimit.Must(ratelimit.NewFallback(window, ratelimit.AllowAll(), ratelimit.WithBudget(time.Second))), clientIP(t, nil)),
				httplimit.Limit(ratelimit.Must(ratelimit.NewFallback(plans, ratelimit.AllowAll())), httplimit.Everyone(), httplimit.WithPolicy("plan")),
				httplimit.Limit(bucketOf(client, "tokens"), httplimit.Everyone(), httplimit.WithReportedCost()),
				httplimit.InFlight(ratelimit.Must(ratelimit.NewInFlight(client, 5, time.Hour, ratelimit.WithName("running"))), httplimit.Everyone()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, admin.ScriptFlush(t.Context()).Err())
			client := redis.NewClient(&redis.Options{Addr: proxy.Addr()})
			t.Cleanup(func() { _ = client.Close() })
			limit := ratelimit.Must(limits(client))
			require.NoError(t, httplimit.Preload(planned, limit))
			connected := proxy.Accepted()
			require.NoError(t, admin.ConfigResetStat(t.Context()).Err())
			executed := redistest.Executions(t, admin)
			w := httptest.NewRecorder()
			limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				httplimit.ReportCost(r.Context(), 3)
				w.WriteHeader(http.StatusNoContent)
			})).ServeHTTP(w, newRequest("GET", "/").WithContext(planned))
			require.Equal(t, http.StatusNoContent, w.Code)
			require.Zero(t, redistest.WholeScripts(t, admin))
			require.Less(t, executed, redistest.Executions(t, admin))
			if name == "New" { // the others settle and release at the same time
				require.Equal(t, connected, proxy.Accepted())
			}
		})
	}
}

func bucketOf(client *redis.Client, name string) *ratelimit.TokenBucket {
	return ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), 100, ratelimit.WithName(name)))
}

func TestPreloadRefusesWhatIsNoLimit(t *testing.T) {
	limit := limit(t, ratelimit.AllowAll())
	require.NoError(t, httplimit.Preload(t.Context(), limit))
	none := ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) { return nil, nil }))
	for message, other := range map[string]func(http.Handler) http.Handler{
		"the limit is nil":                  nil,
		"no limit of package httplimit":     func(next http.Handler) http.Handler { return http.StripPrefix("/", limit(next)) },
		`pick returned nil for "{preload}0`: ratelimit.Must(httplimit.New(none, httplimit.Everyone())),
	} {
		err := httplimit.Preload(t.Context(), other)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, message)
	}
}
