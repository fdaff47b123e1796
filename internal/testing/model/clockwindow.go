package model

import "time"

// A ClockWindow is a fixed window [s, s+window) to the microsecond, for limiters that
// use the caller's clock or are aligned. s is the instant of the first permit or, if
// aligned, the last multiple of the window (plus the offset) up to that instant. When
// the server's clock is set back to a time earlier than s, the window starts again then
// and keeps its count. A caller's clock that reads an earlier time is only behind: its
// calls are in the window that starts at s.
type ClockWindow struct {
	CallersClock bool

	limit   int
	window  int64
	aligned bool
	offset  int64
	begun   bool // false: never used
	used    int
	start   int64
}

// NewClockWindow returns the model of an unused key whose windows start at the
// first permit.
func NewClockWindow(limit int, window time.Duration) *ClockWindow {
	checkPositive("limit", limit)
	checkPositive("window", window)
	return &ClockWindow{limit: limit, window: wholeMicros("window", window)}
}

// NewAlignedWindow returns the model of an unused key whose windows start at
// offset plus multiples of the window since the Unix epoch.
func NewAlignedWindow(limit int, window, offset time.Duration) *ClockWindow {
	c := NewClockWindow(limit, window)
	c.aligned, c.offset = true, wholeMicros("offset", offset)
	return c
}

// Take implements [Model].
func (c *ClockWindow) Take(now int64, n int, peek bool) Answer {
	checkPermits(n, c.limit)
	return c.decide(now, n, peek, false)
}

// decide is Take. If charge is true, the permits are taken whether they are there or not.
func (c *ClockWindow) decide(now int64, n int, peek, charge bool) Answer {
	used, start, repaired := c.used, c.start, false
	switch {
	case c.Unused(now):
		used, start = 0, c.startAt(now)
	case c.CallersClock || c.justBefore(now):
		// The window stays as it is. If another were opened, the same window could
		// start twice and allow twice its limit.
	case now < c.start:
		start, repaired = c.startAt(now), true
	}
	answer := Answer{Limit: c.limit, Window: c.Span()}
	answer.ResetAfter = micros(start + c.window - now)
	used = answer.count(used, n, peek, charge)
	if !peek && (answer.Allowed || repaired) {
		c.begun, c.used, c.start = true, used, start
	}
	return answer
}

// justBefore reports whether the clock was set back from an aligned window into the
// window just before it.
func (c *ClockWindow) justBefore(now int64) bool {
	return c.aligned && now < c.start && c.start == c.startAt(now)+c.window
}

// startAt is the start of a window whose first permit is taken at now.
func (c *ClockWindow) startAt(now int64) int64 {
	if !c.aligned {
		return now
	}
	return c.offset + floorDiv(now-c.offset, c.window)*c.window
}

// Reset implements [Model].
func (c *ClockWindow) Reset() { c.begun = false }

// Unused implements [Model].
func (c *ClockWindow) Unused(now int64) bool { return !c.begun || now >= c.start+c.window }

// Max implements [Model].
func (c *ClockWindow) Max() int { return c.limit }

// Span implements [Model].
func (c *ClockWindow) Span() time.Duration { return micros(c.window) }
