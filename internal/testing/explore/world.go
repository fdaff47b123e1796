package explore

import "slices"

// A state is what the key holds. Instants are ticks from now: by the server's clock for a
// state, and in true time for what processes hold.
type state struct {
	exists  bool
	by      int8 // the bucket that wrote it
	at      int8
	missing int8 // units, at that instant
	promise int8 // ticks after it until which permits are promised
}

// What a process holds.
type kind int8

const (
	nothing kind = iota
	waiting      // a reservation whose permits will be used when they are due
	left         // a reservation whose permits will not be used
	unused       // permits that were taken and will not be used
	used         // permits that were taken as an estimate, and used
)

type held struct {
	kind          kind
	n, by         int8
	due           int8 // ticks from now
	age           int8 // ticks since the permits were taken
	wrote, before state
}

// A cancelled reservation, whose cancel waits.
type cancelled struct {
	n, by         int8
	due           int8 // ticks from now, by the server's clock
	wrote, before state
}

// mostWaiting is how many cancels wait at most.
const mostWaiting = 2

// mostHeld is how many reservations and estimates are open at a time, one a process.
const mostHeld = 3

// A World is everything that decides how a history can go on.
type World struct {
	key  state
	held [mostHeld]held // in the order in which they began

	waiting [mostWaiting]cancelled // by the order in which they came

	mark int8 // the latest instant promised, for LessByMark
	used int8 // units used beyond what the fastest rate has restored
	over int8 // units by which the limit is higher: what is charged afterwards, and a clock that ran ahead
}

// full reports whether nothing is missing any more, and has not been for some time, and
// nothing is promised: then the key has expired.
func (s state) full(r *Rules) bool {
	age, missing := int(-s.at), int(s.missing)
	return missing-r.Buckets[s.by].Flow*age < 0 && age > int(s.promise)
}

// load is what bucket b finds missing now. later is how long permits are promised yet.
func (s state) load(r *Rules, b int8) (missing, later int) {
	if !s.exists {
		return 0, 0
	}
	own, writers := r.Buckets[b].Flow, r.Buckets[s.by].Flow
	missing, age := int(s.missing), int(-s.at)
	if s.promise > 0 {
		later = max(int(s.promise)-age, 0)
		if own > writers { // until the promise by the writer's rate only
			missing = max(missing-writers*int(s.promise), 0)
			age -= int(s.promise)
		}
		if age < 0 {
			return missing - own*age, later
		}
	}
	return max(missing-max(own, writers)*age, 0), later
}

// repaired is s as a call finds it after the clock stepped back.
func (s state) repaired() state {
	s.at = min(s.at, 0)
	return s
}

// store is the state in which so much is missing now.
func (w *World) store(r *Rules, b int8, missing, promised int) {
	w.key, w.waiting = state{exists: true, by: b, missing: int8(missing)}, [mostWaiting]cancelled{}
	if !r.Unmarked {
		w.key.promise = int8(promised)
	}
}

func (w *World) hold(h held) bool {
	for i := range w.held {
		if w.held[i].kind == nothing {
			w.held[i] = h
			return true
		}
	}
	return false
}

func (w *World) drop(i int) {
	copy(w.held[i:], w.held[i+1:])
	w.held[mostHeld-1] = held{}
}

// tick lets a tick pass: permits that are due are used, then time goes on. It calls dropped,
// if that is not nil, for each reservation whose permits are used.
func (w *World) tick(r *Rules, dropped func(i int)) (broken bool) {
	for i := 0; i < mostHeld; i++ {
		if h := w.held[i]; h.kind == waiting && h.due == 0 {
			w.used += h.n * int8(r.Permit)
			w.drop(i)
			if dropped != nil {
				dropped(i)
			}
			i--
		}
	}
	broken = int(w.used) > r.limit()+int(w.over)
	w.pass(r, 1)
	for i := range w.held {
		switch h := &w.held[i]; h.kind {
		case waiting, left:
			h.due--
		case unused:
			h.age = min(h.age+1, 20) // by then the exact return is nothing
		}
	}
	if r.Cancel == LessByMark {
		w.mark = max(w.mark-1, -20)
	}
	return broken
}

// pass moves the server's clock on.
func (w *World) pass(r *Rules, ticks int8) {
	w.used = max(w.used-ticks*int8(r.fastest()), 0)
	for _, s := range w.states() {
		if s.exists {
			s.at -= ticks
			if s.full(r) {
				*s = state{}
			}
		}
	}
	for i := range w.waiting {
		w.waiting[i].due -= ticks
	}
	w.forget()
}

// forget drops the cancels of which nothing would come back.
func (w *World) forget() {
	kept := 0
	for _, c := range w.waiting {
		if c.wrote.exists {
			w.waiting[kept] = c
			kept++
		}
	}
	clear(w.waiting[kept:])
}

func (w *World) states() []*state {
	all := []*state{&w.key}
	for i := range w.held {
		all = append(all, &w.held[i].wrote, &w.held[i].before)
	}
	for i := range w.waiting {
		all = append(all, &w.waiting[i].wrote, &w.waiting[i].before)
	}
	return all
}

// breaks reports whether the bound is broken, now or when what waits is used as promised.
func (w World) breaks(r *Rules) bool {
	for {
		if w.tick(r, nil) {
			return true
		}
		if !slices.ContainsFunc(w.held[:], func(h held) bool { return h.kind == waiting }) {
			return false
		}
	}
}
