package limitertest

import (
	"sync"
	"time"
)

// Start is a whole second, so that sub-windows and aligned windows start there.
var Start = time.UnixMicro(1_763_670_000_000_000)

// A Clock stands still until a test sets it.
type Clock struct {
	mu sync.Mutex // guards at
	at time.Time
}

// NewClock returns a clock that reads Start.
func NewClock() *Clock { return &Clock{at: Start} }

// Now reads the clock.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

// Set sets the clock.
func (c *Clock) Set(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = at
}
