package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/simulate"
)

// A limit is an algorithm and what it is built from. Only the fields of the
// algorithm are set.
type limit struct {
	label      string // of a sweep: what differs
	algorithm  string
	rate       ratelimit.Rate   // all but a sliding log with rules of its own
	rules      []ratelimit.Rule // sliding log
	burst      int              // token bucket
	every      time.Duration    // token bucket; 0: continuously
	capacity   int              // leaky bucket
	aligned    bool             // fixed window, and a token bucket with every
	offset     time.Duration    // if aligned
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

var algorithmNames = []string{tokenBucket, leakyBucket, fixedWindow, slidingWindow, slidingLog}

// simulated makes the limiter. The error for what cannot work wraps ratelimit.ErrInvalidConfig.
func (l limit) simulated() (*simulate.Limiter, error) {
	switch l.algorithm {
	case fixedWindow:
		return simulate.New(simulate.FixedWindow{Limit: l.rate.Count, Window: l.rate.Period, Aligned: l.aligned, Offset: l.offset})
	case slidingWindow:
		return simulate.New(simulate.SlidingWindow{Limit: l.rate.Count, Window: l.rate.Period, SubWindows: l.buckets, Storage: l.storage})
	case slidingLog:
		return simulate.New(simulate.SlidingLog{Rules: l.rules, Resolution: l.resolution})
	case tokenBucket:
		return simulate.New(simulate.TokenBucket{Rate: l.rate, Burst: l.burst, RefillEvery: l.every, Aligned: l.aligned, Offset: l.offset})
	case leakyBucket:
		return simulate.New(simulate.LeakyBucket{Rate: l.rate, Capacity: l.capacity})
	}
	return nil, fmt.Errorf("unknown algorithm %q", l.algorithm)
}

// flags are the flags that make the limit.
func (l limit) flags() string {
	rate := func(n int, d time.Duration) string {
		for _, u := range []struct {
			name string
			d    time.Duration
		}{{"s", time.Second}, {"m", time.Minute}, {"h", time.Hour}, {"d", 24 * time.Hour}} {
			if d == u.d {
				return fmt.Sprintf("%d/%s", n, u.name)
			}
		}
		return fmt.Sprintf("%d/%v", n, d)
	}
	s := "--algorithm " + l.algorithm
	if l.algorithm == slidingLog {
		var rules []string
		for _, r := range l.rules {
			rules = append(rules, rate(r.Limit, r.Window))
		}
		s += " --rule " + strings.Join(rules, ",")
		if l.resolution > 0 {
			s += fmt.Sprintf(" --resolution %v", l.resolution)
		}
		return s
	}
	s += " --rate " + rate(l.rate.Count, l.rate.Period)
	switch l.algorithm {
	case tokenBucket:
		s += fmt.Sprintf(" --burst %d", l.burst)
		if l.every > 0 {
			s += fmt.Sprintf(" --every %v", l.every)
		}
		if l.aligned {
			s += fmt.Sprintf(" --align %v", l.offset)
		}
	case leakyBucket:
		s += fmt.Sprintf(" --capacity %d", l.capacity)
	case fixedWindow:
		if l.aligned {
			s += fmt.Sprintf(" --align %v", l.offset)
		}
	case slidingWindow:
		s += " --storage " + strings.ToLower(l.storage.String())
		if l.buckets > 0 {
			s += fmt.Sprintf(" --buckets %d", l.buckets)
		}
	}
	return s
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
		if l.storage == ratelimit.StorageZSet {
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
		switch {
		case !l.aligned:
		case l.offset == 0:
			s += " of the clock (UTC)"
		default:
			s += fmt.Sprintf(" of the clock (UTC, shifted by %s)", duration(l.offset))
		}
		return s
	default:
		return fmt.Sprintf("drains %s, holds up to %s", rate, number(l.capacity))
	}
}
