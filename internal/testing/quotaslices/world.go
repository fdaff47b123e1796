package quotaslices

import "fmt"

// maxCalls is the most calls of a history, and maxRules the most rules.
const (
	maxCalls = 6
	maxRules = 3
)

// A World is everything that decides how a history goes on. Its times are ticks from now. It has no pointers, so that
// worlds can be compared.
type World struct {
	key  key
	uses [maxCalls]use // in the order in which they were taken
}

// A use is permits that were taken: by a plain call, which uses them at once, or as a slice.
type use struct {
	n     int8 // permits that may be spent; 0: there is no use
	until int8 // the last tick at which they may be, by a clock that does not step; below 0: it has passed
	slice bool // may be given back
	rule  int8
	place int8 // where the permits are: the server's instant, or the start of the window
	epoch int8 // in which they were taken: 2 the last one, 1 the one before it (buckets), 0 one of which nothing is known
}

// A key is its state. Instants are those of the server's clock.
type key struct {
	exists bool
	rule   int8 // that wrote it
	at     int8 // a bucket's instant; a window's start
	used   int8 // units missing at that instant; permits used
	ends   int8 // until then slices may be spent, if that is after at
	lasts  int8 // windows: the longest of the rules that have taken permits
	coarse int8 // logs: the slot of the last entry
	signed bool // logs: a caller's clock dated it
	mark   int8 // logs: 1 slices may be out, of which nothing comes back; 2 the mark has an id

	epochs [2]epoch        // buckets: the older one first
	log    [maxCalls]entry // logs
	needs  [maxRules]entry // logs: until when each rule needs what is there
	phase  int8            // logs: of the server's clock, in the slots of all rules
}

// An epoch has an id of its own in a state, so that no clock decides which slices began in it.
type epoch struct {
	exists bool
	since  int8
	slack  int8 // the least of what was missing beyond what had to be
}

// An entry is n permits, dated at an instant.
type entry struct {
	at, n int8
	there bool
}

// An Op is what a call does.
type Op int8

// The calls, and what happens to the clock.
const (
	Plain  Op = iota // N permits, used at once
	Lease            // N permits, to be spent for Long ticks
	Return           // N permits of slice Of, which will not be spent
	Step             // the server's clock steps by N
)

// A Move is one step of a history.
type Move struct {
	Pause int8 // ticks before it
	Op    Op
	Rule  int8
	N     int8
	Long  int8
	Late  int8 // ticks from the execution of a Lease until its reply
	Of    int8
	Clock int8 // logs: the caller's, which decides; 0: the server's
}

func (m Move) String() string {
	text := ""
	if m.Pause > 0 {
		text = fmt.Sprintf("%d ticks; ", m.Pause)
	}
	switch m.Op {
	case Plain:
		if m.Clock > 0 {
			return text + fmt.Sprintf("take %d by clock %d [%d]", m.N, m.Clock, m.Rule)
		}
		return text + fmt.Sprintf("take %d [%d]", m.N, m.Rule)
	case Lease:
		return text + fmt.Sprintf("lease %d for %d, the reply %d later [%d]", m.N, m.Long, m.Late, m.Rule)
	case Return:
		return text + fmt.Sprintf("give back %d of slice %d", m.N, m.Of)
	}
	return text + fmt.Sprintf("the clock steps by %d", m.N)
}

// An Algorithm is how a key of one kind decides.
type Algorithm interface {
	// take takes the permits of a Plain or a Lease from w.key if they fit. It returns the place of the permits and the
	// last tick at which a slice of them may be spent. What it changes of w if they do not fit is what a denial stores.
	take(w *World, m Move) (place, until int8, ok bool)
	// giveBack is what the key gets of n permits.
	giveBack(w *World, u use, n int8)
	// pass drops what has expired, after a tick.
	pass(w *World)
	// excess is by how much what may have been spent exceeds the promise, in the smallest units.
	excess(w *World) int
	// remaining is what a rule finds left now.
	remaining(w *World, rule int8) int
	moves() []Move
}

// apply makes the move, after its pause. ok is false if it is not possible; changed says whether it does anything.
func (w *World) apply(a Algorithm, m Move) (ok, changed bool) {
	switch m.Op {
	case Plain, Lease:
		before := w.key
		place, until, ok := a.take(w, m)
		if !ok {
			return false, w.key != before
		}
		for i := range w.uses {
			if w.uses[i].n == 0 {
				w.uses[i] = use{n: m.N, until: until, slice: m.Op == Lease, rule: m.Rule, place: place, epoch: 2}
				return true, true
			}
		}
		panic("quotaslices: too many uses")
	case Return:
		u := &w.uses[m.Of]
		if !u.slice || u.n < m.N || u.n == 0 {
			return false, false
		}
		a.giveBack(w, *u, m.N)
		u.n -= m.N
		if u.n == 0 {
			w.close(int(m.Of))
		}
		return true, true
	}
	w.shift(-m.N)
	w.key.phase += m.N
	return true, true
}

// close drops use i.
func (w *World) close(i int) {
	copy(w.uses[i:], w.uses[i+1:])
	w.uses[maxCalls-1] = use{}
}

// tick lets a tick pass.
func (w *World) tick(a Algorithm) {
	for i := range w.uses {
		if u := &w.uses[i]; u.n > 0 {
			u.until = max(u.until-1, -100)
		}
	}
	w.shift(-1)
	w.key.phase++
	a.pass(w)
}

// shift moves all that counts by the server's clock.
func (w *World) shift(ticks int8) {
	k := &w.key
	if k.exists {
		k.at = max(k.at+ticks, -100)
		k.ends = max(k.ends+ticks, -100)
	}
	for i := range k.epochs {
		if k.epochs[i].exists {
			k.epochs[i].since = max(k.epochs[i].since+ticks, -100)
		}
	}
	for _, all := range [][]entry{k.log[:], k.needs[:]} {
		for i := range all {
			if all[i].there {
				all[i].at = max(all[i].at+ticks, -100)
			}
		}
	}
	for i := range w.uses {
		if u := &w.uses[i]; u.n > 0 && u.slice {
			u.place = max(u.place+ticks, -100)
		}
	}
}
