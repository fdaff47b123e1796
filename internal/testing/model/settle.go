package model

import "math"

// A Settler is a model of a limiter that also charges, and takes permits back.
type Settler interface {
	Model

	// Charge takes n permits at now, whether they are there or not.
	Charge(now int64, n int) Answer

	// Place is where the permits are that were taken last, at now.
	Place(now int64) int64

	// GiveBack gives n of the permits back that were taken at a place.
	GiveBack(now int64, n int, place int64)
}

// A Creditor is a model of a limiter that takes permits back without a place.
type Creditor interface {
	// Credit gives n permits back at now, and returns how many of them were missing, rounded up.
	Credit(now int64, n int) int
}

var (
	_ Creditor = (*TokenBucket)(nil)
	_ Creditor = (*LeakyBucket)(nil)
	_ Creditor = (*SteppedBucket)(nil)
	_ Creditor = (*FixedWindow)(nil)
	_ Creditor = (*ClockWindow)(nil)
	_ Creditor = (*CalendarWindow)(nil)
)

var (
	_ Settler = (*TokenBucket)(nil)
	_ Settler = (*LeakyBucket)(nil)
	_ Settler = (*SteppedBucket)(nil)
	_ Settler = (*FixedWindow)(nil)
	_ Settler = (*ClockWindow)(nil)
	_ Settler = (*CalendarWindow)(nil)
	_ Settler = (*SlidingWindow)(nil)
	_ Settler = (*SlidingLog)(nil)
)

// The place of a bucket's permits is the instant up to which it had refilled when they were
// taken. With ExactReturns a bucket takes back only what it has not refilled since then. What
// it takes back is not missing any more at the instant of its state, which stays.

// Charge implements [Settler].
func (b *TokenBucket) Charge(now int64, n int) Answer { return b.decide(now, n, false, true) }

// Place implements [Settler].
func (b *TokenBucket) Place(int64) int64 { return b.at }

// GiveBack implements [Settler].
func (b *TokenBucket) GiveBack(now int64, n int, place int64) {
	if b.tokens == nil {
		return
	}
	present, _ := presentAt(now, b.at, b.CallersClock)
	given, burst := rat(int64(n)), rat(int64(b.burst))
	if b.ExactReturns {
		given = sub(given, quo(rat(present-place), b.perToken))
		if present < place {
			return
		}
	}
	if given.Sign() <= 0 || !less(b.tokensAt(present), burst) {
		return
	}
	if b.tokens = add(b.tokens, given); less(burst, b.tokens) {
		b.tokens = burst
	}
	b.at = min(b.at, present)
	b.change()
}

// Credit implements [Creditor]. It is what a ticket gives back all of.
func (b *TokenBucket) Credit(now int64, n int) int {
	present, _ := presentAt(now, b.at, b.CallersClock)
	missing := rat(0)
	if b.tokens != nil {
		missing = sub(rat(int64(b.burst)), b.tokensAt(present))
	}
	given := min(int64(n), ceil(missing))
	exactly := b.ExactReturns
	b.ExactReturns = false
	b.GiveBack(now, n, 0)
	b.ExactReturns = exactly
	return int(given)
}

// Charge implements [Settler].
func (b *LeakyBucket) Charge(now int64, n int) Answer { return b.decide(now, n, false, true) }

// Place implements [Settler].
func (b *LeakyBucket) Place(int64) int64 { return b.drained }

// GiveBack implements [Settler].
func (b *LeakyBucket) GiveBack(now int64, n int, place int64) {
	if b.empty == nil {
		return
	}
	clock, empty, drained := now, b.empty, b.drained
	if back := b.drained - now; back > 0 && b.CallersClock {
		clock = b.drained
	} else if back > 0 {
		empty, drained = sub(empty, rat(back)), now
	}
	sooner := quo(rat(int64(n)), b.rate)
	if b.ExactReturns {
		if sooner = sub(sooner, rat(clock-place)); clock < place {
			return
		}
	}
	if sooner.Sign() > 0 && less(rat(clock), empty) {
		if b.empty, b.drained = sub(empty, sooner), drained; less(b.empty, rat(drained)) {
			b.empty = rat(drained)
		}
		b.change()
	}
}

// Credit implements [Creditor].
func (b *LeakyBucket) Credit(now int64, n int) int {
	level := rat(0)
	switch {
	case b.empty == nil:
	case b.drained > now: // the clock is behind, or stepped back
		level = mul(sub(b.empty, rat(b.drained)), b.rate)
	default:
		level = mul(sub(b.empty, rat(now)), b.rate)
	}
	given := min(int64(n), max(ceil(level), 0))
	exactly := b.ExactReturns
	b.ExactReturns = false
	b.GiveBack(now, n, 0)
	b.ExactReturns = exactly
	return int(given)
}

// Charge implements [Settler].
func (b *SteppedBucket) Charge(now int64, n int) Answer { return b.decide(now, n, false, true) }

// Place implements [Settler].
func (b *SteppedBucket) Place(now int64) int64 {
	if b.aligned {
		present, _ := b.presentAt(now)
		return b.next(present) - b.every
	}
	return b.last
}

// GiveBack implements [Settler].
func (b *SteppedBucket) GiveBack(now int64, n int, place int64) {
	if b.level == nil {
		return
	}
	present, repaired := b.presentAt(now)
	level, last := b.load(present)
	given, full := rat(int64(n)), rat(int64(b.burst))
	if b.ExactReturns {
		if given = sub(given, mul(quo(rat(last-place), rat(b.every)), b.step)); last < place {
			return
		}
	}
	if given.Sign() <= 0 || !less(level, full) {
		return
	}
	if b.level = add(b.level, given); less(full, b.level) {
		b.level = full
	}
	if repaired && b.aligned {
		b.last = b.next(now)
	} else if !b.aligned {
		b.last = min(b.last, present)
	}
	b.change()
}

// Credit implements [Creditor].
func (b *SteppedBucket) Credit(now int64, n int) int {
	if b.level == nil {
		return 0
	}
	present, _ := b.presentAt(now)
	level, _ := b.load(present)
	given := min(int64(n), max(ceil(sub(rat(int64(b.burst)), level)), 0))
	exactly := b.ExactReturns
	b.ExactReturns = false
	b.GiveBack(now, n, 0)
	b.ExactReturns = exactly
	return int(given)
}

// The place of a fixed window's permits is the window.

// Charge implements [Settler].
func (f *FixedWindow) Charge(now int64, n int) Answer { return f.decide(now, n, false, true) }

// Place implements [Settler].
func (f *FixedWindow) Place(int64) int64 { return f.end }

// GiveBack implements [Settler].
func (f *FixedWindow) GiveBack(now int64, n int, place int64) {
	if !f.Unused(now) && f.end == place && f.end-floorDiv(now, 1000) <= f.window {
		f.used -= min(n, f.used)
	}
}

// Credit implements [Creditor]. After the clock was set back, at most one window is left.
func (f *FixedWindow) Credit(now int64, n int) int {
	if f.Unused(now) {
		return 0
	}
	f.end = min(f.end, floorDiv(now, 1000)+f.window)
	given := min(n, f.used)
	f.used -= given
	return given
}

// Charge implements [Settler].
func (c *ClockWindow) Charge(now int64, n int) Answer { return c.decide(now, n, false, true) }

// Place implements [Settler].
func (c *ClockWindow) Place(int64) int64 { return c.start }

// GiveBack implements [Settler].
func (c *ClockWindow) GiveBack(now int64, n int, place int64) {
	if !c.Unused(now) && c.start == place && (now >= c.start || c.CallersClock || c.justBefore(now)) {
		c.used -= min(n, c.used)
		c.begun = c.used > 0 || c.CallersClock
	}
}

// Credit implements [Creditor].
func (c *ClockWindow) Credit(now int64, n int) int {
	if c.Unused(now) {
		return 0
	}
	if now < c.start && !c.CallersClock && !c.justBefore(now) {
		c.start = c.startAt(now)
	}
	given := min(n, c.used)
	c.used -= given
	c.begun = c.used > 0 || c.CallersClock
	return given
}

// The place of a calendar's permits is the window's end.

// Charge implements [Settler].
func (c *CalendarWindow) Charge(now int64, n int) Answer { return c.decide(now, n, false, true) }

// Place implements [Settler].
func (c *CalendarWindow) Place(int64) int64 { return c.window[1] }

// GiveBack implements [Settler].
func (c *CalendarWindow) GiveBack(now int64, n int, place int64) {
	if !c.Unused(now) && c.window[1] == place && (now >= c.window[0] || c.CallersClock || c.at(now)[1] == c.window[0]) {
		c.used -= min(n, c.used)
		c.begun = c.used > 0 || c.CallersClock
	}
}

// Credit implements [Creditor].
func (c *CalendarWindow) Credit(now int64, n int) int {
	if c.Unused(now) {
		return 0
	}
	if own := c.at(now); now < c.window[0] && !c.CallersClock && own[1] != c.window[0] {
		c.window = own
	}
	given := min(n, c.used)
	c.used -= given
	c.begun = c.used > 0 || c.CallersClock
	return given
}

// The place of a log's permits is the record, or the sub-window. The last one of a caller's
// clock stays without permits.

// Charge implements [Settler].
func (s *SlidingWindow) Charge(now int64, n int) Answer { return s.decide(now, n, false, true) }

// Place implements [Settler].
func (s *SlidingWindow) Place(now int64) int64 {
	last := floorDiv(now, s.width)
	for id := range s.counts {
		last = max(last, id)
	}
	return last
}

// GiveBack implements [Settler].
func (s *SlidingWindow) GiveBack(now int64, n int, place int64) {
	if s.counts[place] > n {
		s.counts[place] -= n
	} else if s.CallersClock && s.counts[place] > 0 && place == s.Place(math.MinInt64) {
		s.counts[place] = 0
	} else {
		delete(s.counts, place)
	}
}

// Charge implements [Settler].
func (l *SlidingLog) Charge(now int64, n int) Answer { return l.decide(now, n, false, true) }

// Place implements [Settler].
func (l *SlidingLog) Place(int64) int64 { return l.key.last() }

// GiveBack implements [Settler].
func (l *SlidingLog) GiveBack(now int64, n int, place int64) {
	var rest []Taken
	last := l.key.last()
	for _, t := range l.key.taken {
		if t.At == place {
			given := min(n, t.N)
			n, t.N = n-given, t.N-given
		}
		if t.N > 0 || l.key.caller && t.At == last {
			rest = append(rest, t)
		}
	}
	l.key.taken = rest
}
