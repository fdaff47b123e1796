package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/tryacquire/ratelimit"
)

// A limit is an algorithm and what it is built from. Only the fields of the
// algorithm are set.
type limit struct {
	algorithm  string
	rate       ratelimit.Rate   // all but a sliding log with rules of its own
	rules      []ratelimit.Rule // sliding log
	burst      int              // token bucket
	every      time.Duration    // token bucket; 0: continuously
	capacity   int              // leaky bucket
	aligned    bool             // fixed window
	offset     time.Duration    // fixed window, if aligned
	storage    ratelimit.Storage
	buckets    int           // sliding window; 0: none, for ZSet
	resolution time.Duration // sliding log; 0: exact
}

const (
	fixedWindow   = "fixed-window"
	slidingWindow = "sliding-window"
	slidingLog    = "sliding-log"
	tokenBucket   = "token-bucket"
	leakyBucket   = "leaky-bucket"
)

var algorithms = []string{tokenBucket, leakyBucket, fixedWindow, slidingWindow, slidingLog}

// build makes the limiter, and returns for what cannot work an error that
// wraps ratelimit.ErrInvalidConfig.
func (l limit) build(c ratelimit.Client) (ratelimit.Limiter, error) {
	switch l.algorithm {
	case fixedWindow:
		var opts []ratelimit.FixedWindowOption
		if l.aligned {
			opts = append(opts, ratelimit.WithAlignment(l.offset))
		}
		return ratelimit.NewFixedWindow(c, l.rate.Count, l.rate.Period, opts...)
	case slidingWindow:
		opts := []ratelimit.SlidingWindowOption{ratelimit.WithStorage(l.storage)}
		if l.buckets > 0 {
			opts = append(opts, ratelimit.WithSubWindows(l.buckets))
		}
		return ratelimit.NewSlidingWindow(c, l.rate.Count, l.rate.Period, opts...)
	case slidingLog:
		var opts []ratelimit.SlidingLogOption
		if l.resolution > 0 {
			opts = append(opts, ratelimit.WithResolution(l.resolution))
		}
		return ratelimit.NewSlidingLog(c, l.rules, opts...)
	case tokenBucket:
		var opts []ratelimit.TokenBucketOption
		if l.every > 0 {
			opts = append(opts, ratelimit.WithRefillEvery(l.every))
		}
		return ratelimit.NewTokenBucket(c, l.rate, l.burst, opts...)
	case leakyBucket:
		return ratelimit.NewLeakyBucket(c, l.rate, l.capacity)
	}
	return nil, fmt.Errorf("unknown algorithm %q", l.algorithm)
}

// String describes the limit in words.
func (l limit) String() string {
	rate := fmt.Sprintf("%s per %s", number(l.rate.Count), period(l.rate.Period))
	atMost := func(limit int, window string) string { return "at most " + number(limit) + " " + window }
	switch l.algorithm {
	case fixedWindow:
		switch {
		case !l.aligned:
			return atMost(l.rate.Count, "in a window of "+duration(l.rate.Period)+" that starts with the first request in it")
		case l.offset == 0:
			return atMost(l.rate.Count, "in each "+period(l.rate.Period)+" of the clock (UTC)")
		}
		return atMost(l.rate.Count, fmt.Sprintf("in each %s of the clock (UTC, shifted by %s)", period(l.rate.Period), duration(l.offset)))
	case slidingWindow:
		s := atMost(l.rate.Count, "in any "+period(l.rate.Period))
		if l.storage == ratelimit.ZSet {
			return s + ", exactly (zset)"
		}
		return s + fmt.Sprintf(", in %s (%s)", plural(l.buckets, "sub-window"), strings.ToLower(l.storage.String()))
	case slidingLog:
		var rules []string
		for _, r := range l.rules {
			rules = append(rules, fmt.Sprintf("%s in any %s", number(r.Limit), period(r.Window)))
		}
		s := "at most " + strings.Join(rules, " and ")
		if l.resolution > 0 {
			s += fmt.Sprintf(", remembered to %v", l.resolution)
		}
		return s
	case tokenBucket:
		s := fmt.Sprintf("%s, up to %s at once", rate, number(l.burst))
		if l.every > 0 {
			s += fmt.Sprintf(", refilled every %s", period(l.every))
		}
		return s
	default:
		return fmt.Sprintf("drains %s, holds up to %s", rate, number(l.capacity))
	}
}
