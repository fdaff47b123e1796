package quotaslices

// A Log is the sliding windows of one key whose permits are dated at the last instant of a slot: those of the storages
// List and Hash, and logs with a resolution. A slice may be spent until the instant at which its permits are dated.
//
// The state has a mark once slices were taken: until when they may be spent, and an id, of which permits may come back. The
// id goes when the server's clock steps back, because then permits are dated at an instant for a second time.
type Log struct {
	Rules   []Rule
	Ns      []int8 // permits of a call; nil: all numbers up to the limit
	Steps   []int8 // of the server's clock
	Clocks  []int8 // callers' clocks, so far ahead of the server's, that decide plain calls
	Returns bool

	Beyond  int8 // ticks that a slice lasts beyond the instant at which it is dated
	Rewound bool // permits of slices move back with the server's clock as far as others do
	AnyID   bool // whatever is dated at that instant comes back
}

func (l *Log) moves() []Move {
	var all []Move
	for rule, r := range l.Rules {
		ns := l.Ns
		if ns == nil {
			for n := int8(1); int(n) <= r.Limit; n++ {
				ns = append(ns, n)
			}
		}
		for _, n := range ns {
			all = append(all, Move{Op: Plain, Rule: int8(rule), N: n}, Move{Op: Lease, Rule: int8(rule), N: n})
			for clock := range l.Clocks {
				all = append(all, Move{Op: Plain, Rule: int8(rule), N: n, Clock: int8(clock + 1)})
			}
		}
	}
	return append(all, others(l.Returns, l.Steps, l.Rules)...)
}

// longest is the longest window of a limiter.
func (r *Rule) longest() int8 {
	if len(r.Also) > 0 {
		return int8(r.Also[len(r.Also)-1].Span)
	}
	return int8(r.Span)
}

// room is the permits that a rule finds left in the windows that end at an instant.
func (r *Rule) room(k *key, at int8) int {
	room := r.Limit - k.within(at, r.Span)
	for i := range r.Also {
		room = min(room, r.Also[i].Limit-k.within(at, r.Also[i].Span))
	}
	return room
}

// promises is the most that a limiter allows in an interval of so many ticks, 100 if it promises nothing.
func (r *Rule) promises(span int) int {
	most := 100
	if r.Span >= span {
		most = r.Limit
	}
	for _, of := range r.Also {
		if of.Span >= span {
			most = min(most, of.Limit)
		}
	}
	return most
}

// A look is what a call finds.
type look struct {
	present int8 // the instant at which it is decided: now, or later if a caller's clock has dated the last permits later
	date    int8 // of permits that it takes
	held    int8 // the longest window that anybody needs
	coarse  int8
	signed  bool
}

// last is the date of the last entry.
func (k *key) last() (last int8, ok bool) {
	last = -100
	for _, e := range k.log {
		if e.there {
			last, ok = max(last, e.at), true
		}
	}
	return last, ok
}

// end is the last tick of the slot in which at is.
func (k *key) end(at int8, slot int) int8 {
	s := int8(slot)
	return at + s - 1 - ((k.phase+at)%s+s)%s
}

// rewind is what a call of the server's clock stores first after that stepped back before the slot of the last entry:
// permits that are dated after the present slot are dated at its end, or a slot from now if slices may be out.
func (l *Log) rewind(w *World, clock int8) {
	k := &w.key
	last, ok := k.last()
	if !ok || last-k.coarse < 0 || clock > 0 || k.signed {
		return
	}
	to := k.end(0, int(k.coarse))
	if k.mark > 0 && !l.Rewound {
		to = k.coarse - 1
	}
	for i := range k.log {
		if k.log[i].there {
			k.log[i].at = min(k.log[i].at, to)
		}
	}
	if k.mark > 0 {
		k.mark, k.ends = 1, to
		w.forgetID()
	}
}

// forgetID: nothing of the slices that were taken until now comes back.
func (w *World) forgetID() {
	for i := range w.uses {
		w.uses[i].epoch = 0
	}
}

// look is what a call of a rule finds, which may drop what nobody needs any more.
func (l *Log) look(w *World, rule, clock int8) (f look) {
	k, r := &w.key, &l.Rules[rule]
	if clock > 0 {
		f.present = l.Clocks[clock-1]
	}
	last, ok := k.last()
	f.signed = clock > 0
	if ok && last-k.coarse >= f.present { // after rewind only of callers' clocks
		f.present = last - k.coarse + 1
	}
	f.date, f.coarse = k.end(f.present, r.Slot), int8(r.Slot)
	switch {
	case ok && last > f.date:
		f.date, f.coarse, f.signed = last, k.coarse, k.signed
	case clock == 0 && f.present > 0 || clock > 0 && f.present > l.Clocks[clock-1]:
		f.coarse, f.signed = f.date-f.present+1, true
	}
	f.held = r.longest()
	needed := false
	for i := range l.Rules {
		other := &l.Rules[i]
		if k.needs[i].there {
			k.needs[i].at = min(k.needs[i].at, last+other.longest())
			if k.needs[i].at > f.present {
				f.held, needed = max(f.held, other.longest()), true
			}
		}
	}
	if !needed {
		k.log = [maxCalls]entry{}
	}
	if k.mark > 0 && k.ends+f.held <= f.present {
		k.mark, k.ends = 0, 0
		w.forgetID()
	}
	return f
}

// within is the permits in a window that ends at an instant.
func (k *key) within(at int8, span int) (n int) {
	for _, e := range k.log {
		if e.there && e.at > at-int8(span) {
			n += int(e.n)
		}
	}
	return n
}

func (l *Log) take(w *World, m Move) (place, until int8, ok bool) {
	l.rewind(w, m.Clock)
	next, r := *w, &l.Rules[m.Rule]
	f, k := l.look(&next, m.Rule, m.Clock), &next.key
	if r.room(k, f.present) < int(m.N) || m.Op == Lease && f.date == f.present { // such permits are used at once
		return 0, 0, false
	}
	free := -1
	for i := range k.log {
		e := &k.log[i]
		if e.there && (e.at <= f.present-f.held || e.n == 0) { // a later one takes the place of an entry without permits
			*e = entry{}
		}
		if !e.there && free < 0 {
			free = i
		}
	}
	k.log[free] = entry{f.date, m.N, true}
	k.exists, k.rule, k.coarse, k.signed = true, m.Rule, f.coarse, f.signed
	k.needs[m.Rule] = entry{at: f.date + r.longest(), there: true}
	if m.Op == Lease {
		if k.mark == 1 { // its id is the new slice's
			next.forgetID()
		}
		k.mark, k.ends = 2, f.date
		until = f.date - f.present + l.Beyond
	}
	*w = next
	return f.date, until, true
}

// giveBack takes them off the entry in which they are.
func (l *Log) giveBack(w *World, u use, n int8) {
	k := &w.key
	if !l.AnyID && (k.mark != 2 || u.epoch != 2) {
		return
	}
	last, _ := k.last()
	entries, own := 0, int8(0)
	for _, e := range k.log {
		if e.there && e.at == u.place {
			own += e.n
		} else if e.there {
			entries++
		}
	}
	stays := u.place == last && k.signed
	if own > 0 && own <= n && entries == 0 && !stays {
		*k = key{phase: k.phase}
		return
	}
	for i := range k.log {
		if e := &k.log[i]; e.there && e.at == u.place {
			off := min(n, e.n)
			if e.n, n = e.n-off, n-off; e.n == 0 && !stays {
				*e = entry{}
			}
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
	found := *w
	l.rewind(&found, 0)
	f := l.look(&found, rule, 0)
	return max(l.Rules[rule].room(&found.key, f.present), 0)
}

// excess is what may be spent in an interval that ends now, less the most that any limiter allows in a window as long. By
// callers' clocks it is shorter by as much as they are apart.
func (l *Log) excess(w *World) (worst int) {
	ahead, behind := int8(0), int8(0)
	for _, c := range l.Clocks {
		ahead, behind = max(ahead, c), min(behind, c)
	}
	worst = -100
	judge := func(span int) {
		promise, spent := 0, 0
		for i := range l.Rules {
			promise = max(promise, l.Rules[i].promises(span))
		}
		for _, u := range w.uses {
			if u.n > 0 && u.until > -int8(span)+ahead-behind {
				spent += int(u.n)
			}
		}
		worst = max(worst, spent-promise)
	}
	for _, r := range l.Rules {
		judge(r.Span)
		for _, of := range r.Also {
			judge(of.Span)
		}
	}
	return worst
}
