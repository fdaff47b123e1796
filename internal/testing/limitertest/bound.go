package limitertest

import (
	"fmt"
	"math/big"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// A Bound is what one configuration allows in any interval of time, even if other
// configurations use the same key.
type Bound struct {
	Limit  int           // limit, burst or capacity
	Window time.Duration // the window, the longest one of several, or the time of a full refill

	Rate  ratelimit.Rate // of a bucket
	Step  time.Duration  // of a bucket whose tokens come in steps
	Rules []model.Rule   // of a log, of sub-windows and of a sorted set
	Slot  time.Duration  // by how much these can be late: a sub-window or the resolution

	Aligned bool          // a fixed window that starts at given times, or a bucket whose steps come then
	Offset  time.Duration // of a bucket's steps
}

// Unlike reports whether buckets have aligned steps beside others that come at other times: then each may be the first
// to find the bucket full just before its step.
func Unlike(bounds []Bound) bool {
	for _, b := range bounds {
		first := bounds[0]
		if (b.Aligned || first.Aligned) && b.Rate.Count > 0 && (b.Aligned != first.Aligned || b.Step != first.Step || (b.Offset-first.Offset)%b.Step != 0) {
			return true
		}
	}
	return false
}

// An AllowedCall is a call that was allowed.
type AllowedCall struct {
	At      int64 // the true time, microseconds
	Instant int64 // the time at which it was decided: the latest that any call has read
	By      int   // the number of the configuration that called
	N       int   // 0 if all were given back
}

// Exceeded describes how the permits that several configurations took together break a bound, or
// is "". Skew is how far apart their clocks are, the time that calls take to arrive included: the
// earliest and the latest deviation of the clocks differ by at most that much.
func Exceeded(bounds []Bound, calls []AllowedCall, skew time.Duration) string {
	switch {
	case bounds[0].Rate.Count > 0:
		return exceededBucket(bounds, calls, skew)
	case bounds[0].Rules != nil:
		if broken := exceededLog(bounds, calls); broken != "" {
			return broken
		}
		return exceededWindow(bounds, calls, skew, 1)
	}
	return exceededWindow(bounds, calls, skew, 2) // an interval can touch one window more
}

// exceededBucket: in any interval t, the largest burst, and the fastest rate in t, the
// skew and, where tokens come in steps, the longest step: its tokens may be for the time
// before the interval. Unlike aligned buckets may get a step more at each of its instants.
func exceededBucket(bounds []Bound, calls []AllowedCall, skew time.Duration) string {
	per := func(b Bound, d time.Duration) *big.Rat {
		return new(big.Rat).Mul(big.NewRat(int64(b.Rate.Count), int64(b.Rate.Period)), new(big.Rat).SetInt64(int64(d)))
	}
	fastest, burst, step := bounds[0], 0, time.Duration(0)
	for _, b := range bounds {
		if per(b, time.Hour).Cmp(per(fastest, time.Hour)) > 0 {
			fastest = b
		}
		step = max(step, b.Step)
		burst = max(burst, b.Limit)
	}
	allowance := new(big.Rat).SetInt64(int64(burst))
	allowance.Add(allowance, per(fastest, step+skew))
	if Unlike(bounds) {
		for i := range calls {
			sum := 0
			for _, g := range calls[i:] {
				sum += g.N
				t := time.Duration(g.At-calls[i].At) * time.Microsecond
				most := new(big.Rat).Add(allowance, per(fastest, t))
				for _, b := range bounds {
					if b.Aligned {
						from, to := time.Duration(calls[i].At)*time.Microsecond-skew-b.Offset, time.Duration(g.At)*time.Microsecond+skew-b.Offset
						most.Add(most, new(big.Rat).Mul(per(b, b.Step), big.NewRat(int64(to/b.Step-from/b.Step), 1)))
					}
				}
				if new(big.Rat).SetInt64(int64(sum)).Cmp(most) > 0 {
					return fmt.Sprintf("%d permits within %v, more than %v", sum, t, most.FloatString(3))
				}
			}
		}
		return ""
	}
	if over, worst := model.Exceeds(taken(calls), fastest.Rate.Count, fastest.Rate.Period, allowance); over {
		return fmt.Sprintf("%v permits too many: %+v", worst.Over, worst)
	}
	return ""
}

// exceededWindow: the largest limit in each shortest window. In an interval t, windows of
// t and the skew can begin, and some more are open. Aligned windows can begin at the
// boundaries of each rule.
func exceededWindow(bounds []Bound, calls []AllowedCall, skew time.Duration, more int64) string {
	limit, window := 0, bounds[0].Window
	var aligned []time.Duration
	for _, b := range bounds {
		if b.Aligned {
			aligned = append(aligned, b.Window)
		}
		limit, window = max(limit, b.Limit), min(window, b.Window)
		for _, r := range b.Rules {
			limit, window = max(limit, r.Limit), min(window, r.Window)
		}
	}
	for i := range calls {
		sum := 0
		for _, g := range calls[i:] {
			sum += g.N
			t := time.Duration(g.At-calls[i].At) * time.Microsecond
			windows := int64((t+skew)/window) + more
			for _, w := range aligned {
				windows += int64((t+skew)/w) + 1
			}
			if each := (int64(sum) + windows - 1) / windows; each > int64(limit) { // limit × windows may be beyond 64 bits
				return fmt.Sprintf("%d permits within %v, more than %d × %d", sum, t, windows, limit)
			}
		}
	}
	return ""
}

// exceededLog: each allowed call's own rules hold over all permits that must still be
// kept. A permit must be kept for as long as a configuration with a window that still
// holds it has itself taken a permit within that window. A call whose permits were all given
// back needs none, but it has dropped what nobody needed then.
func exceededLog(bounds []Bound, calls []AllowedCall) string {
	var kept []AllowedCall
	needed := make([]int64, len(bounds)) // until when each configuration needs the log
	for _, g := range calls {
		alive := false
		for _, until := range needed {
			alive = alive || until > g.Instant
		}
		if !alive {
			kept = nil // the key may have expired
		}
		for _, r := range bounds[g.By].Rules {
			sum := g.N
			for _, k := range kept {
				if k.Instant > g.Instant-r.Window.Microseconds() {
					sum += k.N
				}
			}
			if sum > r.Limit {
				return fmt.Sprintf("%d permits at %d by the rule of %d per %v", sum, g.Instant, r.Limit, r.Window)
			}
		}
		until := needed[g.By]
		needed[g.By] = g.Instant + bounds[g.By].Window.Microseconds()
		longest := int64(0)
		for i, until := range needed {
			if until > g.Instant {
				longest = max(longest, bounds[i].Window.Microseconds())
			}
		}
		kept = append(kept, g)
		for kept[0].Instant <= g.Instant-longest {
			kept = kept[1:]
		}
		if g.N == 0 {
			needed[g.By] = until
		}
	}
	return ""
}

func taken(calls []AllowedCall) []model.Taken {
	var all []model.Taken
	for _, g := range calls {
		all = append(all, model.Taken{At: g.At, N: g.N})
	}
	return all
}
