package httplimit_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/httplimit"
)

// discard is a ResponseWriter that costs nothing.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(int)             {}

// nothing is a handler that costs nothing.
var nothing = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

type costCase struct {
	key     httplimit.KeyFunc
	request *http.Request
}

func costCases(t testing.TB) map[string]costCase {
	proxied := withHeader("X-Forwarded-For", "198.51.100.1, 203.0.113.7, 10.0.0.2")
	proxied.RemoteAddr = "10.0.0.1:1"
	forwarded := withHeader("Forwarded", `for=198.51.100.1, for="[2001:db8:1:2::3]:443";proto=https, for=10.0.0.2`)
	forwarded.RemoteAddr = "10.0.0.1:1"
	browser := withHeader("Authorization", "Bearer "+strings.Repeat("s", 200))
	browser.Header.Set("Origin", "https://example.com")
	return map[string]costCase{
		"address":   {clientIP(t, nil), newRequest("GET", "/")},
		"proxied":   {clientIP(t, proxies), proxied},
		"forwarded": {clientIP(t, proxies, httplimit.WithForwarded()), forwarded},
		"header":    {must(t)(httplimit.Header("X-Tenant")), withHeader("X-Tenant", "{acme}")},
		"user":      {must(t)(httplimit.User(userOf)), withUser("42")},
		"browser":   {must(t)(httplimit.APIKey("Authorization")), browser},
	}
}

// TestAllocations: at most 4 beside the limiter's own.
func TestAllocations(t *testing.T) {
	for name, c := range costCases(t) {
		wrap, err := httplimit.New(stub{result: allowed(20, 2*time.Second, 17, time.Second)}, c.key, httplimit.WithPolicy("api"))
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
			wrap, err := httplimit.New(stub{result: allowed(20, 2*time.Second, 17, time.Second)}, c.key, httplimit.WithPolicy("api"))
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
