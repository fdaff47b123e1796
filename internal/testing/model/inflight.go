package model

import (
	"cmp"
	"slices"
	"strings"
)

// InFlight is the state of one key of an InFlight limiter: the leases that Redis has, ended
// ones too until their place is needed. All times are microseconds.
type InFlight struct {
	Leases  []Lease
	Expires int64 // when the key does, by the server's clock
	Broken  Mistake
}

// A Lease is what a hold has: permits, until an instant of the clock that decides. By a
// caller's clock Ends is later by the spare of the limiter.
type Lease struct {
	ID       string
	Permits  int
	Ends     int64
	Length   int64
	ByCaller bool
}

// A Call is the limiter that asks, and the clocks when Redis executes it.
type Call struct {
	Limit    int
	Lease    int64
	Spare    int64 // how far the callers' clocks may be apart
	ByCaller bool
	Server   int64 // the server's clock
	Now      int64 // the clock that decides
}

// Held is the reply to a call that takes permits, or looks.
type Held struct {
	Allowed bool
	Used    int   // after the call
	Wait    int64 // until the denied permits are free at the latest; for a hold of a caller's own id that was there 1, with other permits -1
	Reset   int64 // until all leases have ended
}

// A Mistake is a rule that a tempting implementation gets wrong. A search that does not
// find what it breaks is worth nothing.
type Mistake string

// The mistakes of what Redis does.
const (
	EndsEarly      Mistake = "a lease ends one tick early"
	NoMargin       Mistake = "callers' clocks without a margin"
	ExtendAdds     Mistake = "to extend a hold that Redis does not have adds it again"
	ExtendLowers   Mistake = "to extend sets the end, though a later one is there"
	RewindToNow    Mistake = "after a step of the clock leases end now"
	ReleaseAny     Mistake = "to release frees the oldest place, whoever has it"
	ShortensExpiry Mistake = "the key expires by the last caller's lease"
	RepeatKeepsEnd Mistake = "to repeat an acquisition by its id leaves its lease as it is"
	NeverPrunes    Mistake = "leases that have ended stay when their places are given away"
)

// Acquire takes n permits for the hold of that id, or none.
func (f *InFlight) Acquire(c Call, id string, n int) Held {
	f.expire(c.Server)
	edge := c.edge()
	if f.Broken == EndsEarly {
		edge += 1_000_000
	}
	if f.Broken == NoMargin {
		edge, c.Spare = c.Now, 0
	}
	live := f.live(edge)
	used := permits(live)
	latest, present := f.latest()
	repair := f.steppedBack(c)
	ends := latest.Ends
	longest := c.Lease
	if repair {
		longest = max(longest, latest.Length)
		ends = c.Now + longest
	}
	cost := n
	held := slices.IndexFunc(live, func(l Lease) bool { return l.ID == id })
	if held >= 0 {
		cost = 0
	}
	h := Held{Allowed: cost == 0 || used+cost <= c.Limit, Used: used}
	switch own := id == strings.ToLower(id); { // an id of a caller's own
	case held < 0 || !own:
	case live[held].Permits == n:
		h.Wait = 1
	default:
		h.Allowed, h.Wait = false, -1
	}
	if !h.Allowed && h.Wait == 0 {
		var stepped bool
		h.Wait, ends, stepped = f.wait(c, live, used+n-c.Limit, repair, longest, ends)
		repair = repair || stepped
	}
	if h.Allowed {
		h.Used += cost
		ends = max(ends, c.Now+c.Lease+c.Spare)
		present = true
	}
	if present {
		h.Reset = max(ends+c.Spare-c.Now, 0)
	}
	if repair {
		f.rewind(c)
	}
	if h.Allowed {
		if f.Broken != RepeatKeepsEnd || held < 0 {
			f.put(c, id, n)
		}
		if permits(f.Leases) > c.Limit && f.Broken != NeverPrunes {
			f.Leases = slices.DeleteFunc(f.Leases, func(l Lease) bool { return l.Ends <= edge })
		}
		f.keep(c, !repair)
	}
	return h
}

// Peek is the answer to a call for one permit, without taking it.
func (f *InFlight) Peek(c Call) Held {
	f.expire(c.Server)
	live := f.live(c.edge())
	h := Held{Used: permits(live)}
	h.Allowed = h.Used < c.Limit
	latest, present := f.latest()
	ends, longest := latest.Ends, c.Lease
	repair := f.steppedBack(c)
	if repair {
		longest = max(longest, latest.Length)
		ends = c.Now + longest
	}
	if !h.Allowed {
		h.Wait, ends, _ = f.wait(c, live, h.Used+1-c.Limit, repair, longest, ends)
	}
	if present {
		h.Reset = max(ends+c.Spare-c.Now, 0)
	}
	return h
}

// Extend begins the lease of a hold again, and reports whether Redis has it.
func (f *InFlight) Extend(c Call, id string, n int) bool {
	f.expire(c.Server)
	if !slices.ContainsFunc(f.Leases, func(l Lease) bool { return l.ID == id }) && f.Broken != ExtendAdds {
		return false
	}
	f.put(c, id, n)
	// A key that may live too long is for the lease that ends last. That may be longer than it would have lived, where a server
	// keeps what is left of a TTL when its clock steps back, as miniredis does.
	if f.Expires-c.Server > c.Lease+c.Spare+952_000 && f.Broken != ShortensExpiry {
		latest, _ := f.latest()
		c.Lease = max(c.Lease, latest.Ends-c.Now)
	}
	f.keep(c, true)
	return true
}

// Release ends the lease of a hold, if it has one.
func (f *InFlight) Release(server int64, id string) {
	f.expire(server)
	if f.Broken == ReleaseAny && len(f.Leases) > 0 {
		f.sort()
		f.Leases = f.Leases[1:]
		return
	}
	f.Leases = slices.DeleteFunc(f.Leases, func(l Lease) bool { return l.ID == id })
	if len(f.Leases) == 0 { // Redis keeps no empty set
		f.Expires = 0
	}
}

func (c Call) edge() int64 { return c.Now - c.Spare }

func (f *InFlight) expire(server int64) {
	if server >= f.Expires {
		f.Leases, f.Expires = f.Leases[:0], 0
	}
}

func (f *InFlight) put(c Call, id string, n int) {
	lease := Lease{ID: id, Permits: n, Ends: c.Now + c.Lease + c.Spare, Length: c.Lease, ByCaller: c.ByCaller}
	if f.Broken == NoMargin {
		lease.Ends = c.Now + c.Lease
	}
	for i, l := range f.Leases {
		if l.ID == id {
			if c.ByCaller && f.Broken != ExtendLowers {
				lease.Ends = max(lease.Ends, l.Ends)
			}
			f.Leases[i] = lease
			return
		}
	}
	f.Leases = append(f.Leases, lease)
}

// keep lets the key live for a lease and the spare from now, and up to a second longer. If it shortens, the key ends
// with the lease that ends last.
func (f *InFlight) keep(c Call, shortens bool) {
	ttl := (c.Lease + c.Spare) / 1000 // whole milliseconds, in the tests
	latest, _ := f.latest()
	most := max(ttl, (latest.Ends-c.Now+c.Spare)/1000)
	long := shortens && f.Expires-c.Server > (most+952)*1000
	if long && f.Broken != ShortensExpiry {
		ttl = most
	}
	if long || f.Expires-c.Server < (ttl+1)*1000 || f.Broken == ShortensExpiry {
		f.Expires = c.Server + (ttl-ttl%2+951)*1000
	}
}

func (f *InFlight) live(edge int64) []Lease {
	f.sort()
	first := slices.IndexFunc(f.Leases, func(l Lease) bool { return l.Ends > edge })
	if first < 0 {
		return nil
	}
	return f.Leases[first:]
}

// sort has the order of Redis: by the end, then by the name of the last permit.
func (f *InFlight) sort() {
	slices.SortFunc(f.Leases, func(a, b Lease) int {
		return cmp.Or(cmp.Compare(a.Ends, b.Ends), cmp.Compare(a.Permits, b.Permits), cmp.Compare(a.ID, b.ID))
	})
}

func permits(leases []Lease) (sum int) {
	for _, l := range leases {
		sum += l.Permits
	}
	return sum
}

// wait is the time until so many permits of the leases are free at the latest, and when the
// last lease ends. Where there are leases of several lengths it looks at each, and stepped
// reports whether one ends later than the server's clock would let it end now.
func (f *InFlight) wait(c Call, live []Lease, over int, repair bool, longest, ends int64) (wait, last int64, stepped bool) {
	blocking, left := live[0], over
	for _, blocking = range live {
		if left -= blocking.Permits; left <= 0 {
			break
		}
	}
	leaves := blocking.Ends
	if repair {
		leaves = min(leaves, c.Now+longest)
	}
	other := func(l Lease) bool { return l.Length != c.Lease || l.ByCaller }
	if latest, _ := f.latest(); !c.ByCaller && (other(latest) || other(blocking)) {
		var final []int64 // of each permit
		for _, l := range f.Leases {
			stops := l.Ends
			if !l.ByCaller && stops > c.Now+l.Length {
				stops, stepped = c.Now+l.Length, true
			}
			if stops > c.Now {
				final = append(final, slices.Repeat([]int64{stops}, l.Permits)...)
			}
		}
		slices.Sort(final)
		leaves, ends = min(leaves, final[over-1]), final[len(final)-1]
	}
	return leaves + c.Spare - c.Now, ends, stepped
}

func (f *InFlight) latest() (Lease, bool) {
	f.sort()
	if len(f.Leases) == 0 {
		return Lease{}, false
	}
	return f.Leases[len(f.Leases)-1], true
}

// steppedBack reports whether the server's clock has: its own leases end later than it
// would let them end now.
func (f *InFlight) steppedBack(c Call) bool {
	latest, ok := f.latest()
	return ok && !c.ByCaller && !latest.ByCaller && latest.Ends > c.Now+latest.Length
}

func (f *InFlight) rewind(c Call) {
	for i, l := range f.Leases {
		if !l.ByCaller && l.Ends > c.Now+l.Length {
			f.Leases[i].Ends = c.Now + l.Length
			if f.Broken == RewindToNow {
				f.Leases[i].Ends = c.Now
			}
		}
	}
}
