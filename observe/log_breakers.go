package observe

import (
	"time"

	"github.com/tryacquire/ratelimit"
)

// breakers are all breakers whose changes a Log gets. A breaker that is open changes ten times a second, by its probes.
type breakers struct {
	open    int       // that are not closed
	changed time.Time // the last of them
	told    bool      // a line has said that one is open
	next    time.Time // no line says so again before
	leftOut int
}

// change counts a change, and reports whether it is to be written: the first that opens, the last that closes, and one
// in each interval of every in between. An outage that begins soon after another one is not written before it has
// lasted, so that breakers that flap do not fill the log.
func (b *breakers) change(o ratelimit.Observation, now time.Time, every time.Duration) bool {
	if now.Sub(b.changed) > every { // nobody has called, or the open ones are gone
		b.open, b.told = 0, false
	}
	b.changed = now
	switch {
	case o.Breaker == ratelimit.BreakerClosed:
		b.open = max(b.open-1, 0)
	case o.From == ratelimit.BreakerClosed:
		b.open++
	default:
		b.open = max(b.open, 1)
	}
	written := !now.Before(b.next)
	if b.open == 0 {
		if written = b.told; written {
			b.told, b.next = false, b.next.Add(every/10-every)
		}
	} else if written {
		b.told, b.next = true, now.Add(every)
	}
	if !written {
		b.leftOut++
	}
	return written
}
