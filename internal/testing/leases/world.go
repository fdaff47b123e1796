// Package leases searches all interleavings of a few calls of an InFlight limiter by a few
// processes, for one in which more permits are held than the limit allows.
//
// Processes send calls. Redis executes each at any later time, or never; its reply arrives
// at any later time, or never. A process that crashes is one that does nothing more; what
// it believes still counts, which is stricter. The server's clock steps back, and the
// clocks of callers are apart by any amount at each call. Time goes on in ticks of a
// second, for as long as anything can still change.
//
// What Redis does is [model.InFlight]. What a process may believe is here: it holds its
// permits from the reply until one lease after it sent the call.
package leases

import (
	"fmt"
	"slices"

	"github.com/tryacquire/ratelimit/internal/testing/model"
)

const (
	maxProcesses  = 3
	maxOperations = 6
	tick          = 1_000_000 // microseconds
	epoch         = 1_763_670_000 * tick
)

// A Scope is what a search goes through.
type Scope struct {
	Processes  int
	Operations int // calls, and steps of the server's clock
	Usual      int // of them, in the usual run
	Limit      int
	Permits    [maxProcesses]int // of each process's hold
	Leases     [maxProcesses]int // of each process's limiter, ticks
	ByCaller   bool              // the processes' clocks decide
	Skew       int               // what WithMaxSkew says, ticks
	Apart      int               // a caller's clock is ahead by 0 to this many ticks
	Steps      []int             // by which the server's clock steps
	Shared     int               // so many processes, the first ones, have one hold by one id
	Broken     model.Mistake
}

// The mistakes of what a process believes.
const (
	CountsFromReply model.Mistake = "a holder counts its lease from the reply"
	NeverLost       model.Mistake = "a holder believes in its lease until Redis says no"
	ExtendsUnheard  model.Mistake = "a holder takes a lost reply to extend for a yes"
	GivesBackShared model.Mistake = "a hold by an id is given back after a lost reply"
	ReleasesEnded   model.Mistake = "a hold by an id is released after its lease has ended"
)

// shared is the id that processes share. The first to release its hold is the last to use it.
const shared = 31

// name is an id in Redis: a caller's own begins with a small letter.
func name(id int8) string {
	if id == shared {
		return "shared"
	}
	return string(rune('A' + id - 1))
}

// id is that of a name.
func idOf(name string) int8 {
	if name == "shared" {
		return shared
	}
	return int8(name[0]-'A') + 1
}

type callKind int8

const (
	none callKind = iota
	acquire
	extend
	release
)

var callNames = [...]string{"", "acquire", "extend", "release"}

type standing int8

const (
	nothing standing = iota
	holding
	over // released, or the reply was lost: the process knows its id only
)

type reply int8

const (
	unanswered reply = iota
	no
	yes
)

// A world is one state of everything. Its times are ticks from now: those of the leases and
// of the key from what the server's clock reads, or with callers' clocks from the time. It
// has no pointers, so that it can be compared.
type world struct {
	expires   int8 // the key, by the server's clock; 0: there is none
	over      bool // the hold by the shared id: it was released
	leases    [maxOperations]lease
	processes [maxProcesses]process
	requests  [maxOperations]request // on their way to Redis
}

type lease struct{ id, ends, length, permits int8 }

type process struct {
	standing standing
	id       int8     // of its hold
	until    int8     // it believes in its lease until then; 0: not
	call     callKind // that it waits for
	began    int8     // when it sent that
	reply    reply    // on its way
}

type request struct {
	kind    callKind
	by      int8
	id      int8
	clock   int8 // the process's, when it was sent
	awaited bool
}

// An Event is what Redis did in a history.
type Event struct {
	Process int
	Kind    string // acquire, extend or release
	ID      string
	Permits int
	Call    model.Call
	Held    model.Held // the reply to an acquire
	Yes     bool       // the reply to an extend
	Leases  []model.Lease
}

// A move leads from one world to the next.
type move struct {
	to    world
	costs bool // an operation
	ticks int8 // by which time goes on
	step  int8 // by which the server's clock steps
	what  string
	event *Event
}

// A mover collects the moves from a world.
type mover struct {
	Scope
	oldest int8 // what is longer ago counts as so long ago
	moves  []move

	describe bool // the moves; only then the fields below are set
	time     int8 // of the world
	offset   int8 // of the server's clock
	ids      int8 // used so far; a search uses them again
}

func (m *mover) add(to world, costs bool, event *Event, what func() string) {
	next := move{to: to, costs: costs}
	if m.describe {
		next.what, next.event = fmt.Sprintf("%d: %s", m.time, what()), event
	}
	m.moves = append(m.moves, next)
}

// from returns every world that can come next. Operations are left or not.
func (m *mover) from(w world, left bool) []move {
	m.moves = m.moves[:0]
	m.tick(w)
	for i := range m.Processes {
		if w.processes[i].call != none {
			m.wait(w, i)
		} else if left {
			m.send(w, i)
		}
	}
	for i := range w.requests {
		if w.requests[i].kind != none {
			m.execute(w, i)
		}
	}
	if left {
		for _, step := range m.Steps {
			to := w
			for i := range to.leases {
				if to.leases[i].id > 0 && !m.ByCaller {
					to.leases[i].ends -= int8(step)
				}
			}
			if to.expires > 0 {
				to.expires = max(to.expires-int8(step), 0)
			}
			m.add(to, true, nil, func() string { return fmt.Sprintf("the server's clock steps by %d", step) })
			m.moves[len(m.moves)-1].step = int8(step)
		}
	}
	return m.moves
}

func (m *mover) tick(w world) {
	for i := range w.leases {
		if l := &w.leases[i]; l.id > 0 {
			l.ends = max(l.ends-1, -m.oldest)
		}
	}
	for i := range w.requests {
		if r := &w.requests[i]; r.kind != none && m.ByCaller {
			r.clock = max(r.clock-1, -m.oldest)
		}
	}
	for i := range w.processes {
		p := &w.processes[i]
		p.until = max(p.until-1, 0)
		if p.call != none {
			p.began = max(p.began-1, -int8(m.Leases[i]))
		}
	}
	w.expires = max(w.expires-1, 0)
	if w.expires == 0 {
		w.leases = [maxOperations]lease{}
	}
	m.add(w, false, nil, func() string { return "a tick" })
	m.moves[len(m.moves)-1].ticks = 1
}

// wait lets process i read the reply to its call, or give up.
func (m *mover) wait(w world, i int) {
	p := &w.processes[i]
	kind, until := p.call, max(p.began+int8(m.Leases[i]), 0)
	if p.reply != unanswered {
		to := w
		q := &to.processes[i]
		switch {
		case p.reply == no:
			*q = process{}
		case m.Broken == CountsFromReply:
			*q = process{standing: holding, id: p.id, until: int8(m.Leases[i])}
		default:
			*q = process{standing: holding, id: p.id, until: until}
		}
		m.add(to, false, nil, func() string {
			return fmt.Sprintf("process %d reads the reply to %s %d: %v", i, callNames[kind], p.id, p.reply == yes)
		})
	}
	for r := range w.requests {
		if w.requests[r].by == int8(i) {
			w.requests[r].awaited = false
		}
	}
	id := p.id
	switch {
	case kind == acquire:
		*p = process{standing: over, id: id}
	case m.Broken == ExtendsUnheard:
		*p = process{standing: holding, id: id, until: until}
	default:
		*p = process{standing: holding, id: id, until: p.until}
	}
	m.add(w, false, nil, func() string { return fmt.Sprintf("process %d gives up on %s %d", i, callNames[kind], id) })
}

// send lets process i send each call that it may.
func (m *mover) send(w world, i int) {
	p := w.processes[i]
	clocks := 0
	if m.ByCaller {
		clocks = m.Apart
	}
	for clock := range int8(clocks + 1) {
		if p.standing == holding {
			to := w
			to.processes[i].call = extend
			m.request(&to, request{extend, int8(i), p.id, clock, true})
			m.add(to, true, nil, func() string { return fmt.Sprintf("process %d sends extend %d, its clock %d ahead", i, p.id, clock) })
		} else if !m.shares(i) || !w.over {
			to := w
			id := int8(shared)
			if !m.shares(i) {
				id = m.freeID(w)
			}
			to.processes[i] = process{id: id, call: acquire}
			m.request(&to, request{acquire, int8(i), id, clock, true})
			m.add(to, true, nil, func() string { return fmt.Sprintf("process %d sends acquire %d, its clock %d ahead", i, id, clock) })
		}
	}
	if m.shares(i) {
		if !m.releases(w, i) {
			return
		}
		w.over = w.over || m.Broken == ""
	}
	if p.standing != nothing {
		w.processes[i] = process{standing: over, id: p.id}
		m.request(&w, request{release, int8(i), p.id, 0, false})
		m.add(w, true, nil, func() string { return fmt.Sprintf("process %d sends release %d", i, p.id) })
	}
}

func (m *mover) shares(i int) bool { return i < m.Shared }

// releases reports whether process i, which shares its hold, may release it: while its lease lasts, if no other has it.
func (m *mover) releases(w world, i int) bool {
	p := w.processes[i]
	switch {
	case m.Broken == GivesBackShared:
		return p.standing == over
	case m.Broken == ReleasesEnded:
		return p.standing == holding && p.until == 0
	}
	for other := range m.Shared {
		if q := w.processes[other]; other != i && (q.call != none || q.until > 0) {
			return false
		}
	}
	return p.standing == holding && p.until > 0
}

// request puts r on its way.
func (m *mover) request(w *world, r request) {
	for i := range w.requests {
		if w.requests[i].kind == none {
			w.requests[i] = r
			break
		}
	}
}

// freeID is an id for a new hold: the least that is not in use, or one that never was if the
// moves are described.
func (m *mover) freeID(w world) int8 {
	if m.describe {
		return m.ids + 1
	}
	used := [32]bool{0: true}
	for _, l := range w.leases {
		used[l.id] = true
	}
	for _, p := range w.processes {
		used[p.id] = true
	}
	for _, r := range w.requests {
		used[r.id] = true
	}
	return int8(slices.Index(used[:], false))
}

// execute lets Redis execute request r.
func (m *mover) execute(w world, r int) {
	q := w.requests[r]
	w.requests[r] = request{}
	by := int(q.by)
	zero := micros(m.time + m.offset) // where the times of the leases count from
	c := model.Call{Limit: m.Limit, Lease: int64(m.Leases[by]) * tick, ByCaller: m.ByCaller, Server: zero, Now: zero}
	if m.ByCaller {
		zero = micros(m.time)
		c.Spare, c.Now = int64(m.Skew)*tick, zero+int64(q.clock)*tick
	}
	key := model.InFlight{Leases: make([]model.Lease, 0, maxOperations), Broken: m.Broken}
	if w.expires > 0 {
		key.Expires = c.Server + int64(w.expires)*tick
	}
	for _, l := range w.leases {
		if l.id > 0 {
			key.Leases = append(key.Leases, model.Lease{ID: name(l.id), Permits: int(l.permits),
				Ends: zero + int64(l.ends)*tick, Length: int64(l.length) * tick, ByCaller: m.ByCaller})
		}
	}
	id := name(q.id)
	event := Event{Process: by, Kind: callNames[q.kind], ID: id, Call: c, Permits: m.Permits[by]}
	switch q.kind {
	case acquire:
		event.Held = key.Acquire(c, id, m.Permits[by])
		event.Yes = event.Held.Allowed
	case extend:
		event.Yes = key.Extend(c, id, m.Permits[by])
	case release:
		key.Release(c.Server, id)
		event.Yes = true
	}
	w.leases, w.expires = [maxOperations]lease{}, 0
	if len(key.Leases) > 0 {
		w.expires = int8((key.Expires - c.Server + tick - 1) / tick)
	}
	for i, l := range key.Leases {
		w.leases[i] = lease{idOf(l.ID), int8((l.Ends - zero) / tick), int8(l.Length / tick), int8(l.Permits)}
	}
	if q.awaited {
		w.processes[by].reply = no
		if event.Yes {
			w.processes[by].reply = yes
		}
	}
	var described *Event
	if m.describe {
		event.Leases = key.Leases
		described = &event
	}
	m.add(w, false, described, func() string {
		return fmt.Sprintf("Redis executes %s %d of process %d: %v", callNames[q.kind], q.id, by, event.Yes)
	})
}

// held is how many permits the processes believe that they hold.
func (m *mover) held(w world) (sum int) {
	one := 0 // those of the hold that processes share
	for i, p := range w.processes[:m.Processes] {
		switch {
		case p.until == 0 && (m.Broken != NeverLost || p.standing != holding):
		case m.shares(i):
			one = m.Permits[i]
		default:
			sum += m.Permits[i]
		}
	}
	return sum + one
}

func micros(t int8) int64 { return epoch + int64(t)*tick }
