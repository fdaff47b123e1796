// Package service is a service of ten call sites that limits by redis_rate.
package service

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/tryacquire/ratelimit/shims/redis_rate"
)

// A Service limits what its customers do.
type Service struct{ limiter *redis_rate.Limiter }

// New returns a service.
func New(client redis.UniversalClient) *Service { return &Service{redis_rate.NewLimiter(client)} }

// Handler answers a request of a customer.
func (s *Service) Handler(w http.ResponseWriter, r *http.Request) {
	res, err := s.limiter.Allow(r.Context(), "api:"+r.Header.Get("X-User"), redis_rate.PerMinute(3)) // 1
	if err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("X-RateLimit-Remaining", strconv.Itoa(res.Remaining))
	if res.Allowed == 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(res.RetryAfter/time.Second)))
		w.WriteHeader(http.StatusTooManyRequests)
	}
}

// Login is denied after too many attempts.
func (s *Service) Login(ctx context.Context, user string) error {
	return s.one(ctx, "login:"+user, redis_rate.Limit{Rate: 1, Burst: 5, Period: time.Minute}) // 2
}

// LoggedIn forgets the attempts.
func (s *Service) LoggedIn(ctx context.Context, user string) error {
	return s.limiter.Reset(ctx, "login:"+user) // 3
}

// Search is a call of a cost.
func (s *Service) Search(ctx context.Context, user string, pages int) error {
	res, err := s.limiter.AllowN(ctx, "search:"+user, redis_rate.PerHour(100), pages) // 4
	return denied(res, err)
}

// Send sends as many messages as it may.
func (s *Service) Send(ctx context.Context, user string, messages int) (sent int, err error) {
	res, err := s.limiter.AllowAtMost(ctx, "send:"+user, redis_rate.PerHour(10), messages) // 5
	if err != nil {
		return 0, err
	}
	return res.Allowed, nil
}

// Left is how many messages may be sent.
func (s *Service) Left(ctx context.Context, user string) (int, error) {
	res, err := s.limiter.AllowN(ctx, "send:"+user, redis_rate.PerHour(10), 0) // 6
	if err != nil {
		return 0, err
	}
	return res.Remaining, nil
}

// Tenant has a limit of the tenant's own.
func (s *Service) Tenant(ctx context.Context, tenant string, perSecond int) error {
	return s.one(ctx, "tenant:"+tenant, redis_rate.PerSecond(perSecond)) // 7
}

// SMS has two limits.
func (s *Service) SMS(ctx context.Context, number string) error {
	if err := s.one(ctx, "sms-minute:"+number, redis_rate.PerMinute(1)); err != nil { // 8
		return err
	}
	return s.one(ctx, "sms-hour:"+number, redis_rate.PerHour(5)) // 9
}

// Everybody is a limit of all customers together.
func (s *Service) Everybody(ctx context.Context) error {
	return s.one(ctx, "everybody", redis_rate.PerSecond(1000)) // 10
}

func (s *Service) one(ctx context.Context, key string, limit redis_rate.Limit) error {
	res, err := s.limiter.Allow(ctx, key, limit)
	return denied(res, err)
}

func denied(res *redis_rate.Result, err error) error {
	if err == nil && res.Allowed == 0 {
		err = fmt.Errorf("denied, retry after %v", res.RetryAfter.Round(time.Second))
	}
	return err
}
