package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	client "github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/observe"
	"github.com/tryacquire/ratelimit/otellimit"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

// A site is the service under test, in a bubble of testing/synctest.
type site struct {
	*ratelimittest.Env
	*service
	server, admins *httptest.Server
	sent           chan string // with the time of each mail
}

func open(t *testing.T, observers ...ratelimit.Observer) *site {
	return openOn(t, ratelimittest.New(t), observers...)
}

// openOn is another instance, on the same Redis.
func openOn(t *testing.T, env *ratelimittest.Env, observers ...ratelimit.Observer) *site {
	s := &site{Env: env, sent: make(chan string, 100)}
	s.service = &service{
		customers: map[string]string{"secret-1": "acme", "secret-2": "umbrella"}, outbox: make(chan string, 100),
		model: func(_ context.Context, prompt string) (string, int, error) {
			time.Sleep(time.Second)
			return "so", len(prompt), nil
		},
		password: func(_ context.Context, _, password string) bool { return password == "right" },
		send:     func(to string) { s.sent <- to + " " + time.Now().Format("05.0") },
		top:      ratelimit.Must(observe.NewTop(10)),
	}
	s.plans.Store("acme", "free")
	s.plans.Store("umbrella", "free")
	l := newLimits(s.Env.Client(), 3, s.planOf, append(observers, s.top.Observe)...)
	mailed := make(chan struct{})
	go func() { defer close(mailed); s.mail(context.Background(), l.mail) }()
	t.Cleanup(func() { close(s.outbox); <-mailed })
	handler, _ := s.public(l, []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")})
	s.server = ratelimittest.Serve(t, handler)
	s.admins = ratelimittest.Serve(t, s.service.admin())
	return s
}

func ask(t *testing.T, server *httptest.Server, method, path, apiKey, form string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequest(method, server.URL+path, strings.NewReader(form))
	require.NoError(t, err)
	r.Header.Set("X-API-Key", apiKey)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	answer, err := server.Client().Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer, string(body)
}

func (s *site) post(t *testing.T, path, apiKey, form string) int {
	t.Helper()
	answer, _ := ask(t, s.server, "POST", path, apiKey, form)
	return answer.StatusCode
}

func (s *site) plan(t *testing.T, customer, plan string) int {
	t.Helper()
	answer, _ := ask(t, s.admins, "PUT", "/plans/"+customer+"/"+plan, "", "")
	return answer.StatusCode
}

func TestPlansAreChangedAtRunTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		for range 6 {
			require.Equal(t, 202, s.post(t, "/invite", "secret-1", "to=x"))
		}
		denied, body := ask(t, s.server, "POST", "/invite", "secret-1", "to=x")
		require.Equal(t, 429, denied.StatusCode)
		require.Equal(t, "1", denied.Header.Get("Retry-After"))
		require.Contains(t, denied.Header.Values("RateLimit"), `"customer";r=0;t=1`)
		require.Contains(t, body, `"violated-policies":["customer"]`)
		require.Equal(t, 400, s.plan(t, "acme", "porsche"))
		require.Equal(t, 204, s.plan(t, "acme", "pro"))
		for range 54 { // of 60 at once, of which 6 were used
			require.Equal(t, 202, s.post(t, "/invite", "secret-1", "to=x"))
		}
		require.Equal(t, 429, s.post(t, "/invite", "secret-1", "to=x"))
		_, top := ask(t, s.admins, "GET", "/top", "", "")
		require.Contains(t, top, "acme")
		require.Equal(t, 404, s.plan(t, "stark", "pro"))
		s.plans.Store("umbrella", "porsche")
		require.Equal(t, 500, s.post(t, "/invite", "secret-2", "to=x"), "a plan that does not exist is no fault of the customer's")
		require.Equal(t, 204, s.plan(t, "umbrella", "free"))
		require.Equal(t, 202, s.post(t, "/invite", "secret-2", "to=x"))
	})
}

func TestStrangersCountByAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		for range 600 {
			require.Equal(t, 401, s.post(t, "/invite", "made up", "to=x"))
		}
		require.Equal(t, 429, s.post(t, "/invite", "made up", "to=x"))
		require.Equal(t, 429, s.post(t, "/invite", "secret-1", "to=x"))
	})
}

// TestInstancesShareTheirLimits: three instances have one limit together while Redis answers, and a third of it each in an
// outage. They send mail in the order in which it was asked for.
func TestInstancesShareTheirLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := open(t)
		all := []*site{first, openOn(t, first.Env), openOn(t, first.Env)}
		ask := func(want ...int) {
			t.Helper()
			for i, status := range want {
				require.Equal(t, status, all[i%3].post(t, "/invite", "secret-1", "to=x"), i)
			}
		}
		ask(202, 202, 202, 202, 202, 202, 429, 429, 429)
		var sent []string
		for _, s := range all {
			sent = append(sent, <-s.sent, <-s.sent)
		}
		slices.Sort(sent)
		require.Equal(t, []string{"x 00.0", "x 00.2", "x 00.4", "x 00.6", "x 00.8", "x 01.0"}, sent)

		first.Advance(time.Minute) // all have seen that nothing is left, and then everything
		ask(202, 202, 202)
		first.FailWith("LOADING Redis is loading the dataset in memory")
		first.Advance(6 * time.Second)
		ask(202, 202, 202, 202, 202, 202, 429, 429, 429)
	})
}

// TestAddressesBehindProxies: what a proxy has added counts, and not what the client has sent itself.
func TestAddressesBehindProxies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		limits := newLimits(s.Env.Client(), 3, s.planOf, s.top.Observe)
		behind, _ := s.public(limits, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")})
		open, _ := s.public(limits, nil)
		for _, test := range []struct {
			handler         http.Handler
			from, forwarded string
			want            string // what is left
		}{
			{behind, "10.0.0.1:1", "192.0.2.1", "r=599"},
			{behind, "10.0.0.2:1", "203.0.113.9, 192.0.2.1", "r=598"},
			{behind, "192.0.2.1:1", "203.0.113.9", "r=597"},
			{open, "192.0.2.1:1", "203.0.113.9", "r=596"},
			{open, "10.0.0.1:1", "192.0.2.1", "r=599"},
		} {
			r := httptest.NewRequest("POST", "/invite", nil)
			r.RemoteAddr = test.from
			r.Header.Set("X-Forwarded-For", test.forwarded)
			w := httptest.NewRecorder()
			test.handler.ServeHTTP(w, r)
			require.Contains(t, w.Header().Get("RateLimit"), test.want, test)
		}
	})
}

func TestMailKeepsItsOrderThroughAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		for _, to := range []string{"a", "b", "c"} {
			require.Equal(t, 202, s.post(t, "/invite", "secret-2", "to="+to))
		}
		require.Equal(t, []string{"a 00.0", "b 00.2"}, []string{<-s.sent, <-s.sent})
		synctest.Wait() // the worker waits for the turn of c
		s.FailWith("LOADING Redis is loading the dataset in memory")
		require.Equal(t, "c 00.4", <-s.sent, "promised before")
		for _, to := range []string{"d", "e"} {
			s.Advance(10 * time.Second)
			require.Equal(t, 202, s.post(t, "/invite", "secret-2", "to="+to))
		}
		require.Equal(t, []string{"d", "e"}, []string{(<-s.sent)[:1], (<-s.sent)[:1]})
	})
}

func TestAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		require.Equal(t, 202, s.post(t, "/invite", "secret-1", "to=a"))
		require.Equal(t, 200, s.post(t, "/chat", "secret-2", "prompt=why"))
		s.FailWith("LOADING Redis is loading the dataset in memory")
		require.Equal(t, 202, s.post(t, "/invite", "secret-1", "to=a"))
		require.Equal(t, 429, s.post(t, "/invite", "secret-1", "to=a"), "a third of what Redis had left")
		require.Equal(t, 200, s.post(t, "/chat", "secret-2", "prompt=why"))
		closed, _ := ask(t, s.server, "POST", "/login", "", "user=eve&password=right")
		require.Equal(t, 503, closed.StatusCode)
		require.Equal(t, "1", closed.Header.Get("Retry-After"))
		s.Up()
		s.Advance(time.Minute)
		require.Equal(t, 200, s.post(t, "/login", "", "user=eve&password=right"))
	})
}

func TestChatsAreLimitedByPlacesAndTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		answers := make(chan int)
		for range 4 {
			go func() { answers <- s.post(t, "/chat", "secret-1", "prompt=why") }()
		}
		require.Equal(t, 429, <-answers, "three at a time")
		for range 3 {
			require.Equal(t, 200, <-answers)
		}
		require.Equal(t, 200, s.post(t, "/chat", "secret-1", "prompt="+strings.Repeat("x", 5000)))
		denied, _ := ask(t, s.server, "POST", "/chat", "secret-1", "prompt=why")
		require.Equal(t, 429, denied.StatusCode)
		require.NotEmpty(t, denied.Header.Get("Retry-After"))
	})
}

func TestTriesAtAPassword(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t)
		for range 5 {
			require.Equal(t, 401, s.post(t, "/login", "", "user=eve&password=wrong"))
		}
		require.Equal(t, 429, s.post(t, "/login", "", "user=Eve&password=right"))
		require.Equal(t, 200, s.post(t, "/login", "", "user=adam&password=right"))
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
		for range 7 {
			s.post(t, "/invite", "secret-1", "to=x")
		}
		_, scrape := ask(t, s.admins, "GET", "/metrics", "", "")
		require.Contains(t, scrape, `ratelimit_policy="customer",ratelimit_result="denied"`)
		for _, secret := range []string{"secret-1", "acme", "127.0.0.1"} {
			require.NotContains(t, scrape, secret)
		}
	})
}
