package httplimit_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

func TestPerClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := ratelimittest.New(t)
		handler := ratelimit.Must(httplimit.PerClient(env.Client(), "2/m", proxies, httplimit.WithPolicy("pages")))(served)
		ask := func(address string) (int, http.Header) {
			r := newRequest("GET", "/")
			r.RemoteAddr = "10.0.0.1:1"
			r.Header.Set("X-Forwarded-For", address)
			w := do(handler, r)
			return w.Code, w.Header()
		}
		for _, left := range []string{`"pages";r=1;t=30`, `"pages";r=0;t=1`} {
			code, header := ask("203.0.113.7")
			require.Equal(t, 204, code)
			require.Equal(t, http.Header{"Ratelimit-Policy": {`"pages";q=2;w=60`}, "Ratelimit": {left}}, header)
		}
		code, header := ask("203.0.113.7")
		require.Equal(t, 429, code)
		require.Equal(t, "30", header.Get("Retry-After"))
		code, _ = ask("203.0.113.8")
		require.Equal(t, 204, code, "another client")
		same := ratelimit.Must(ratelimit.NewTokenBucket(env.Client(), ratelimit.PerMinute(2), 2, ratelimit.WithName("pages")))
		require.Equal(t, 1, peek(t, same, "ip:203.0.113.8").Remaining)
	})

	// While Redis is down, the process limits on its own, by the same rate.
	down := ratelimit.Must(httplimit.PerClient(fakes.Failing(io.ErrUnexpectedEOF), "2/m", nil))(served)
	for _, want := range []int{204, 204, 429} {
		w := do(down, newRequest("GET", "/"))
		require.Equal(t, want, w.Code)
		require.Equal(t, `"client";q=2;w=60`, w.Header().Get("RateLimit-Policy"))
	}
}

func TestPerClientRefuses(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	for want, build := range map[string]func() (func(http.Handler) http.Handler, error){
		`"often"`: func() (func(http.Handler) http.Handler, error) { return httplimit.PerClient(s.Client, "often", nil) },
		"client":  func() (func(http.Handler) http.Handler, error) { return httplimit.PerClient(nil, "2/m", nil) },
		"would trust every": func() (func(http.Handler) http.Handler, error) {
			return httplimit.PerClient(s.Client, "2/m", prefixes("0.0.0.0/0"))
		},
		"WithPolicy": func() (func(http.Handler) http.Handler, error) {
			return httplimit.PerClient(s.Client, "2/m", nil, httplimit.WithPolicy(""))
		},
		"WithBucket is given": func() (func(http.Handler) http.Handler, error) {
			return httplimit.PerClient(s.Client, "2/m", nil, httplimit.WithBucket())
		},
		"WithName": func() (func(http.Handler) http.Handler, error) {
			return httplimit.PerClient(s.Client, "2/m", nil, httplimit.WithPolicy("a:b"))
		},
		"httplimit: PerClient: op": func() (func(http.Handler) http.Handler, error) {
			return httplimit.PerClient(s.Client, "2/m", nil, httplimit.Option{})
		},
	} {
		limit, err := build()
		require.Nil(t, limit)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.True(t, strings.Contains(err.Error(), want), "%v has no %q", err, want)
	}
}
