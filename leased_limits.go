package ratelimit

import (
	"fmt"
	"time"

	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/gcra"
	"github.com/tryacquire/ratelimit/internal/lease"
	"github.com/tryacquire/ratelimit/internal/windows"
)

const (
	shortestRefill = 20 * time.Millisecond // of which a slice lasts a quarter, several round trips
	shortestSlot   = shortestRefill / 4    // of a log, for which a slice lasts
)

// leased is the core of a limiter, what its slices follow from, and what their answers say of each rule. The error says why it
// cannot be leased.
func leased(l Limiter) (c *core, rule lease.Rule, known []Result, err error) {
	k := kindOf(l)
	why := ""
	switch {
	case k.absent:
		return nil, rule, nil, invalidConfig("NewLeased: the limiter is nil")
	case k.unmade():
		return nil, rule, nil, errUnmade
	case k.role == decorator:
		why = "it goes around the Leased; give NewLeased the limiter inside"
	case k.role == inMemory:
		why = "its permits are in this process already; give a bucket on Redis"
	case k.role == several:
		why = "it takes permits of several limits at once, which asks Redis; put a Leased around a limit that is asked alone"
	case k.core == nil:
		why = "it is no limiter of this package; give NewLeased the limiter inside"
	case k.core.ticketed():
		why = "WithTicketLease: slices are not decided beside such tickets; leave the option out"
	case k.core.clock != nil:
		why = "WithClock: a slice ends by the server's clock; leave the option out"
	default:
		rule, known, why = slicesOf(k.core.explainer)
	}
	if why != "" {
		return nil, rule, nil, invalidConfig("NewLeased: %T: %s", l, why)
	}
	return k.core, rule, known, nil
}

// slicesOf is what slices of a limiter follow from whose replies are explained so, and what their answers say of each of its
// rules. why says why there are none.
func slicesOf(e decision.Explainer) (rule lease.Rule, known []Result, why string) {
	answer := func(limit int64, window time.Duration) {
		known = append(known, Result{Limit: int(limit), Window: window})
	}
	var b *gcra.Bucket
	switch e := e.(type) {
	case *windows.Fixed:
		if e.Window < shortestRefill {
			why = fmt.Sprintf("the window lasts %v, so that slices would end before they are here; let it last at least %v", e.Window, shortestRefill)
		}
		answer(e.Limit, e.Window)
		return lease.Rule{Limit: int(e.Own), Refill: e.Window, Window: true}, known, why
	case windows.Calendar:
		answer(e.Limit, 0) // the window is that of the last reply
		return lease.Rule{Limit: int(e.Own), Refill: 24 * time.Hour, Window: true}, known, ""
	case windows.Log:
		slot := exact.Duration(e.Resolution)
		switch {
		case slot == 0:
			why = "the storage ZSet dates each permit at the microsecond at which it is taken; use the storage List or Hash"
		case slot == time.Microsecond:
			why = fmt.Sprintf("it dates each permit at the microsecond at which it is taken; give it WithResolution, of %v at least", shortestSlot)
		case slot < shortestSlot:
			why = fmt.Sprintf("slices end with the sub-window, or the step of the resolution, in which they are taken, and these last %v, "+
				"so that slices would end before they are here; let them last at least %v", slot, shortestSlot)
		}
		for _, r := range e.Rules {
			answer(int64(r.Limit), r.Window)
		}
		return lease.Rule{Limit: e.Own(0), Refill: e.Rules[0].Window, Window: true, Slot: slot}, known, why
	case gcra.Even:
		b = e.Bucket
	case gcra.Stepped:
		b = e.Bucket
	default:
		return rule, nil, "only permits of buckets, windows and logs can be leased"
	}
	answer(b.Limit, b.Window)
	rule = lease.Rule{Limit: int(b.Size), Refill: exact.Duration(b.Restores(gcra.Level{Permits: b.Size}))}
	if rule.Refill < shortestRefill {
		why = fmt.Sprintf("the bucket refills in %v, so that slices would end before they are here; "+
			"let the burst be at least %d, what the rate restores in %v", rule.Refill,
			exact.CeilDiv(b.Size*shortestRefill.Microseconds(), rule.Refill.Microseconds())+b.Limit-b.Size, shortestRefill)
	}
	return rule, known, why
}

// ticketed reports whether its estimates have a lease.
func (c *core) ticketed() bool {
	_, ok := c.explainer.(ticketed)
	return ok
}
