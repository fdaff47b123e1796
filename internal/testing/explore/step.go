package explore

import (
	"fmt"
	"slices"
)

// An Op is what a step does.
type Op int8

// The calls of processes, and what happens to the server's clock.
const (
	Take    Op = iota // n permits, if they fit, and use them
	Reserve           // n permits, if they fit within Wait
	Leave             // a reservation without cancelling it yet: its permits will not be used
	Cancel            // a reservation
	Borrow            // take n permits that will not be used
	Return            // them
	Spend             // take n permits as an estimate, and use them
	Settle            // the estimate: one permit more was used
	Step              // the server's clock moves on by N, or back if N is below 0
)

// A Move is one step of a history.
type Move struct {
	Pause int8 // ticks that pass before it
	Op    Op
	By    int8 // the bucket that the process has
	N     int8
	Wait  int8 // of a Reserve: how long it may be at most
	Held  int8 // what it is about: the number of what is held, in the order in which it began
	Lost  bool // the reply, or of a Cancel the request: the process does not learn that permits were taken
}

func (m Move) String() string {
	text := ""
	if m.Pause > 0 {
		text = fmt.Sprintf("%d ticks; ", m.Pause)
	}
	who := fmt.Sprintf(" [%d]", m.By)
	switch m.Op {
	case Take:
		text += fmt.Sprintf("take %d", m.N) + who
	case Reserve:
		text += fmt.Sprintf("reserve %d within %d", m.N, m.Wait) + who
	case Leave:
		text += fmt.Sprintf("leave reservation %d", m.Held)
	case Cancel:
		text += fmt.Sprintf("cancel reservation %d", m.Held)
	case Borrow:
		text += fmt.Sprintf("take %d, unused", m.N) + who
	case Return:
		text += fmt.Sprintf("give back all of %d", m.Held)
	case Spend:
		text += fmt.Sprintf("take an estimate of %d", m.N) + who
	case Settle:
		text += fmt.Sprintf("settle %d: one more", m.Held)
	case Step:
		text += fmt.Sprintf("the clock steps by %d", m.N)
	}
	if m.Lost {
		text += ", lost"
	}
	return text
}

// An Outcome is what a call says.
type Outcome struct {
	Allowed bool
	Due     int // ticks until the permits may be used; of a Reserve that is denied, too
}

// apply is what w becomes, after the pause. ok is false if the move is not possible.
func (w *World) apply(r *Rules, m Move) (out Outcome, ok bool) {
	var h held
	switch m.Op {
	case Leave, Cancel, Return, Settle:
		h = w.held[m.Held]
	}
	b := m.By
	capacity, cost := r.Buckets[b].Burst*r.Permit, int(m.N)*r.Permit
	switch m.Op {
	case Take, Borrow, Spend:
		found := w.key.repaired()
		missing, later := found.load(r, b)
		if missing+cost > capacity {
			w.key = found
			return Outcome{}, true
		}
		w.store(r, b, missing+cost, later)
		switch {
		case m.Lost:
		case m.Op == Take:
			w.used += int8(cost)
		case m.Op == Borrow:
			return Outcome{Allowed: true}, w.hold(held{kind: unused, n: m.N, by: b})
		case m.Op == Spend:
			w.used += int8(cost)
			return Outcome{Allowed: true}, w.hold(held{kind: used, n: m.N, by: b})
		}
		return Outcome{Allowed: true}, true

	case Reserve:
		if r.Reuse {
			if h, ok := w.reuse(m); ok {
				return Outcome{Allowed: true, Due: int(h.due)}, w.hold(h)
			}
		}
		before, queue := w.key, w.waiting
		found := before.repaired()
		missing, later := found.load(r, b)
		due := 0
		if over := missing + cost - capacity; over > 0 {
			due = (over + r.Buckets[b].Flow - 1) / r.Buckets[b].Flow
		}
		if due > int(m.Wait) {
			w.key = found
			return Outcome{Due: due}, true
		}
		w.store(r, b, missing+cost, max(later, due))
		if w.key.promise > 0 {
			w.waiting = queue
		}
		if r.Cancel == LessByMark {
			w.mark = max(w.mark, int8(due))
		}
		if m.Lost {
			return Outcome{Allowed: true, Due: due}, true
		}
		h := held{kind: waiting, n: m.N, by: b, due: int8(due), wrote: w.key}
		if r.Cancel == AllIfLast {
			h.before = before
		}
		return Outcome{Allowed: true, Due: due}, w.hold(h)

	case Leave:
		w.held[m.Held].kind = left
		return Outcome{}, h.kind == waiting

	case Cancel:
		if h.kind != waiting && h.kind != left {
			return Outcome{}, false
		}
		w.drop(int(m.Held))
		if !m.Lost {
			w.giveBack(r, h)
		}
		return Outcome{}, true

	case Return:
		if h.kind != unused {
			return Outcome{}, false
		}
		w.drop(int(m.Held))
		restored := int(h.n) * r.Permit
		if r.Return != Full {
			restored = max(restored-r.Buckets[h.by].Flow*int(h.age), 0)
		}
		// How much a rule of another rate has refilled is not known.
		others := r.Return == Exact && w.key.exists && r.Buckets[w.key.by].Flow != r.Buckets[h.by].Flow
		if _, later := w.key.repaired().load(r, h.by); others || r.Return == Exact && later > 0 {
			restored = 0
		}
		w.restore(r, h.by, restored)
		return Outcome{}, true

	case Settle:
		if h.kind != used {
			return Outcome{}, false
		}
		w.drop(int(m.Held))
		missing, later := w.key.repaired().load(r, h.by)
		w.store(r, h.by, missing+r.Permit, later)
		w.used += int8(r.Permit)
		// Each call that is under way may be one permit over.
		w.over = max(w.over, int8(mostHeld*r.Permit))
		return Outcome{}, true

	case Step:
		if m.N < 0 {
			for _, s := range w.states() {
				if s.exists {
					s.at -= m.N
				}
			}
			for i := range w.waiting {
				w.waiting[i].due -= m.N
			}
			return Outcome{}, true
		}
		// Permits that wait are used late by as much as the clock ran ahead, and those that
		// are given back were held for longer than their holder knows.
		for _, late := range []kind{waiting, unused} {
			if slices.ContainsFunc(w.held[:], func(h held) bool { return h.kind == late }) {
				w.over += m.N * int8(r.fastest())
			}
		}
		w.pass(r, m.N)
		return Outcome{}, true
	}
	panic("explore: an unknown move")
}

// giveBack is what the cancel of h does.
func (w *World) giveBack(r *Rules, h held) {
	restored := int(h.n) * r.Permit
	switch r.Cancel {
	case AllIfLast:
		switch {
		case w.key.exists && w.key == h.wrote:
			w.restoreTo(h.before)
		case w.key.promise > 0 && h.wrote.exists:
			if w.waiting[mostWaiting-1] != (cancelled{}) {
				w.waiting[0] = cancelled{}
				w.forget()
			}
			i := slices.Index(w.waiting[:], cancelled{})
			w.waiting[i] = cancelled{n: h.n, by: h.by, due: h.due, wrote: h.wrote, before: h.before}
		}
		return
	case AllIfInstant:
		if !w.key.exists || w.key.at != h.wrote.at {
			return
		}
	case LessByState:
		now, _ := w.key.repaired().load(r, h.by)
		own := int(h.wrote.missing) + r.Buckets[h.by].Flow*int(h.wrote.at)
		restored = min(restored, restored-(now-own))
	case LessByMark:
		restored = min(restored, restored-r.Buckets[h.by].Flow*int(w.mark-h.due))
	}
	w.restore(r, h.by, max(restored, 0))
}

// restoreTo is the key as it was before a reservation, and before those in front of it that were cancelled.
func (w *World) restoreTo(before state) {
	w.key = before
	for i, c := range w.waiting {
		if w.key.exists && w.key == c.wrote {
			w.waiting[i] = cancelled{}
			w.forget()
			w.restoreTo(c.before)
			break
		}
	}
	if w.key.promise == 0 {
		w.waiting = [mostWaiting]cancelled{}
	}
}

// reuse is a reservation at the instant of one that was cancelled, if there is one that suits and the
// clock has not stepped back behind the last change.
func (w *World) reuse(m Move) (held, bool) {
	for i, c := range w.waiting {
		if w.key.at <= 0 && c.n == m.N && c.by == m.By && c.due >= 0 && c.due <= m.Wait {
			w.waiting[i] = cancelled{}
			w.forget()
			return held{kind: waiting, n: c.n, by: c.by, due: c.due, wrote: c.wrote, before: c.before}, true
		}
	}
	return held{}, false
}

// restore takes units off what is missing. The state keeps its rule and its instant.
func (w *World) restore(r *Rules, b int8, units int) {
	if !w.key.exists || units == 0 {
		return
	}
	found := w.key.repaired()
	if missing, _ := found.load(r, b); missing > 0 {
		found.missing = max(found.missing-int8(units), 0)
		w.key = found
	}
}
