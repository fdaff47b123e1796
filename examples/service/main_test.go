package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	client "github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/otellimit"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

// A site is the service under test, in a bubble of testing/synctest.
type site struct {
	*ratelimittest.Env
	*service
	server *httptest.Server
	sent   chan string // with the time of each mail
}

func open(t *testing.T, observer ratelimit.Observer) *site {
	s := &site{Env: ratelimittest.New(t), sent: make(chan string, 100)}
	s.service = &service{
		tenants: map[string]string{"secret-1": "acme", "secret-2": "umbrella"}, outbox: make(chan string, 100),
		model: func(prompt string) (string, int) { time.Sleep(time.Second); return "so", len(prompt) },
		mail:  func(to string) { s.sent <- to + " " + time.Now().Format("05.0") },
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); close(s.outbox) })
	s.server = ratelimittest.Serve(t, s.start(ctx, s.Env.Client(), observer))
	return s
}

func (s *site) do(t *testing.T, method, path, apiKey, form string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest(method, s.server.URL+path, strings.NewReader(form))
	require.NoError(t, err)
	r.Header.Set("X-API-Key", apiKey)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	answer, err := s.server.Client().Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer, string(body)
}

func (s *site) status(t *testing.T, method, path, apiKey, form string) int {
	t.Helper()
	answer, _ := s.do(t, method, path, apiKey, form)
	return answer.StatusCode
}

func ignore(context.Context, ratelimit.Observation) {}

func TestPlansAreChangedAtRunTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, ignore)
		require.Equal(t, 401, s.status(t, "POST", "/invite", "made up", "to=x"))
		for range 5 {
			require.Equal(t, 200, s.status(t, "POST", "/invite", "secret-1", "to=x"))
		}
		denied, body := s.do(t, "POST", "/invite", "secret-1", "to=x")
		require.Equal(t, 429, denied.StatusCode)
		require.Equal(t, "1", denied.Header.Get("Retry-After"))
		require.Contains(t, denied.Header.Values("RateLimit"), `"key";r=0;t=1`)
		require.Contains(t, body, `"violated-policies":["key"]`)
		require.Equal(t, 200, s.status(t, "POST", "/invite", "secret-2", "to=x"), "another tenant")
		require.Equal(t, 200, s.status(t, "PUT", "/admin/plans/acme/pro", "", ""))
		for range 45 { // of 50 at once, of which 5 were used
			require.Equal(t, 200, s.status(t, "POST", "/invite", "secret-1", "to=x"))
		}
		require.Equal(t, 429, s.status(t, "POST", "/invite", "secret-1", "to=x"))
	})
}

func TestChatsAreLimitedByPlacesAndTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, ignore)
		answers := make(chan int)
		for range 3 {
			go func() { answers <- s.status(t, "POST", "/chat", "secret-1", "prompt=why") }()
		}
		require.Equal(t, 429, <-answers, "two at a time")
		require.Equal(t, 200, <-answers)
		require.Equal(t, 200, <-answers)
		// Of 3,000 tokens 500 are taken before, and 2,500 when 1,600 are there.
		require.Equal(t, 200, s.status(t, "POST", "/chat", "secret-1", "prompt="+strings.Repeat("x", 3000)))
		denied, _ := s.do(t, "POST", "/chat", "secret-1", "prompt=why")
		require.Equal(t, 429, denied.StatusCode)
		require.Contains(t, denied.Header.Values("RateLimit"), `"tokens";r=0;t=14`, "900 in debt and 500 wanted, at 100 a second")
		require.Equal(t, "14", denied.Header.Get("Retry-After"))
		s.Advance(14 * time.Second)
		require.Equal(t, 200, s.status(t, "POST", "/chat", "secret-1", "prompt=why"))
	})
}

func TestTheOutbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, ignore)
		for _, to := range []string{"a", "b", "c"} {
			require.Equal(t, 200, s.status(t, "POST", "/invite", "secret-1", "to="+to))
		}
		require.Equal(t, []string{"a 00.0", "b 00.2", "c 00.4"}, []string{<-s.sent, <-s.sent, <-s.sent})
	})
}

func TestAnOutageStopsWhatIsExpensive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, ignore)
		s.Down()
		require.Equal(t, 200, s.status(t, "POST", "/invite", "secret-1", "to=a"))
		require.Equal(t, 503, s.status(t, "POST", "/chat", "secret-1", "prompt=why"))
		require.Contains(t, <-s.sent, "a ", "each instance on its own")
		s.Up()
		s.Advance(time.Minute)
		require.Equal(t, 200, s.status(t, "POST", "/chat", "secret-1", "prompt=why"))
	})
}

func TestPrometheusSeesDecisionsAndNoKeys(t *testing.T) {
	gatherer, registry := client.DefaultGatherer, client.NewRegistry()
	client.DefaultGatherer = registry // that of promhttp.Handler
	t.Cleanup(func() { client.DefaultGatherer = gatherer })
	exporter, err := prometheus.New(prometheus.WithRegisterer(registry))
	require.NoError(t, err)
	metrics, err := otellimit.New(otellimit.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(exporter))))
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		s := open(t, metrics.Observe)
		for range 6 {
			s.status(t, "POST", "/invite", "secret-1", "to=x")
		}
		_, scrape := s.do(t, "GET", "/metrics", "", "")
		for _, want := range []string{
			`ratelimit_result="allowed",ratelimit_source="redis"} 5`, `ratelimit_policy="key",ratelimit_result="denied"`,
		} {
			require.Contains(t, scrape, want)
		}
		for _, secret := range []string{"secret-1", "acme", "127.0.0.1"} {
			require.NotContains(t, scrape, secret)
		}
	})
}

// The whole service is short, as the library does what is not its own.
func TestTheServiceIsShort(t *testing.T) {
	text, err := os.ReadFile("main.go")
	require.NoError(t, err)
	require.LessOrEqual(t, bytes.Count(text, []byte("\n")), 120)
}
