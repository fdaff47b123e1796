// Service is an API with every kind of limit: per address, per customer by plan, for all together, for requests at the
// same time, for the tokens of a language model, for tries at a password, and for a worker that waits for its turn.
// limits.go has the limits, and what they do while Redis is down.
//
// Variables of the environment, all of which may be left out:
//
//	ADDR             for customers, :8080
//	ADMIN_ADDR       for admins, localhost:8081: /metrics, /top and PUT /plans/{customer}/{plan}
//	REDIS_ADDR       localhost:6379
//	TRUSTED_PROXIES  the networks of the proxies in front, such as 10.0.0.0/8; none
//	INSTANCES        how many instances of this service share each limit while Redis is down, 3
package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
	"github.com/tryacquire/ratelimit/observe"
	"github.com/tryacquire/ratelimit/otellimit"
)

// A service keeps in memory what would be in a database, which all instances share.
type service struct {
	customers map[string]string // by API key
	plans     sync.Map          // by customer
	model     func(ctx context.Context, prompt string) (answer string, tokens int, err error)
	password  func(ctx context.Context, user, password string) bool
	send      func(to string)
	outbox    chan string
	top       *observe.Top
}

type customerKey struct{}

func customerOf(ctx context.Context) string { c, _ := ctx.Value(customerKey{}).(string); return c }

func (s *service) planOf(ctx context.Context) string {
	p, _ := s.plans.Load(customerOf(ctx))
	name, _ := p.(string)
	return name
}

// authenticated serves the requests of customers by next, and all others by stranger.
func (s *service) authenticated(next, stranger http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, ok := s.customers[r.Header.Get("X-API-Key")]
		if !ok {
			stranger.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), customerKey{}, c)))
	})
}

func (s *service) chat(w http.ResponseWriter, r *http.Request) {
	answer, tokens, err := s.model(r.Context(), r.FormValue("prompt"))
	httplimit.ReportCostOf(r.Context(), "tokens", tokens)
	if err != nil {
		http.Error(w, "the model has failed", http.StatusBadGateway)
		return
	}
	fmt.Fprintln(w, answer)
}

func (s *service) invite(w http.ResponseWriter, r *http.Request) {
	select {
	case s.outbox <- r.FormValue("to"):
		w.WriteHeader(http.StatusAccepted)
	default:
		http.Error(w, "too much mail is waiting", http.StatusServiceUnavailable)
	}
}

func (s *service) login(w http.ResponseWriter, r *http.Request) {
	if !s.password(r.Context(), r.PostFormValue("user"), r.PostFormValue("password")) {
		http.Error(w, "wrong user or password", http.StatusUnauthorized)
		return
	}
	fmt.Fprintln(w, "welcome")
}

// mail sends what is in the outbox, in turn with all other instances, until the outbox is closed or ctx ends.
func (s *service) mail(ctx context.Context, turns ratelimit.Limiter) {
	for to := range s.outbox {
		if _, err := ratelimit.Wait(ctx, turns, "mail"); err != nil {
			slog.Error("mail is not sent", "to", to, "error", err)
			continue
		}
		s.send(to)
	}
}

// user is the key of a try at a password. The hash keeps names out of Redis.
func user(r *http.Request) (string, error) {
	name := strings.ToLower(strings.TrimSpace(r.PostFormValue("user")))
	return fmt.Sprintf("%x", sha256.Sum256([]byte(name))), nil
}

// public is what customers see, and all limits of it. proxies are those whose X-Forwarded-For is believed.
func (s *service) public(l limits, proxies []netip.Prefix) (handler http.Handler, all []func(http.Handler) http.Handler) {
	address, customer := ratelimit.Must(httplimit.ClientIP(proxies)), ratelimit.Must(httplimit.User(customerOf))
	perAddress := httplimit.Limit(l.address, address)
	limits := []httplimit.Option{
		perAddress,
		httplimit.Limit(l.everybody, httplimit.Everyone(), httplimit.WithServiceUnavailable()),
		httplimit.Limit(l.customer, customer, httplimit.WithPolicy("customer"), httplimit.WithBucket()),
	}
	cheap := ratelimit.Must(httplimit.NewAll(limits...))
	expensive := ratelimit.Must(httplimit.NewAll(append(limits,
		httplimit.InFlight(l.running, customer),
		httplimit.Limit(l.tokens, customer, httplimit.WithCost(func(*http.Request) int { return 500 }), httplimit.WithReportedCost()))...))
	tries := ratelimit.Must(httplimit.NewAll(httplimit.Limit(l.loginAddress, address), httplimit.Limit(l.loginUser, user)))

	// What the authentication turns away counts by address too.
	strange := ratelimit.Must(httplimit.NewAll(perAddress))
	stranger := strange(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "unknown API key", http.StatusUnauthorized)
	}))
	mux := http.NewServeMux()
	mux.Handle("POST /invite", s.authenticated(cheap(http.HandlerFunc(s.invite)), stranger))
	mux.Handle("POST /chat", s.authenticated(expensive(http.HandlerFunc(s.chat)), stranger))
	mux.Handle("POST /login", tries(http.HandlerFunc(s.login)))
	return http.MaxBytesHandler(mux, 1<<20), []func(http.Handler) http.Handler{cheap, expensive, tries, strange}
}

// admin is for the operators, on an address that only they can reach.
func (s *service) admin() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.Handler())
	mux.HandleFunc("GET /top", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.top.Top(10))
	})
	mux.HandleFunc("PUT /plans/{customer}/{plan}", func(w http.ResponseWriter, r *http.Request) {
		customer, plan := r.PathValue("customer"), r.PathValue("plan")
		if _, ok := plans[plan]; !ok {
			http.Error(w, "there is no such plan", http.StatusBadRequest)
			return
		}
		if _, ok := s.plans.Load(customer); !ok {
			http.Error(w, "there is no such customer", http.StatusNotFound)
			return
		}
		s.plans.Store(customer, plan)
		w.WriteHeader(http.StatusNoContent)
	})
	return mux
}

// trustedProxies reads networks that are separated by commas or spaces.
func trustedProxies(list string) (proxies []netip.Prefix, err error) {
	for network := range strings.FieldsFuncSeq(list, func(r rune) bool { return r == ',' || r == ' ' }) {
		p, err := netip.ParsePrefix(network)
		if err != nil {
			return nil, fmt.Errorf("TRUSTED_PROXIES: %w; give networks such as 10.0.0.0/8", err)
		}
		proxies = append(proxies, p)
	}
	return proxies, nil
}

// run serves until ctx ends. Requests and mail then have ten seconds to finish.
func run(ctx context.Context) error {
	proxies, err := trustedProxies(os.Getenv("TRUSTED_PROXIES"))
	if err != nil {
		return err
	}
	instances, err := strconv.Atoi(cmp.Or(os.Getenv("INSTANCES"), "3"))
	if err != nil || instances < 1 {
		return fmt.Errorf("INSTANCES: %q is no number of instances; give one such as 3", os.Getenv("INSTANCES"))
	}
	client := redis.NewClient(ratelimit.Must(ratelimit.ClientOptions(budget,
		&redis.Options{Addr: cmp.Or(os.Getenv("REDIS_ADDR"), "localhost:6379")})))
	defer client.Close()
	meters := metric.NewMeterProvider(metric.WithReader(ratelimit.Must(prometheus.New())))
	metrics := ratelimit.Must(otellimit.New(otellimit.WithMeterProvider(meters)))
	denials := ratelimit.Must(observe.NewLog(slog.Default()))
	s := &service{
		customers: map[string]string{"secret-1": "acme", "secret-2": "umbrella"}, outbox: make(chan string, 100),
		model: func(_ context.Context, prompt string) (string, int, error) {
			return "You said: " + prompt, len(prompt), nil
		},
		password: func(context.Context, string, string) bool { return false },
		send:     func(to string) { slog.Info("an invitation", "to", to) },
		top:      ratelimit.Must(observe.NewTop(1_000)),
	}
	s.plans.Store("acme", "pro")
	s.plans.Store("umbrella", "free")
	l := newLimits(client, instances, s.planOf, metrics.Observe, denials.Observe, s.top.Observe)
	handler, all := s.public(l, proxies)
	failed := ratelimit.Preload(ctx, ratelimit.ClaimOf(l.mail, "mail", 1))
	for _, limit := range all { // the plans share their scripts, so those of one customer are enough
		failed = errors.Join(failed, httplimit.Preload(context.WithValue(ctx, customerKey{}, "acme"), limit))
	}
	if failed != nil {
		slog.Warn("Redis is down", "error", failed) // the policies for outages decide
	}

	public, err := net.Listen("tcp", cmp.Or(os.Getenv("ADDR"), ":8080"))
	if err != nil {
		return err
	}
	admin, err := net.Listen("tcp", cmp.Or(os.Getenv("ADMIN_ADDR"), "localhost:8081"))
	if err != nil {
		return err
	}
	servers := []*http.Server{
		{Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second},
		{Handler: s.admin(), ReadHeaderTimeout: 5 * time.Second},
	}
	ended := make(chan error, len(servers))
	go func() { ended <- servers[0].Serve(public) }()
	go func() { ended <- servers[1].Serve(admin) }()
	slog.Info("serving", "customers", public.Addr().String(), "admins", admin.Addr().String())
	mailing, stop := context.WithCancel(context.Background())
	defer stop()
	mailed := make(chan struct{})
	go func() { defer close(mailed); s.mail(mailing, l.mail) }()

	select {
	case <-ctx.Done():
	case err = <-ended:
	}
	grace, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, server := range servers {
		err = errors.Join(err, server.Shutdown(grace))
	}
	if err == nil { // no handler runs that could still send to the outbox
		close(s.outbox)
		select {
		case <-mailed:
		case <-grace.Done():
		}
	}
	if n := len(s.outbox); n > 0 {
		err = errors.Join(err, fmt.Errorf("%d invitations are not sent", n))
	}
	return err
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}
