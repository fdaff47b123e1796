package model

import "math/big"

// What a key in Redis holds is written from these, see package vectors.

// State is how many permits are missing at the instant of the state; ok is false if there is none.
func (b *TokenBucket) State() (missing *big.Rat, at int64, ok bool) {
	if b.tokens == nil {
		return rat(0), 0, false
	}
	return sub(rat(int64(b.burst)), b.tokens), b.at, true
}

// State is how many permits are in the bucket at the instant of the state; ok is false if there is none.
func (b *LeakyBucket) State() (level *big.Rat, at int64, ok bool) {
	if b.empty == nil {
		return rat(0), 0, false
	}
	return mul(sub(b.empty, rat(b.drained)), b.rate), b.drained, true
}

// State is how many permits are missing at the instant of the last step; ok is false if there is none.
func (b *SteppedBucket) State() (missing *big.Rat, last int64, ok bool) {
	if b.level == nil {
		return rat(0), 0, false
	}
	return sub(rat(int64(b.burst)), b.level), b.last, true
}

// State is how many permits are used of the window, and when it ends, in milliseconds.
func (f *FixedWindow) State() (used int, end int64, ok bool) { return f.used, f.end, f.used > 0 }

// State is how many permits are used of the window, and when it began.
func (c *ClockWindow) State() (used int, start int64, ok bool) { return c.used, c.start, c.begun }

// State is how many permits are used of the window, and its bounds.
func (c *CalendarWindow) State() (used int, window [2]int64, ok bool) {
	return c.used, c.window, c.begun
}

// State are the records, those of one instant as one.
func (l *SlidingLog) State() (records []Taken) {
	for _, t := range l.key.taken {
		if last := len(records) - 1; last >= 0 && records[last].At == t.At {
			records[last].N += t.N
		} else {
			records = append(records, t)
		}
	}
	return records
}

// State is until when the key is paused, how long that pause was, and when the call went that goes first, 0 for none; how many
// strikes there were, when the episode of the last one is over, and when they are forgotten.
func (p *Pause) State() (until, length, first int64, strikes int, episode, forget int64) {
	if !p.ended {
		until, length, first = p.until, p.length, p.taken
	}
	if len(p.strikes) > 0 {
		episode, forget = p.free, p.free+p.quiet
	}
	return until, length, first, len(p.strikes), episode, forget
}

// Rule is what the state says of those who wrote it: the longest window of the last one, the resolution of whoever dated the last
// record, and for each longer window of others until when they need the records.
func (l *SlidingLog) Rule() (window, resolution int64, others [][2]int64) {
	for _, n := range l.key.needs {
		others = append(others, [2]int64{n.window, n.until})
	}
	return l.key.window, l.key.resolution, others
}
