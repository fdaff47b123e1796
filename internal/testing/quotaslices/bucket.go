package quotaslices

// A Rule is one configuration of a limiter.
type Rule struct {
	Limit int // permits: burst, or a window's
	Flow  int // buckets: units that a tick restores
	Span  int // windows: ticks
	Slot  int // logs: ticks of a slot

	Also []Rule // logs: longer windows of the same limiter
}

// Counting is how a bucket counts a slice.
type Counting int

const (
	// DatedAtEnd takes them as if the bucket were as full at the slice's end as it is now: at least rate × length is
	// missing, and then the slice's permits.
	DatedAtEnd Counting = iota
	// Smaller leases from a bucket that is smaller by rate × length, and counts as for a plain call.
	Smaller
	// AsPlain counts as for a plain call.
	AsPlain
)

// Returning is what a bucket gets back of u permits of a slice.
type Returning int

const (
	// ByEpoch: all of them, if since they were taken at least u more was missing than had to be; otherwise nothing. The
	// state has the least of what was missing beyond that in the last two epochs.
	ByEpoch Returning = iota
	// Refilled: what it cannot have refilled since they were taken, u - rate × held.
	Refilled
	// InFull: all of them.
	InFull
)

// A Bucket is the buckets of one key.
type Bucket struct {
	Permit   int // units
	Rules    []Rule
	Longs    []int8 // lengths of slices
	Lates    []int8 // lateness of replies
	Steps    []int8 // of the server's clock
	NoPlain  bool   // leases only
	Returns  bool
	Counting Counting
	Return   Returning

	FromReply bool // a process counts its slice from the reply
	Unmarked  bool // the state does not say until when slices may be spent
	LastOnly  bool // the state says so of the slice that was taken last
}

func (b *Bucket) moves() []Move {
	var all []Move
	for rule, r := range b.Rules {
		for n := int8(1); int(n) <= r.Limit; n++ {
			if !b.NoPlain {
				all = append(all, Move{Op: Plain, Rule: int8(rule), N: n})
			}
			for _, long := range b.Longs {
				for _, late := range append([]int8{0}, b.Lates...) {
					all = append(all, Move{Op: Lease, Rule: int8(rule), N: n, Long: long, Late: late})
				}
			}
		}
	}
	return append(all, others(b.Returns, b.Steps, b.Rules)...)
}

// others are the moves that take nothing.
func others(returns bool, steps []int8, rules []Rule) []Move {
	var all []Move
	if returns {
		most := 0
		for _, r := range rules {
			most = max(most, r.Limit)
		}
		for of := range int8(maxCalls) {
			for n := int8(1); int(n) <= most; n++ {
				all = append(all, Move{Op: Return, Of: of, N: n})
			}
		}
	}
	for _, step := range steps {
		all = append(all, Move{Op: Step, N: step})
	}
	return all
}

func (b *Bucket) fastest() int {
	most := 0
	for _, r := range b.Rules {
		most = max(most, r.Flow)
	}
	return most
}

// repair is the state as a call finds it after the clock stepped back: its instant is now.
func (k *key) repair() {
	if k.exists && k.at > 0 {
		k.ends -= k.at
		k.at = 0
	}
}

// missing is what a rule finds missing now, and the state's instant is not later.
func (b *Bucket) missing(k *key, rule int8) int {
	if !k.exists {
		return 0
	}
	own, writers := b.Rules[rule].Flow, b.Rules[k.rule].Flow
	missing, age := int(k.used), -int(k.at)
	if k.ends > k.at && own > writers && !b.Unmarked { // by the writer's rate until the last slice has ended
		out := int(k.ends - k.at)
		missing, age = max(missing-writers*out, 0), age-out
		if age < 0 {
			return missing - own*age
		}
	}
	return max(missing-max(own, writers)*age, 0)
}

func (b *Bucket) take(w *World, m Move) (place, until int8, ok bool) {
	k, r := &w.key, b.Rules[m.Rule]
	found := *k
	found.repair()
	missing := b.missing(&found, m.Rule)
	size, cost := r.Limit*b.Permit, int(m.N)*b.Permit
	floor := 0
	if m.Op == Lease {
		switch b.Counting {
		case DatedAtEnd:
			floor = r.Flow * int(m.Long)
		case Smaller:
			size -= r.Flow * int(m.Long)
		}
	}
	if max(missing, floor)+cost > size {
		return 0, 0, false // a denial changes nothing, but for a repair, which the next call makes as well
	}
	b.slack(w, &found, m, missing-floor)
	after := found
	after.exists, after.rule, after.at, after.used = true, m.Rule, 0, int8(max(missing, floor)+cost)
	after.ends = max(after.ends, 0)
	if !found.exists {
		after.ends = 0
	}
	if m.Op == Lease {
		if b.LastOnly {
			after.ends = 0
		}
		after.ends, until = max(after.ends, m.Long), m.Long
		if b.FromReply {
			until += m.Late
		}
	}
	*k = after
	return 0, until, true
}

// slack notes what was missing beyond what had to be, as a call finds it.
func (b *Bucket) slack(w *World, k *key, m Move, slack int) {
	rule := m.Rule
	if !b.Returns || b.Return != ByEpoch {
		return
	}
	if k.exists && k.rule != rule { // nothing comes back across rules
		w.forget(k)
	}
	for i := range k.epochs {
		if e := &k.epochs[i]; e.exists {
			e.slack = min(e.slack, int8(max(slack, 0)))
		}
	}
	turn := int8(b.Rules[rule].Limit * b.Permit / b.Rules[rule].Flow)
	if last := k.epochs[1]; m.Op == Lease && (!last.exists || last.since <= -turn) {
		k.epochs[0] = last
		k.epochs[1] = epoch{exists: true, slack: 127}
		for i := range w.uses {
			w.uses[i].epoch = max(w.uses[i].epoch-1, 0)
		}
	}
}

// forget drops the epochs of a state.
func (w *World) forget(k *key) {
	k.epochs = [2]epoch{}
	for i := range w.uses {
		w.uses[i].epoch = 0
	}
}

func (b *Bucket) giveBack(w *World, u use, n int8) {
	k := &w.key
	if !k.exists {
		return
	}
	found := *k
	found.repair()
	missing := b.missing(&found, u.rule)
	back := int(n) * b.Permit
	switch b.Return {
	case ByEpoch:
		if found.rule != u.rule {
			return
		}
		if u.epoch == 0 {
			return
		}
		for i := range found.epochs {
			if e := &found.epochs[i]; e.exists {
				e.slack = min(e.slack, int8(missing)) // it drains to here
			}
		}
		if int(found.epochs[u.epoch-1].slack) >= back {
			for i := range found.epochs {
				found.epochs[i].slack = max(found.epochs[i].slack-int8(back), 0)
			}
			b.lower(&found, back)
			*k = found
		}
		return
	case Refilled:
		back -= b.Rules[u.rule].Flow * int(-u.place)
		if u.place > 0 || found.rule != u.rule {
			return
		}
	}
	if back > 0 && missing > 0 {
		b.lower(&found, back)
		*k = found
	}
}

// lower leaves the state its instant and its rule.
func (b *Bucket) lower(k *key, units int) { k.used = int8(max(int(k.used)-units, 0)) }

// pass drops a key that has expired.
func (b *Bucket) pass(w *World) {
	k := &w.key
	if k.exists && -int(k.at)*b.Rules[k.rule].Flow > int(k.used) && k.ends < 0 {
		w.forget(k)
		*k = key{}
	}
	k.phase = 0
}

// remaining is what a rule finds left now.
func (b *Bucket) remaining(w *World, rule int8) int {
	k := w.key
	k.repair()
	return max(b.Rules[rule].Limit-(b.missing(&k, rule)+b.Permit-1)/b.Permit, 0)
}

// excess: for each instant a up to now, all that may be spent since then, less burst + rate × (now - a).
func (b *Bucket) excess(w *World) int {
	burst := 0
	for _, r := range b.Rules {
		burst = max(burst, r.Limit)
	}
	worst := 0
	for _, first := range w.uses {
		if first.n == 0 {
			continue
		}
		a, spent := min(first.until, 0), 0
		for _, u := range w.uses {
			if u.n > 0 && u.until >= a {
				spent += int(u.n) * b.Permit
			}
		}
		worst = max(worst, spent-burst*b.Permit-b.fastest()*int(-a))
	}
	return worst
}
