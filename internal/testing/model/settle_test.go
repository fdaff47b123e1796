package model

import (
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// A used is permits that were used, and counts at the instant at which they were taken.
type used struct {
	At     int64
	N      int
	forced bool // charged
}

// A settled ticket.
type settled struct {
	from, to int64 // estimated, and settled
	given    int
}

// history makes random calls of a model and returns what was used, with each ticket's true
// cost at the instant of its estimate, and what was given back.
func history(rng *rand.Rand, m Settler, steps int, charges bool) (uses []used, returned []settled) {
	type held struct {
		n     int
		place int64
		use   int
		at    int64
	}
	var tickets []held
	now := int64(1_700_000_000_000_000)
	span := m.Span().Microseconds()
	settle := func(j int) {
		h := tickets[j]
		tickets = append(tickets[:j], tickets[j+1:]...)
		actual := rng.IntN(h.n + 1)
		switch rng.IntN(4) {
		case 0:
			actual = 0
		case 1:
			if charges {
				actual = h.n + 1 + rng.IntN(h.n)
			}
		}
		if actual > h.n {
			m.Charge(now, actual-h.n)
			uses = append(uses, used{now, actual - h.n, true})
			return
		}
		if actual < h.n {
			m.GiveBack(now, h.n-actual, h.place)
			returned = append(returned, settled{h.at, now, h.n - actual})
		}
		uses[h.use].N = actual
	}
	for range steps {
		switch rng.IntN(5) {
		case 0:
			now += rng.Int64N(1 + span)
		case 1:
			now += rng.Int64N(1 + span/4)
		}
		n := 1 + rng.IntN(m.Max())
		switch op := rng.IntN(10); {
		case op < 4 && m.Take(now, n, false).Allowed:
			uses = append(uses, used{now, n, false})
			tickets = append(tickets, held{n, m.Place(now), len(uses) - 1, now})
		case op < 7 && len(tickets) > 0:
			settle(rng.IntN(len(tickets)))
		case op == 7 && charges && rng.IntN(4) == 0:
			m.Charge(now, n)
			uses = append(uses, used{now, n, true})
		default:
			if m.Take(now, n, false).Allowed {
				uses = append(uses, used{now, n, false})
			}
		}
	}
	for len(tickets) > 0 {
		settle(len(tickets) - 1)
	}
	return uses, returned
}

// worst is by how much any interval, which ends with permits that were not charged, holds
// more than the allowance of its length, and what more is allowed in it.
func worst(uses []used, allowance func(from, to int64) *big.Rat) *big.Rat {
	most := big.NewRat(-1, 1)
	for i := range uses {
		sum := 0
		for j := i; j < len(uses); j++ {
			sum += uses[j].N
			if uses[j].forced {
				continue
			}
			// The permits of an instant are all of one interval.
			over := sub(rat(int64(sum)), allowance(uses[i].At, uses[j].At))
			if less(most, over) {
				most = over
			}
		}
	}
	return most
}

// TestSettlingABucketKeepsItsBound: with exact returns, no interval ever holds more than
// burst + rate × t, a step more if tokens come in steps. With full returns it holds more by at
// most what is given back in it of earlier estimates, and by at most rate × the time for
// which one ticket or another has been held when it begins. (To count for each ticket only
// the time for which it was held is too little: a ticket may hold what another one gave
// back too much.) A charge may exceed that, but nothing is allowed before it is repaid.
func TestSettlingABucketKeepsItsBound(t *testing.T) {
	raceflag.SkipSequential(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := Seeded(seed)
	exceeded := 0
	for range 600 {
		burst, every := 1+rng.IntN(6), time.Duration(1+rng.IntN(40))*time.Millisecond
		count, period := 1+rng.IntN(5), 100*time.Millisecond
		exact, charges := rng.IntN(2) == 0, rng.IntN(2) == 0
		token := NewTokenBucket(count, period, burst)
		leaky := NewLeakyBucket(count, period, burst)
		stepped := NewSteppedBucket(count, period, burst, every)
		token.ExactReturns, leaky.ExactReturns, stepped.ExactReturns = exact, exact, exact
		kind := rng.IntN(3)
		uses, returned := history(rng, []Settler{token, leaky, stepped}[kind], 60, charges)
		per := func(us int64) *big.Rat {
			return mul(quo(rat(int64(count)), ratMicros(period)), rat(us))
		}
		step := new(big.Rat)
		if kind == 2 {
			step = per(every.Microseconds())
		}
		plain := func(from, to int64) *big.Rat { return add(add(rat(int64(burst)), step), per(to-from)) }
		stated := plain
		if !exact {
			stated = func(from, to int64) *big.Rat {
				back, since := 0, from // since then, one ticket or another has been held
				for range returned {
					for _, r := range returned {
						if r.from < since && r.to >= since {
							since = r.from
						}
					}
				}
				for _, r := range returned {
					if r.from < from && r.to >= from && r.to <= to {
						back += r.given
					}
				}
				more := per(from - since)
				if less(rat(int64(back)), more) {
					more = rat(int64(back))
				}
				return add(plain(from, to), more)
			}
			if worst(uses, plain).Sign() > 0 {
				exceeded++
			}
		}
		require.LessOrEqual(t, worst(uses, stated).Sign(), 0, "seed %d: burst %d, %d per %v, step %v, kind %d, exact %v: %v %v",
			seed, burst, count, period, every, kind, exact, uses, returned)
	}
	require.Positive(t, exceeded, "full returns exceed the plain bound now and then, or this searches too little")
}

// TestSettlingAWindowKeepsItsLimit: what is used never exceeds the limit of a sliding window
// or a log, wherever the window ends with permits that were not charged.
func TestSettlingAWindowKeepsItsLimit(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := Seeded(seed)
	for range 1_500 {
		limit, window := 1+rng.IntN(6), 100*time.Millisecond
		m := []Settler{
			NewSlidingZSet(limit, window), NewSlidingWindow(limit, window, 5),
			NewSlidingLog([]Rule{{limit, window}}, 7*time.Millisecond),
		}[rng.IntN(3)]
		uses, _ := history(rng, m, 60, rng.IntN(2) == 0)
		over := worst(uses, func(from, to int64) *big.Rat {
			if to-from >= window.Microseconds() {
				return rat(1 << 30)
			}
			return rat(int64(limit))
		})
		require.LessOrEqual(t, over.Sign(), 0, "seed %d: %d per %v: %v", seed, limit, window, uses)
	}
}

// TestSettlingAFixedWindowKeepsItsLimit: no window holds more than the limit, unless it was
// charged.
func TestSettlingAFixedWindowKeepsItsLimit(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := Seeded(seed)
	for range 1_500 {
		limit, window := 1+rng.IntN(6), 100*time.Millisecond
		uses, _ := history(rng, NewAlignedWindow(limit, window, 0), 60, rng.IntN(2) == 0)
		over := worst(uses, func(from, to int64) *big.Rat {
			if from/window.Microseconds() != to/window.Microseconds() {
				return rat(1 << 30)
			}
			return rat(int64(limit))
		})
		require.LessOrEqual(t, over.Sign(), 0, "seed %d: %d per %v: %v", seed, limit, window, uses)
	}
}

// TestACreditAddsNoMoreThanItself: no interval of a bucket, and no window, has more than its rule allows and what was
// credited in it.
func TestACreditAddsNoMoreThanItself(t *testing.T) {
	raceflag.SkipSequential(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := Seeded(seed)
	beyond := 0
	for range 600 {
		size, every, window := 1+rng.IntN(6), time.Duration(1+rng.IntN(40))*time.Millisecond, 100*time.Millisecond
		count := 1 + rng.IntN(5)
		kind := rng.IntN(5)
		m := []Settler{
			NewTokenBucket(count, window, size), NewLeakyBucket(count, window, size), NewSteppedBucket(count, window, size, every),
			NewAlignedWindow(size, window, 0), NewCalendarWindow(size, Days(time.UTC)),
		}[kind]
		length := window.Microseconds()
		if kind == 4 {
			length = (24 * time.Hour).Microseconds()
		}
		var uses []used
		var credits []Taken
		now := int64(1_700_000_000_000_000)
		for range 60 {
			now += rng.Int64N(1 + length/int64(1+rng.IntN(8)))
			n := 1 + rng.IntN(size)
			if rng.IntN(5) == 0 {
				n += rng.IntN(size)
				before := m.Take(now, 1, true).Remaining
				given := m.(Creditor).Credit(now, n)
				credits = append(credits, Taken{At: now, N: given})
				require.LessOrEqual(t, given, n, "seed %d", seed)
				require.InDelta(t, min(before+given, size), m.Take(now, 1, true).Remaining, 1, "seed %d: kind %d", seed, kind)
			} else if m.Take(now, n, false).Allowed {
				uses = append(uses, used{now, n, false})
			}
		}
		rule := func(from, to int64) *big.Rat {
			switch {
			case kind > 2 && from/length != to/length:
				return rat(1 << 30)
			case kind > 2:
				return rat(int64(size))
			}
			most := add(rat(int64(size)), mul(quo(rat(int64(count)), ratMicros(window)), rat(to-from)))
			if kind == 2 {
				most = add(most, mul(quo(rat(int64(count)), ratMicros(window)), ratMicros(every)))
			}
			return most
		}
		if worst(uses, rule).Sign() > 0 {
			beyond++
		}
		require.LessOrEqual(t, worst(uses, func(from, to int64) *big.Rat {
			most := rule(from, to)
			for _, c := range credits {
				if from <= c.At && c.At <= to {
					most = add(most, rat(int64(c.N)))
				}
			}
			return most
		}).Sign(), 0, "seed %d: size %d, %d per %v, step %v, kind %d: %v %v", seed, size, count, window, every, kind, uses, credits)
	}
	require.Positive(t, beyond, "credits go beyond the rule now and then, or this searches too little")
}
