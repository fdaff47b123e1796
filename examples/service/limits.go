package main

import (
	"context"
	"time"

	"github.com/tryacquire/ratelimit"
)

const budget = 20 * time.Millisecond // of a request, for all its limits

// A plan is what a customer has bought.
type plan struct{ perMinute, burst int }

var plans = map[string]plan{"free": {60, 6}, "pro": {600, 60}, "max": {6_000, 600}}

// limits decide on Redis. In an outage each instance allows its share, but for logins, which are denied.
type limits struct {
	address, everybody, customer, tokens, mail ratelimit.Limiter
	running                                    ratelimit.Holder
	loginAddress, loginUser                    ratelimit.Limiter
}

// newLimits takes the plan of a request's customer from planOf. While Redis is down, instances share each limit.
func newLimits(client ratelimit.Client, instances int, planOf func(ctx context.Context) string, observers ...ratelimit.Observer) limits {
	observed := ratelimit.WithObserver(observers...)
	named := func(name string) []ratelimit.Option { return []ratelimit.Option{ratelimit.WithName(name), observed} }
	breaker := &ratelimit.Breaker{Observers: observers, Name: "redis"}
	outage := func(primary, secondary ratelimit.Limiter) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewFallback(primary, secondary,
			ratelimit.WithBudget(budget), ratelimit.WithBreaker(breaker), observed))
	}
	share := func(perMinute, burst int, begins ...ratelimit.Option) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewLocalTokenBucket(
			ratelimit.PerMinute(max(1, perMinute/instances)), max(1, burst/instances), begins...))
	}
	bucket := func(name string, p plan) ratelimit.Limiter {
		shared := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerMinute(p.perMinute), p.burst, named(name)...))
		return outage(shared, share(p.perMinute, p.burst, ratelimit.WithLastAnswers()))
	}
	tries := func(name string, limit int) ratelimit.Limiter {
		log := ratelimit.Must(ratelimit.NewSlidingLog(client, []ratelimit.Rule{{Limit: limit, Window: 15 * time.Minute}}, named(name)...))
		return outage(log, ratelimit.DenyAll()) // a password must not be tried without a limit
	}

	byPlan := map[string]ratelimit.Limiter{}
	for name, p := range plans {
		byPlan[name] = bucket("customer", p)
	}
	window := ratelimit.Must(ratelimit.NewSlidingWindow(client, 600, time.Minute, named("address")...))
	mail := ratelimit.Must(ratelimit.NewLeakyBucket(client, ratelimit.PerSecond(5), 1, named("mail")...))
	running := ratelimit.Must(ratelimit.NewInFlight(client, 3, 30*time.Second, named("running")...))
	return limits{
		address:   outage(window, share(600, 600)), // it begins full: an address that comes for the first time is no abuse
		everybody: bucket("everybody", plan{60_000, 2_000}),
		customer: ratelimit.Must(ratelimit.NewChoice(func(ctx context.Context, _ string) (ratelimit.Limiter, error) {
			return byPlan[planOf(ctx)], nil // nil for a plan that does not exist: our mistake, so the answer is 500
		})),
		tokens: bucket("tokens", plan{6_000, 3_000}),
		mail:   outage(mail, share(300, 1, ratelimit.WithLastAnswers())),
		running: ratelimit.Must(ratelimit.NewHoldFallback(running, ratelimit.Must(ratelimit.NewLocalInFlight(1)),
			ratelimit.WithBudget(budget), ratelimit.WithBreaker(breaker), observed)),
		loginAddress: tries("login-address", 50),
		loginUser:    tries("login-user", 5),
	}
}
