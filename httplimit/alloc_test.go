package httplimit_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
	"github.com/tryacquire/ratelimit/internal/testing/integrationtest"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// discard is a ResponseWriter that costs nothing.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(int)             {}

// nothing is a handler that costs nothing.
var nothing = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

// steady is a limiter that costs nothing.
var steady = limitertest.InTurn(limitertest.Always(allowed(20, 2*time.Second, 17, time.Second), nil))

type costCase struct {
	key     httplimit.KeyFunc
	request *http.Request
}

func costCases(t testing.TB) map[string]costCase {
	of := func(from string, header ...string) *http.Request {
		return requestOf(t.Context(), integrationtest.Call{From: from, Header: header, User: "42"})
	}
	return map[string]costCase{
		"address":   {clientIP(t, nil), of("192.0.2.1:1234")},
		"proxied":   {clientIP(t, proxies), of("10.0.0.1:1", "X-Forwarded-For", "198.51.100.1, 203.0.113.7, 10.0.0.2")},
		"forwarded": {clientIP(t, proxies, httplimit.WithForwarded()), of("10.0.0.1:1", "Forwarded", `for=198.51.100.1, for="[2001:db8:1:2::3]:443";proto=https, for=10.0.0.2`)},
		"header":    {ratelimit.Must(httplimit.Header("X-Tenant")), of("192.0.2.1:1234", "X-Tenant", "{acme}")},
		"user":      {ratelimit.Must(httplimit.User(integrationtest.UserOf)), of("192.0.2.1:1234")},
		"browser":   {ratelimit.Must(httplimit.APIKey("Authorization")), of("192.0.2.1:1234", "Authorization", "Bearer "+strings.Repeat("s", 200), "Origin", "https://example.com")},
	}
}

// TestAllocations: at most 4 beside the limiter's own.
func TestAllocations(t *testing.T) {
	for name, c := range costCases(t) {
		wrap, err := httplimit.New(steady, c.key, httplimit.WithPolicy("api"))
		require.NoError(t, err)
		handler, w := wrap(nothing), discard{http.Header{}}
		n := testing.AllocsPerRun(100, func() {
			clear(w.header)
			handler.ServeHTTP(w, c.request)
		})
		require.LessOrEqual(t, n, 4.0, name)
		t.Logf("%s: %v", name, n)
	}
}

func BenchmarkMiddleware(b *testing.B) {
	for name, c := range costCases(b) {
		b.Run(name, func(b *testing.B) {
			wrap, err := httplimit.New(steady, c.key, httplimit.WithPolicy("api"))
			require.NoError(b, err)
			handler, w := wrap(nothing), discard{http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				clear(w.header)
				handler.ServeHTTP(w, c.request)
			}
		})
	}
}
