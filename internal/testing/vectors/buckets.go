package vectors

import (
	"fmt"
	"math/big"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// A stateful bucket is a model that says what is missing at an instant.
type stateful interface {
	model.Settler
	State() (missing *big.Rat, at int64, ok bool)
}

// A bucket counts in units: a microsecond restores flow of them, and a permit is permit of them.
type bucket struct {
	m            stateful
	permit, flow int64
	every        int64 // microseconds of a step; 0: none
	aligned      bool  // steps are at the multiples of every since 1970
	caller       bool  // a caller's clock has written the state
	server       bool  // the server's clock decides all the same
}

func (b *bucket) model() model.Settler { return b.m }

// present is what is missing now, in units, and the instant up to which the refill is counted: the last step.
func (b *bucket) present(now int64) (units *big.Int, since int64) {
	missing, at, ok := b.m.State()
	if !ok && b.aligned {
		return new(big.Int), floor(now, b.every)
	}
	if !ok {
		return new(big.Int), now
	}
	units = whole(new(big.Rat).Mul(missing, new(big.Rat).SetInt64(b.permit)))
	if b.aligned {
		passed := floor(now, b.every) - floor(at, b.every) // below 0: a step comes again
		units.Sub(units, new(big.Int).Mul(big.NewInt(max(passed, -b.every)), big.NewInt(b.flow)))
		if units.Sign() <= 0 {
			units = new(big.Int)
		}
		return units, floor(now, b.every)
	}
	step := max(b.every, 1)
	passed := max(now-at, 0) / step * step
	units.Sub(units, new(big.Int).Mul(big.NewInt(passed), big.NewInt(b.flow)))
	if units.Sign() <= 0 {
		return new(big.Int), now
	}
	if at > now && !b.caller {
		return units, now
	}
	return units, at + passed
}

// floor is the last multiple of step up to now.
func floor(now, step int64) int64 { return now / step * step }

func whole(r *big.Rat) *big.Int {
	if !r.IsInt() {
		panic("vectors: " + r.String() + " is no whole number of units")
	}
	return new(big.Int).Set(r.Num())
}

// parts are permits, and units beyond them.
func (b *bucket) parts(units *big.Int) (permits, rest int64) {
	p, r := new(big.Int).DivMod(units, big.NewInt(b.permit), new(big.Int))
	return p.Int64(), r.Int64()
}

func (b *bucket) words(now int64) []int64 {
	units, since := b.present(now)
	if b.every == 0 {
		return []int64{units.Int64(), max(since-now, 0), 0}
	}
	permits, rest := b.parts(units)
	return []int64{permits, rest, now - since, 0}
}

// allowed: of a state that another rule wrote, or a caller's clock, a denial says both times.
func (b *bucket) allowed(words []int64, _ int64, taken int, denied *model.Answer) {
	if b.server && taken == 0 && denied != nil {
		words[1], words[2] = denied.RetryAfter.Microseconds(), denied.ResetAfter.Microseconds()
	}
}

func (b *bucket) used(now int64) int64 {
	units, _ := b.present(now)
	permits, rest := b.parts(units)
	return permits + min(rest, 1)
}

func (b *bucket) repairs(now int64) bool {
	_, at, ok := b.m.State()
	if b.aligned {
		return ok && at > floor(now, b.every)+b.every
	}
	return ok && at > now && !b.caller
}

func (b *bucket) last() int64     { return 0 }
func (b *bucket) which(int) int64 { return 0 }

func (b *bucket) giveBack(now int64, n int, place, _ int64) { b.m.GiveBack(now, n, place) }

func (b *bucket) write(now, _ int64, _ bool) (any, int64) {
	units, since := b.present(now)
	left := new(big.Int).Add(units, big.NewInt(b.flow-1))
	micros := left.Div(left, big.NewInt(b.flow)).Int64() // until it is full
	missing, at, _ := b.m.State()
	stored := whole(new(big.Rat).Mul(missing, new(big.Rat).SetInt64(b.permit)))
	if b.every == 0 {
		full := new(big.Int).Div(units, big.NewInt(b.flow*1000)).Int64() // milliseconds
		text, ttl := fmt.Sprintf("%016d/%d/%d/%d", at, stored, b.permit, b.flow), evenly(full)+3
		if b.caller {
			return text + "@", ttl + skew
		}
		return text, ttl
	}
	micros += (b.every - micros%b.every) % b.every
	permits, rest := b.parts(stored)
	return fmt.Sprintf("%016d/%d+%d/%d/%d/%d", at, permits, rest, b.permit, b.flow, b.every), evenly((since+micros-now)/1000) + 3
}

// evenly is the even number at or below n.
func evenly(n int64) int64 { return n - n%2 }

// buckets are token buckets and leaky buckets. A bucket is written in units if it refills evenly and they fit into one number.
func buckets() (groups []Group) {
	for _, r := range []struct {
		leaky        bool
		count        int
		period       time.Duration
		burst        int
		every        time.Duration
		permit, flow int64
		back         bool
		cases        int
	}{
		{count: 7, period: time.Minute, burst: 5, permit: 60_000_000, flow: 7, cases: 12},
		{count: 100, period: time.Second, burst: 200, permit: 10_000, flow: 1, back: true, cases: 12},
		{count: 3, period: time.Second, burst: 3, permit: 1_000_000, flow: 3, every: time.Second, back: true, cases: 15},
		{count: 1_000_003, period: time.Hour, burst: 1_000_000, permit: 3_600_000_000, flow: 1_000_003, every: time.Microsecond, cases: 8},
		{leaky: true, count: 30, period: time.Minute, burst: 4, permit: 2_000_000, flow: 1, back: true, cases: 12},
	} {
		var m stateful
		g := Group{Algorithm: "tokenbucket", Script: "bucket", Key: "ratelimit:default:tokenbucket{k}"}
		name := "burst"
		rate := ratelimit.Rate{Count: r.count, Period: r.period}
		g.Build = func(c ratelimit.Client) (ratelimit.Limiter, error) {
			if r.every > time.Microsecond {
				return ratelimit.NewTokenBucket(c, rate, r.burst, ratelimit.WithRefillEvery(r.every))
			}
			return ratelimit.NewTokenBucket(c, rate, r.burst)
		}
		switch {
		case r.leaky:
			m, name = model.NewLeakyBucket(r.count, r.period, r.burst), "capacity"
			g.Algorithm, g.Key = "leakybucket", "ratelimit:default:leakybucket{k}"
			g.Build = func(c ratelimit.Client) (ratelimit.Limiter, error) { return ratelimit.NewLeakyBucket(c, rate, r.burst) }
		case r.every > 0:
			m = model.NewSteppedBucket(r.count, r.period, r.burst, r.every)
		default:
			m = model.NewTokenBucket(r.count, r.period, r.burst)
		}
		every := r.every.Microseconds()
		g.Rule = map[string]int64{"count": int64(r.count), "period": r.period.Microseconds(), name: int64(r.burst)}
		rule := fmt.Sprintf("/%d/%d", r.permit, r.flow)
		g.Args = texts(int64(r.burst)*r.permit, r.permit, r.flow)
		if every > 0 {
			g.Script, g.Args = "steppedbucket", texts(int64(r.burst), r.permit, r.flow, every)
			rule += fmt.Sprintf("/%d", every)
			if every > 1 {
				g.Rule["every"] = every
			}
		}
		if every > 0 {
			g.Args = append(g.Args, "first")
		}
		g.Args = append(g.Args, rule)
		h := newHistory(&bucket{m: m, permit: r.permit, flow: r.flow, every: every}, len(groups))
		g.Cases = h.steps(r.cases, start, r.back)
		groups = append(groups, g)
	}
	return groups
}
