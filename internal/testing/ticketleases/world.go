package ticketleases

// The most of each that a history has.
const (
	mostTickets = 2
	mostUses    = 6
)

// A World is everything that decides how a history goes on. Its times are ticks from now, by the server's clock. It has no
// pointers, so that worlds can be compared.
type World struct {
	key     key
	members [mostTickets]member // in Redis, those first that end first
	held    [mostTickets]member // what processes know of theirs; a settled one is gone, ends is not used
	uses    [mostUses]use       // in their order
	entries [mostEntries]entry  // of a log, in their order
	era     era                 // of a log
	phase   int8                // ticks since the slot of a log began
	debt    int8                // permits that were charged, and clocks that ran ahead: what may exceed a bucket's bound
	Leak    int8                // permits that the key counts, and nobody took
}

// A key is its state.
type key struct {
	exists bool
	at     int8 // a bucket's instant; a window's start
	used   int8 // units missing at that instant; permits used
}

// A member is a ticket: that is its name in Redis, and when its lease ends.
type member struct {
	id    int8 // 0: there is none
	n     int8
	place int8 // a window's start, or the instant of a bucket's estimate
	ends  int8
	era   era // of a log

	// Of what a process knows: permits of a window that is over, and that the ticket is gone. settled is what it does not
	// know: a settlement whose reply was lost.
	gone          int8
	lost, settled bool
}

// name is what a process calls its ticket.
func (m member) name() member {
	m.n -= m.gone
	return m
}

func (m member) named(o member) bool {
	return m.id == o.id && m.n == o.n && m.place == o.place && m.era == o.era
}

// A use is permits that count: of a ticket that is not settled, or of none.
type use struct {
	n      int8
	at     int8 // when they were taken, by a clock that does not step back
	ticket int8 // 0: none
	charge bool // they are a debt, which is taken whether it fits or not
}

// An Op is what a step of a history does.
type Op int8

// The calls, and what happens to the clock.
const (
	Take     Op = iota // N permits
	Bare               // the same, by a limiter without the option
	Peek               // takes nothing
	Estimate           // N permits
	More               // N permits for ticket Of
	Extend             // ticket Of
	Settle             // ticket Of, of which N permits were used
	Step               // the server's clock steps by N
	Forget             // Redis forgets tickets that have all ended, as it may
)

// Losing is what becomes of a call on its way.
type Losing int8

// What is lost.
const (
	Nothing Losing = iota
	TheReply
	TheRequest
)

// A Move is one step of a history.
type Move struct {
	Pause int8 // ticks before it
	Op    Op
	N, Of int8
	Lost  Losing
}

// An Outcome is what the call of a move says, unless it is lost.
type Outcome struct {
	Allowed bool
	Late    bool // ErrLeaseLost
	Split   bool // More has taken permits of another entry of a log: here they are another ticket
}

// apply makes a move after its pause. ok is false if it is not possible.
func (w *World) apply(r *Rules, m Move) (out Outcome, ok bool) {
	switch m.Op {
	case Step:
		w.step(m.N)
		w.turn(r, m.N)
		w.eraEnds(r)
		return out, true
	case Forget:
		if !w.forgets(r) {
			return out, false
		}
		for w.members[0].id != 0 {
			w.settled(w.members[0].id, 0)
			w.remove(0)
		}
		return out, true
	case Take, Bare, Peek:
		if m.Op != Bare {
			w.free(r)
		}
		if out.Allowed = m.Op != Peek && w.take(r, m.N); out.Allowed {
			w.use(use{n: m.N})
		}
		w.check(r, m.Op != Bare)
		return out, true
	case Estimate:
		id := w.unusedID()
		if id == 0 {
			return out, false
		}
		w.free(r)
		if out.Allowed = w.take(r, m.N); out.Allowed {
			t := member{id: id, n: m.N, place: w.placeOf(r), ends: r.Lease, era: w.eraOf(r, w.placeOf(r))}
			w.add(t)
			w.use(use{n: m.N, ticket: id})
			if m.Lost == Nothing {
				w.hold(t)
			}
		}
		w.check(r, true)
		return out, true
	}
	of := w.held[m.Of]
	if of.id == 0 {
		return out, false
	}
	switch m.Op {
	case More, Extend:
		if of.lost || m.Op == More && w.splits(r, of) && w.unusedID() == 0 {
			return out, false // Redis is not asked, or there are too many tickets here
		}
		out = w.more(r, m, of)
	case Settle:
		if m.N > of.n+1 {
			return out, false
		}
		out = w.settle(r, m, of)
	}
	return out, true
}

// splits reports whether what a ticket takes more is a ticket of its own, because it is of another entry of a log.
func (w *World) splits(r *Rules, of member) bool {
	if r.Windows == nil || r.JoinsWindows {
		return false
	}
	after := *w
	after.logRewind(r)
	slot := w.slot(r)
	return slot != of.place || after.eraOf(r, slot) != of.era
}

// more is also an Extend, which takes nothing.
func (w *World) more(r *Rules, m Move, of member) (out Outcome) {
	i := w.find(of.name())
	if i < 0 && !r.Revives {
		w.free(r)
		w.held[m.Of].lost = m.Lost == Nothing
		w.check(r, true)
		return Outcome{Late: true}
	}
	if i >= 0 {
		w.remove(i)
	}
	renewed := of.name()
	renewed.ends = r.Lease
	w.add(renewed)
	w.free(r)
	if m.Op == More {
		if out.Allowed = w.take(r, m.N); out.Allowed && w.splits(r, of) {
			out.Split = true
			part := member{id: w.unusedID(), n: m.N, place: w.placeOf(r), ends: r.Lease, era: w.eraOf(r, w.placeOf(r))}
			w.add(part)
			w.use(use{n: m.N, ticket: part.id})
			if m.Lost == Nothing {
				w.hold(part)
			}
		} else if out.Allowed {
			grown := renewed
			grown.n, grown.place = m.N, w.placeOf(r)
			if r.Bucket {
				grown.place = of.place
			}
			switch {
			case grown.place == of.place || r.JoinsWindows:
				grown.n += renewed.n
			default:
				w.detach(of.id) // they are of a window that is over
			}
			if j := w.find(renewed); j >= 0 && !r.KeepsOld {
				w.remove(j)
			}
			w.add(grown)
			w.use(use{n: m.N, ticket: of.id})
			if m.Lost == Nothing {
				known := of
				if grown.place != of.place {
					known.place, known.gone = grown.place, of.n
				}
				known.n += m.N
				w.held[m.Of] = known
			}
		}
	}
	w.check(r, true)
	return out
}

func (w *World) settle(r *Rules, m Move, of member) Outcome {
	if r.SettlesAgain && m.Lost != Nothing {
		w.held[m.Of].settled = m.Lost == TheReply
	} else {
		w.drop(m.Of)
	}
	if m.Lost == TheRequest {
		return Outcome{}
	}
	name, used := of.name(), max(m.N-of.gone, 0)
	i := w.find(name)
	if i < 0 && !r.LateAsInTime {
		if used > 0 { // else others' tickets are left to later calls
			w.free(r)
			if of.settled {
				w.write(r, w.rewound(r), used) // it is charged twice, and was used once
			} else {
				w.charge(r, used)
			}
			w.check(r, true)
		}
		return Outcome{Late: true}
	}
	if i >= 0 {
		w.remove(i)
	}
	switch {
	case used < name.n: // others' tickets are left to later calls
		w.giveBack(r, name, name.n-used)
		w.settled(of.id, used)
		w.check(r, false)
	case used > name.n:
		w.free(r)
		w.charge(r, used-name.n)
		w.settled(of.id, name.n)
		w.check(r, true)
	default:
		w.settled(of.id, used)
		w.check(r, false)
	}
	return Outcome{}
}

// free gives back the first tickets that have ended.
func (w *World) free(r *Rules) {
	for range r.Most {
		t := w.members[0]
		if t.id == 0 || t.ends > 0 {
			return
		}
		w.remove(0)
		w.giveBack(r, t, t.n)
		w.settled(t.id, 0)
	}
}

// forgets reports whether Redis may have forgotten all tickets: a limiter without the option does not keep them.
func (w *World) forgets(r *Rules) bool {
	last := mostTickets - 1
	for last > 0 && w.members[last].id == 0 {
		last--
	}
	used := w.rewound(r).used
	for _, rule := range r.Windows {
		used += w.logUsed(rule.Span)
	}
	return w.members[last].id != 0 && w.members[last].ends <= 0 && (r.Bare || used == 0)
}

// settled says how many permits of a ticket were used: those that were taken first.
func (w *World) settled(id, n int8) {
	for i := range w.uses {
		if u := &w.uses[i]; u.ticket == id {
			u.n, u.ticket = min(u.n, n), 0
			n -= u.n
		}
	}
	w.forget()
}

// detach makes what a ticket took before permits that stay.
func (w *World) detach(id int8) {
	for i := range w.uses {
		if w.uses[i].ticket == id {
			w.uses[i].ticket = 0
		}
	}
}

func (w *World) use(u use) {
	for i := range w.uses {
		if w.uses[i].n == 0 {
			w.uses[i] = u
			return
		}
	}
	panic("ticketleases: too many uses")
}

// forget drops uses of nothing.
func (w *World) forget() {
	kept := 0
	for _, u := range w.uses {
		if u.n > 0 {
			w.uses[kept] = u
			kept++
		}
	}
	clear(w.uses[kept:])
}

func (w *World) unusedID() int8 {
next:
	for id := int8(1); id <= mostTickets; id++ {
		for i := range mostTickets {
			if w.members[i].id == id || w.held[i].id == id {
				continue next
			}
		}
		return id
	}
	return 0
}

func (w *World) hold(t member) {
	t.ends = 0
	for i := range w.held {
		if w.held[i].id == 0 {
			w.held[i] = t
			return
		}
	}
}

func (w *World) drop(i int8) {
	copy(w.held[i:], w.held[i+1:])
	w.held[mostTickets-1] = member{}
}

func (w *World) find(t member) int {
	for i, m := range w.members {
		if m.id != 0 && m.named(t) {
			return i
		}
	}
	return -1
}

func (w *World) remove(i int) {
	copy(w.members[i:], w.members[i+1:])
	w.members[mostTickets-1] = member{}
}

// add adds a ticket behind those that end before it.
func (w *World) add(t member) {
	last := mostTickets - 1
	if w.members[last].id != 0 {
		return // a wrong rule has one ticket twice
	}
	i := last
	for ; i > 0 && (w.members[i-1].id == 0 || w.members[i-1].ends > t.ends); i-- {
		w.members[i] = w.members[i-1]
	}
	w.members[i] = t
}

// tick lets a tick pass.
func (w *World) tick(r *Rules) {
	w.shift(-1)
	w.turn(r, 1)
	for i := range w.uses {
		if w.uses[i].n > 0 {
			w.uses[i].at = max(w.uses[i].at-1, -100)
		}
	}
	w.pass(r)
}

// step moves the server's clock. What was taken was taken when it was, unless the clock runs ahead, as if time had passed.
func (w *World) step(n int8) {
	w.shift(-n)
	for i := range w.uses {
		if u := &w.uses[i]; u.n > 0 && n > 0 {
			u.at = max(u.at-n, -100)
		}
	}
}

// turn moves the clock within a slot.
func (w *World) turn(r *Rules, n int8) {
	if r.Slot > 1 {
		w.phase = ((w.phase+n)%r.Slot + r.Slot) % r.Slot
	}
}

// shift moves all that Redis holds, and what processes know of it.
func (w *World) shift(ticks int8) {
	if w.key.exists {
		w.key.at = max(w.key.at+ticks, -100)
	}
	for i := range w.entries {
		if e := &w.entries[i]; e.n > 0 {
			e.at = max(e.at+ticks, -100)
		}
	}
	if w.era.exists() {
		w.era.at = max(w.era.at+ticks, -100)
	}
	for _, all := range []*[mostTickets]member{&w.members, &w.held} {
		for i := range all {
			if m := &all[i]; m.id != 0 {
				if m.era.exists() {
					m.era.at = max(m.era.at+ticks, -100)
				}
				m.place = max(m.place+ticks, -100)
				m.ends = max(m.ends+ticks, -100)
			}
		}
	}
	for i := range w.held {
		w.held[i].ends = 0
	}
}
