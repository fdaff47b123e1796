// Package service is the service of ten call sites on the library itself.
package service

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
)

// A Service limits what its customers do. Its keys have a prefix, because an empty key is an error.
type Service struct {
	api, login, search, send, everybody, tenants *ratelimit.TokenBucket
	sms                                          *ratelimit.All
}

// New returns a service.
func New(client redis.UniversalClient) *Service {
	bucket := func(name string, rate ratelimit.Rate, burst int) *ratelimit.TokenBucket {
		return ratelimit.Must(ratelimit.NewTokenBucket(client, rate, burst, ratelimit.WithName(name)))
	}
	return &Service{
		api:       bucket("api", ratelimit.PerMinute(3), 3),
		login:     bucket("login", ratelimit.PerMinute(1), 5),
		search:    bucket("search", ratelimit.PerHour(100), 100),
		send:      bucket("send", ratelimit.PerHour(10), 10),
		everybody: bucket("everybody", ratelimit.PerSecond(1000), 1000),
		tenants:   bucket("tenant", ratelimit.PerSecond(10), 10),
		sms: ratelimit.Must(ratelimit.NewAll(
			bucket("sms-minute", ratelimit.PerMinute(1), 1), bucket("sms-hour", ratelimit.PerHour(5), 5))),
	}
}

// Handler answers a request of a customer.
func (s *Service) Handler(w http.ResponseWriter, r *http.Request) {
	result, err := s.api.TryAcquire(r.Context(), "user:"+r.Header.Get("X-User")) // 1
	if err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("X-RateLimit-Remaining", strconv.Itoa(result.Remaining))
	if !result.Allowed {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(result.RetryAfter.Seconds()))))
		w.WriteHeader(http.StatusTooManyRequests)
	}
}

// Login is denied after too many attempts.
func (s *Service) Login(ctx context.Context, user string) error {
	return denied(s.login.TryAcquire(ctx, "user:"+user)) // 2
}

// LoggedIn forgets the attempts.
func (s *Service) LoggedIn(ctx context.Context, user string) error {
	return s.login.Reset(ctx, "user:"+user) // 3
}

// Search is a call of a cost.
func (s *Service) Search(ctx context.Context, user string, pages int) error {
	if pages == 0 { // an error here; redis_rate allows 0 of 0, which denied reports as a denial
		return denied(ratelimit.Result{}, nil)
	}
	result, err := s.search.TryAcquireN(ctx, "user:"+user, pages) // 4
	if errors.Is(err, ratelimit.ErrExceedsLimit) {
		return fmt.Errorf("denied: %w", err) // no wait would help
	}
	return denied(result, err)
}

// Send sends as many messages as it may.
func (s *Service) Send(ctx context.Context, user string, messages int) (sent int, err error) {
	if messages == 0 { // an error here
		return 0, nil
	}
	sent, _, err = s.send.TryAcquireUpTo(ctx, "user:"+user, messages) // 5
	return sent, err
}

// Left is how many messages may be sent.
func (s *Service) Left(ctx context.Context, user string) (int, error) {
	result, err := s.send.Peek(ctx, "user:"+user) // 6
	return result.Remaining, err
}

// Tenant has a limit of the tenant's own.
func (s *Service) Tenant(ctx context.Context, tenant string, perSecond int) error {
	limiter, err := s.tenants.With(ratelimit.PerSecond(perSecond), perSecond) // 7
	if err != nil {
		return err
	}
	return denied(limiter.TryAcquire(ctx, "tenant:"+tenant))
}

// SMS has two limits: both are taken, or none.
func (s *Service) SMS(ctx context.Context, number string) error {
	return denied(s.sms.TryAcquire(ctx, "number:"+number)) // 8 and 9
}

// Everybody is a limit of all customers together.
func (s *Service) Everybody(ctx context.Context) error {
	return denied(s.everybody.TryAcquire(ctx, "everybody")) // 10
}

func denied(result ratelimit.Result, err error) error {
	if err == nil && !result.Allowed {
		err = fmt.Errorf("denied, retry after %v", result.RetryAfter.Round(time.Second))
	}
	return err
}
