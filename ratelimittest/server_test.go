package ratelimittest_test

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

// Connections are kept, and time passes all the same.
func TestServe(t *testing.T) {
	inBubble(t, func(t *testing.T, env *ratelimittest.Env) {
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(env.Client(), ratelimit.PerMinute(1), 2))
		limit := ratelimit.Must(httplimit.New(bucket, ratelimit.Must(httplimit.ClientIP(nil))))
		server := ratelimittest.Serve(t, limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "hello "+r.RemoteAddr)
		})))
		get := func() (int, string, string) {
			resp, err := server.Client().Get(server.URL)
			require.NoError(t, err)
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			return resp.StatusCode, string(body), resp.Header.Get("Retry-After")
		}
		for range 2 {
			status, body, _ := get()
			require.Equal(t, http.StatusOK, status)
			require.Equal(t, "hello 192.0.2.1:1025", body)
		}
		status, _, retryAfter := get()
		require.Equal(t, http.StatusTooManyRequests, status)
		require.Equal(t, "60", retryAfter)
		env.Advance(time.Minute - time.Microsecond)
		status, _, retryAfter = get()
		require.Equal(t, http.StatusTooManyRequests, status)
		require.Equal(t, "1", retryAfter)
		env.Advance(time.Microsecond)
		status, _, _ = get()
		require.Equal(t, http.StatusOK, status)

		server.Close()
		_, err := server.Client().Get(server.URL)
		require.ErrorContains(t, err, "closed")
	})
}
