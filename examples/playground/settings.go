package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/tryacquire/ratelimit"
)

// settings are what the page's controls say.
type settings struct {
	Algorithm string `json:"algorithm"`
	Limit     int    `json:"limit"`
	Window    int    `json:"window"` // seconds
	Plan      string `json:"plan"`   // basic has the limit, pro three times as much
	Callers   int    `json:"callers"`
	Rate      int    `json:"rate"`   // requests a second of each caller
	Greedy    bool   `json:"greedy"` // the first caller makes ten times as many
	Shared    bool   `json:"shared"`
	Wait      bool   `json:"wait"`
	Policy    string `json:"policy"`
	Down      bool   `json:"down"`
}

var usual = settings{Algorithm: "token-bucket", Limit: 10, Window: 10, Plan: "basic", Callers: 2, Rate: 1, Shared: true, Policy: "local"}

const (
	maxCallers = 6
	proFactor  = 3
	greed      = 10
	fair       = "fair-token-bucket"
)

var limiters = map[string]func(c ratelimit.Client, limit int, window time.Duration, opts ...ratelimit.Option) (ratelimit.Limiter, error){
	"token-bucket": func(c ratelimit.Client, limit int, window time.Duration, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
		return ratelimit.NewTokenBucket(c, ratelimit.Per(limit, window), limit, opts...)
	},
	fair: func(c ratelimit.Client, limit int, window time.Duration, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
		return ratelimit.NewFairTokenBucket(c, ratelimit.Per(limit, window), limit, opts...)
	},
	"leaky-bucket": func(c ratelimit.Client, limit int, window time.Duration, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
		return ratelimit.NewLeakyBucket(c, ratelimit.Per(limit, window), 1, opts...)
	},
	"fixed-window": func(c ratelimit.Client, limit int, window time.Duration, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
		return ratelimit.NewFixedWindow(c, limit, window, opts...)
	},
	"sliding-window": func(c ratelimit.Client, limit int, window time.Duration, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
		return ratelimit.NewSlidingWindow(c, limit, window, opts...)
	},
	"sliding-log": func(c ratelimit.Client, limit int, window time.Duration, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
		return ratelimit.NewSlidingLog(c, []ratelimit.Rule{{Limit: limit, Window: window}}, opts...)
	},
}

// secondaries decide while Redis is down. The local limit is for one of two instances.
var secondaries = map[string]func(limit int, window time.Duration) (ratelimit.Limiter, error){
	"error": nil,
	"allow": func(int, time.Duration) (ratelimit.Limiter, error) { return ratelimit.AllowAll(), nil },
	"deny":  func(int, time.Duration) (ratelimit.Limiter, error) { return ratelimit.DenyAll(), nil },
	"local": func(limit int, window time.Duration) (ratelimit.Limiter, error) {
		half := max(limit/2, 1)
		return ratelimit.NewLocalTokenBucket(ratelimit.Per(half, window), half)
	},
}

func (s settings) check() error {
	within := func(what string, value, least, most int) error {
		if value < least || value > most {
			return fmt.Errorf("%s is %d; it can be %d to %d", what, value, least, most)
		}
		return nil
	}
	var unknown error
	if _, ok := limiters[s.Algorithm]; !ok {
		unknown = fmt.Errorf("the algorithm %q is unknown", s.Algorithm)
	}
	if _, ok := secondaries[s.Policy]; !ok {
		unknown = errors.Join(unknown, fmt.Errorf("the policy %q is unknown", s.Policy))
	}
	if s.Plan != "basic" && s.Plan != "pro" {
		unknown = errors.Join(unknown, fmt.Errorf("the plan %q is unknown", s.Plan))
	}
	return errors.Join(unknown,
		within("the limit", s.Limit, 1, 1000), within("the window in seconds", s.Window, 1, 3600),
		within("the number of callers", s.Callers, 1, maxCallers), within("the number of requests a second", s.Rate, 0, 20))
}

// sameLimiter reports whether the limiter of other settings goes on, with the memory of its breaker
// and of its secondary.
func (s settings) sameLimiter(other settings) bool {
	return s.Algorithm == other.Algorithm && s.Limit == other.Limit && s.Window == other.Window && s.Policy == other.Policy
}

// sharedKey is the key of the limit that the callers of a fair token bucket share.
const sharedKey = "{all}"

// key is the key of a caller.
func (s settings) key(caller int) string {
	switch {
	case s.Algorithm == fair:
		return fmt.Sprintf("%s:user:%d", sharedKey, caller)
	case s.Shared:
		return "user:1"
	}
	return fmt.Sprintf("user:%d", caller)
}

// rate is how many requests a caller makes in a second.
func (s settings) rate(caller int) int {
	if s.Greedy && caller == 1 {
		return greed * s.Rate
	}
	return s.Rate
}
