package ratelimittest_test

import (
	"context"
	"io"
	"net/http"
	"strings"
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

// A server that streams does not wait until its client reads, and what it has written before it
// closes the connection is read.
func TestServeStreams(t *testing.T) {
	inBubble(t, func(t *testing.T, env *ratelimittest.Env) {
		var written time.Duration
		start := time.Now()
		server := ratelimittest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "close")
			for range 10 {
				_, _ = w.Write(make([]byte, 5000))
				_ = http.NewResponseController(w).Flush()
				time.Sleep(time.Second)
			}
			written = time.Since(start)
		}))
		resp, err := server.Client().Get(server.URL)
		require.NoError(t, err)
		env.Advance(time.Hour)
		require.Equal(t, 10*time.Second, written)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Len(t, body, 50_000)
	})
}

// As with a socket, what nobody reads does not fit into memory for ever; and a client that leaves
// ends the request.
func TestServeABodyThatNobodyReads(t *testing.T) {
	inBubble(t, func(t *testing.T, env *ratelimittest.Env) {
		written, failed := 0, false
		var end error
		server := ratelimittest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for !failed && written < 1<<20 {
				n, err := w.Write(make([]byte, 1000))
				written, failed = written+n, err != nil
			}
			<-r.Context().Done()
			end = r.Context().Err()
		}))
		resp, err := server.Client().Get(server.URL)
		require.NoError(t, err)
		env.Advance(time.Hour)
		require.NoError(t, resp.Body.Close())
		env.Advance(0)
		require.True(t, failed)
		require.Greater(t, written, 64<<10)
		require.Less(t, written, 256<<10)
		require.ErrorIs(t, end, context.Canceled)
	})
}

// A request whose body is larger than what is under way at once arrives whole, and so does its
// echo.
func TestServeLargeBodies(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *ratelimittest.Env) {
		server := ratelimittest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			_, _ = w.Write(body)
		}))
		want := strings.Repeat("0123456789", 100_000)
		resp, err := server.Client().Post(server.URL, "text/plain", strings.NewReader(want))
		require.NoError(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, want, string(body))
	})
}
