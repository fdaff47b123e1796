package quotaslices

// A Log is the sliding windows of one key whose permits are dated at the last instant of a slot: those of the storages
// List and Hash, and a log with a resolution.
type Log struct {
	Rules   []Rule
	Steps   []int8 // of the server's clock
	Further int8   // slots beyond the one in which they are taken that slices last, and are dated
	Returns bool

	DatedAtTaking bool // permits are dated in the slot in which they are taken, however long a slice lasts
	// Rewound is true if entries move with the server's clock when it steps back, as those of plain calls may. Otherwise
	// the entries of slices move so that they are dated a slot later than now.
	Rewound bool
}

func (l *Log) moves() []Move {
	var all []Move
	for rule, r := range l.Rules {
		for n := int8(1); int(n) <= r.Limit; n++ {
			all = append(all, Move{Op: Plain, Rule: int8(rule), N: n}, Move{Op: Lease, Rule: int8(rule), N: n})
		}
	}
	return append(all, others(l.Returns, l.Steps, l.Rules)...)
}

// ends is the last tick of the slot that is now.
func (l *Log) ends(k *key, rule int8) int8 {
	slot := int8(l.Rules[rule].Slot)
	return slot - 1 - (k.phase%slot+slot)%slot
}

func (k *key) last() (last int8) {
	last = -100
	for _, e := range k.log {
		if e.n > 0 {
			last = max(last, e.at)
		}
	}
	return last
}

// rewind is the state as a call finds it after the server's clock stepped back before the slot of the last entry: permits
// taken after the present slot count as taken in it. While slices are out, they are dated where those end at the latest.
func (l *Log) rewind(k *key) {
	if k.last()-k.coarse < 0 {
		return
	}
	slot := k.coarse
	to := slot - 1 - (k.phase%slot+slot)%slot
	if k.ends > 0 && !l.Rewound {
		if k.last() <= k.lasts { // it did not step back, or what is dated may be spent until then
			return
		}
		to = max(to, k.lasts)
	}
	for i := range k.log {
		if k.log[i].n > 0 {
			k.log[i].at = min(k.log[i].at, to)
		}
	}
	k.ends = min(k.ends, to)
}

func (l *Log) take(w *World, m Move) (place, until int8, ok bool) {
	k, r := w.key, l.Rules[m.Rule]
	if k.exists {
		l.rewind(&k)
	}
	total := 0
	for _, e := range k.log {
		if e.n > 0 && e.at+int8(r.Span) > 0 {
			total += int(e.n)
		}
	}
	if total+int(m.N) > r.Limit {
		return 0, 0, false
	}
	ends := l.ends(&k, m.Rule)
	until = ends
	if m.Op == Lease {
		until += l.Further * int8(r.Slot)
	}
	at := max(until, k.last())
	if m.Op == Plain {
		until = 0
	} else if l.DatedAtTaking {
		at = max(ends, k.last())
	}
	if at > k.last() || !k.exists {
		k.coarse = int8(r.Slot)
	}
	for i := range k.log {
		if k.log[i].n == 0 || k.log[i].at < -90 {
			k.log[i] = entry{at, m.N}
			break
		}
	}
	if k.ends < 0 {
		k.lasts = 0
	}
	k.exists, k.rule = true, m.Rule
	if m.Op == Lease {
		k.ends, k.lasts = max(k.ends, until), max(k.lasts, int8(r.Slot)*(1+l.Further)-1)
	}
	w.key = k
	return at, until, true
}

// giveBack takes them all off the entry in which they are.
func (l *Log) giveBack(w *World, u use, n int8) {
	for i := range w.key.log {
		if e := &w.key.log[i]; e.n > 0 && e.at == u.place {
			off := min(n, e.n)
			e.n, n = e.n-off, n-off
		}
	}
}

func (l *Log) pass(w *World) {
	k := &w.key
	turn := int8(1)
	for _, r := range l.Rules {
		turn *= int8(r.Slot)
	}
	k.phase = (k.phase%turn + turn) % turn
}

// remaining is what a rule finds left now.
func (l *Log) remaining(w *World, rule int8) int {
	k, r, total := w.key, l.Rules[rule], 0
	if k.exists {
		l.rewind(&k)
	}
	for _, e := range k.log {
		if e.n > 0 && e.at+int8(r.Span) > 0 {
			total += int(e.n)
		}
	}
	return max(r.Limit-total, 0)
}

// excess is what may be spent in the shortest window that ends now, less the largest limit.
func (l *Log) excess(w *World) int {
	most, span, spent := 0, l.Rules[0].Span, 0
	for _, r := range l.Rules {
		most, span = max(most, r.Limit), min(span, r.Span)
	}
	for _, u := range w.uses {
		if u.n > 0 && int(u.until) > -span {
			spent += int(u.n)
		}
	}
	return spent - most
}
