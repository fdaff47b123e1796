// Package service tests one service in three states: on redis_rate, on the shim, and on the library.
package service

import (
	"context"
	"go/format"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	after "github.com/tryacquire/ratelimit/docs/from/service/after"
	before "github.com/tryacquire/ratelimit/docs/from/service/before"
	shim "github.com/tryacquire/ratelimit/docs/from/service/shim"
)

type service interface {
	Handler(http.ResponseWriter, *http.Request)
	Login(ctx context.Context, user string) error
	LoggedIn(ctx context.Context, user string) error
	Search(ctx context.Context, user string, pages int) error
	Send(ctx context.Context, user string, messages int) (int, error)
	Left(ctx context.Context, user string) (int, error)
	Tenant(ctx context.Context, tenant string, perSecond int) error
	SMS(ctx context.Context, number string) error
	Everybody(ctx context.Context) error
}

// TestOneImportIsTheDifference between the service on redis_rate and on the shim.
func TestOneImportIsTheDifference(t *testing.T) {
	old, err := os.ReadFile("before/service.go")
	require.NoError(t, err)
	now, err := os.ReadFile("shim/service.go")
	require.NoError(t, err)
	want := strings.Replace(string(old), "github.com/go-redis/redis_rate/v10", "github.com/tryacquire/ratelimit/shims/redis_rate", 1)
	sorted, err := format.Source([]byte(want))
	require.NoError(t, err)
	require.Equal(t, string(sorted), string(now))
}

// TestTheServiceDoesTheSame in its three states.
func TestTheServiceDoesTheSame(t *testing.T) {
	for name, newService := range map[string]func(redis.UniversalClient) service{
		"before": func(c redis.UniversalClient) service { return before.New(c) },
		"shim":   func(c redis.UniversalClient) service { return shim.New(c) },
		"after":  func(c redis.UniversalClient) service { return after.New(c) },
	} {
		t.Run(name, func(t *testing.T) {
			server := miniredis.RunT(t)
			start := time.Unix(1_500_000_000, 0) // where the floating point numbers of redis_rate are exact enough
			server.SetTime(start)
			client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{server.Addr()}})
			t.Cleanup(func() { _ = client.Close() })
			ctx, s := t.Context(), newService(client)

			for i, want := range []int{200, 200, 200, 429} {
				w := httptest.NewRecorder()
				s.Handler(w, httptest.NewRequest(http.MethodGet, "/", nil))
				require.Equal(t, want, w.Code, i)
				require.Equal(t, []string{"2", "1", "0", "0"}[i], w.Header().Get("X-RateLimit-Remaining"))
				require.Equal(t, []string{"", "", "", "20"}[i], w.Header().Get("Retry-After"))
			}
			server.SetTime(start.Add(500 * time.Millisecond))
			w := httptest.NewRecorder()
			s.Handler(w, httptest.NewRequest(http.MethodGet, "/", nil))
			require.Equal(t, map[string]string{"before": "19", "shim": "19", "after": "20"}[name], w.Header().Get("Retry-After"),
				"of 19.5 s: only the last rounds up, so that no client comes back too early")

			require.NoError(t, s.Login(ctx, ""), "nobody is a caller too")
			require.NoError(t, s.LoggedIn(ctx, ""))
			require.NoError(t, s.Search(ctx, "", 1))
			sent, err := s.Send(ctx, "", 1)
			require.NoError(t, err)
			require.Equal(t, 1, sent)
			left, err := s.Left(ctx, "")
			require.NoError(t, err)
			require.Equal(t, 9, left)
			require.NoError(t, s.Tenant(ctx, "", 1))
			require.NoError(t, s.SMS(ctx, ""))

			sent, err = s.Send(ctx, "ann", 0)
			require.NoError(t, err)
			require.Zero(t, sent)
			require.EqualError(t, s.Search(ctx, "ann", 0), "denied, retry after 0s")
			for range 5 {
				require.NoError(t, s.Login(ctx, "ann"))
			}
			require.EqualError(t, s.Login(ctx, "ann"), "denied, retry after 1m0s")
			require.NoError(t, s.LoggedIn(ctx, "ann"))
			require.NoError(t, s.Login(ctx, "ann"))

			require.NoError(t, s.Search(ctx, "ann", 99))
			require.EqualError(t, s.Search(ctx, "ann", 2), "denied, retry after 36s")
			require.ErrorContains(t, s.Search(ctx, "ann", 101), "denied", "more than the burst")

			for _, want := range []int{7, 3, 0} {
				sent, err := s.Send(ctx, "ann", 7)
				require.NoError(t, err)
				require.Equal(t, want, sent)
			}
			left, err = s.Left(ctx, "ann")
			require.NoError(t, err)
			require.Zero(t, left)

			require.NoError(t, s.Tenant(ctx, "a", 1))
			require.EqualError(t, s.Tenant(ctx, "a", 1), "denied, retry after 1s")
			require.NoError(t, s.SMS(ctx, "112"))
			require.EqualError(t, s.SMS(ctx, "112"), "denied, retry after 1m0s")
			require.NoError(t, s.Everybody(ctx))
		})
	}
}
