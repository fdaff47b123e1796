// Service is an API with every kind of limit: per address, per API key by its plan, for all together, for
// requests at the same time, for the tokens of a language model, and for a worker that waits for its turn.
// Redis is at REDIS_ADDR; Prometheus scrapes http://localhost:8080/metrics.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
	"github.com/tryacquire/ratelimit/otellimit"
)

type service struct {
	tenants map[string]string                               // by API key
	plans   sync.Map                                        // of the tenants; "free" if there is none
	model   func(prompt string) (answer string, tokens int) // is slow
	mail    func(to string)
	outbox  chan string
}

type tenantKey struct{}

func tenant(ctx context.Context) string { t, _ := ctx.Value(tenantKey{}).(string); return t }

func (s *service) authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t, ok := s.tenants[r.Header.Get("X-API-Key")]
		if !ok {
			http.Error(w, "unknown API key", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tenantKey{}, t)))
	})
}

func (s *service) chat(w http.ResponseWriter, r *http.Request) {
	answer, tokens := s.model(r.FormValue("prompt"))
	httplimit.ReportCostOf(r.Context(), "tokens", tokens)
	fmt.Fprintln(w, answer)
}

func (s *service) invite(w http.ResponseWriter, r *http.Request) {
	select {
	case s.outbox <- r.FormValue("to"):
	case <-r.Context().Done():
	}
}

// run sends mail in turn with all other instances.
func (s *service) run(ctx context.Context, shaper ratelimit.Limiter) {
	for to := range s.outbox {
		if _, err := ratelimit.Wait(ctx, shaper, "mail"); err != nil {
			return // ctx has ended
		}
		s.mail(to)
	}
}

func (s *service) start(ctx context.Context, client ratelimit.Client, observer ratelimit.Observer) http.Handler {
	observed := ratelimit.WithObserver(observer)
	named := func(name string) ratelimit.Option { return ratelimit.WithOptions(ratelimit.WithName(name), observed) }
	plan := func(perMinute, burst int) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerMinute(perMinute), burst, named("key")))
	}
	plans := map[any]ratelimit.Limiter{"free": plan(60, 5), "pro": plan(600, 50), "max": plan(6_000, 500)}
	perKey := ratelimit.Must(ratelimit.NewChoice(func(ctx context.Context, _ string) ratelimit.Limiter {
		of, _ := s.plans.Load(tenant(ctx))
		return cmp.Or(plans[of], plans["free"])
	}))
	perAddress := ratelimit.Must(ratelimit.NewSlidingWindow(client, 600, time.Minute, named("address")))
	everybody := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1_000), 2_000, named("everybody")))
	running := ratelimit.Must(ratelimit.NewInFlight(client, 2, 30*time.Second, named("running")))
	tokens := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerMinute(6_000), 2_000, named("tokens")))
	alone := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 1)) // for each of five instances, while Redis is down
	shaper := ratelimit.Must(ratelimit.NewFallback(
		ratelimit.Must(ratelimit.NewLeakyBucket(client, ratelimit.PerSecond(5), 1, named("mail"))), alone, ratelimit.WithBreaker()))
	address, user := ratelimit.Must(httplimit.ClientIP(nil)), ratelimit.Must(httplimit.User(tenant))
	limits := []httplimit.Option{
		httplimit.Limit(perAddress, address), httplimit.Limit(everybody, httplimit.Everyone()),
		httplimit.Limit(perKey, ratelimit.Must(httplimit.APIKey("X-API-Key")), httplimit.WithPolicy("key"), httplimit.WithBucket()),
	}
	cheap := ratelimit.Must(httplimit.NewAll(append(limits, httplimit.WithErrorHandler(httplimit.ServeInOutages))...))
	expensive := ratelimit.Must(httplimit.NewAll(append(limits, httplimit.InFlight(running, user),
		httplimit.Limit(tokens, user, httplimit.WithCost(func(*http.Request) int { return 500 }), httplimit.WithReportedCost()))...)) // fails closed

	mux := http.NewServeMux()
	mux.Handle("POST /invite", s.authenticated(cheap(http.HandlerFunc(s.invite))))
	mux.Handle("POST /chat", s.authenticated(expensive(http.HandlerFunc(s.chat))))
	mux.HandleFunc("PUT /admin/plans/{tenant}/{plan}", func(_ http.ResponseWriter, r *http.Request) { // behind the admins' authentication
		s.plans.Store(r.PathValue("tenant"), r.PathValue("plan"))
	})
	mux.Handle("GET /metrics", promhttp.Handler())
	go s.run(ctx, shaper)
	return mux
}

func main() {
	meters := metric.NewMeterProvider(metric.WithReader(ratelimit.Must(prometheus.New())))
	metrics := ratelimit.Must(otellimit.New(otellimit.WithMeterProvider(meters)))
	client := redis.NewClient(&redis.Options{Addr: cmp.Or(os.Getenv("REDIS_ADDR"), "localhost:6379"), ReadTimeout: time.Second})
	s := &service{
		tenants: map[string]string{"secret-1": "acme", "secret-2": "umbrella"}, outbox: make(chan string, 100),
		model: func(prompt string) (string, int) { return "You said: " + prompt, len(prompt) },
		mail:  func(to string) { log.Print("an invitation to ", to) },
	}
	log.Fatal(http.ListenAndServe("localhost:8080", s.start(context.Background(), client, metrics.Observe)))
}
