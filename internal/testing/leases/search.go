package leases

import (
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"strings"
)

// A History is a run of moves, and what Redis did in it.
type History struct {
	Scope  Scope
	Moves  []string
	Events []Event
}

func (h *History) String() string { return strings.Join(h.Moves, "\n") }

// Search goes through every interleaving of the scope. It returns how many different worlds
// there are, and a history with the fewest operations that breaks the limit, or nil if none
// does.
func Search(s Scope) (worlds int, broken *History) {
	m := s.mover()
	seed := maphash.MakeSeed()
	type reached struct { // how a world was reached
		from int
		hash uint64
	}
	type known struct {
		world
		at int // in the trail
	}
	start := maphash.Comparable(seed, world{})
	trail := []reached{{-1, start}}
	seen := map[uint64]struct{}{start: {}}
	layer := []known{{world{}, 0}} // with so many operations
	for operations := 0; operations <= s.Operations; operations++ {
		var next []known
		left := operations < s.Operations
		for len(layer) > 0 {
			k := layer[len(layer)-1]
			layer = layer[:len(layer)-1]
			for _, move := range m.from(k.world, left) {
				to := m.canonical(move.to)
				hash := maphash.Comparable(seed, to)
				if _, ok := seen[hash]; ok {
					continue
				}
				if move.costs { // perhaps another way costs less
					trail = append(trail, reached{k.at, hash})
					next = append(next, known{to, len(trail) - 1})
					continue
				}
				seen[hash] = struct{}{}
				trail = append(trail, reached{k.at, hash})
				if m.held(to) > s.Limit {
					var path []uint64
					for at := len(trail) - 1; at > 0; at = trail[at].from {
						path = append(path, trail[at].hash)
					}
					slices.Reverse(path)
					return len(seen), retrace(s, seed, path)
				}
				layer = append(layer, known{to, len(trail) - 1})
			}
		}
		for _, k := range next {
			if hash := trail[k.at].hash; !has(seen, hash) {
				seen[hash] = struct{}{}
				layer = append(layer, k)
			}
		}
	}
	return len(seen), nil
}

func has(seen map[uint64]struct{}, hash uint64) bool {
	_, ok := seen[hash]
	return ok
}

func (s Scope) mover() *mover {
	m := &mover{Scope: s}
	for _, lease := range s.Leases {
		m.oldest = max(m.oldest, int8(lease+2*s.Skew+1))
	}
	return m
}

// retrace describes the history of a path of worlds.
func retrace(s Scope, seed maphash.Seed, path []uint64) *History {
	h, m, w := &History{Scope: s}, s.mover(), world{}
	m.describe = true
	for _, hash := range path {
		for _, move := range m.from(w, true) {
			if maphash.Comparable(seed, m.canonical(move.to)) == hash {
				w = h.add(m, move)
				break
			}
		}
	}
	return h
}

// canonical returns w with its lists in an order, and its processes too if they are alike,
// and with the least ids. Worlds that differ in that only go on alike.
func (m *mover) canonical(w world) world {
	if n := m.Processes; m.alike() {
		for i := 1; i < n; i++ {
			for j := i; j > 0 && less(w.processes[j], w.processes[j-1]); j-- {
				before := w.processes[j-1]
				w.processes[j-1] = w.processes[j]
				w.processes[j] = before
				for r := range w.requests {
					if q := &w.requests[r]; q.kind != none {
						switch q.by {
						case int8(j):
							q.by--
						case int8(j - 1):
							q.by++
						}
					}
				}
			}
		}
	}
	var names [32]int8
	last := int8(0)
	rename := func(id *int8) {
		if *id > 0 && *id != shared {
			if names[*id] == 0 {
				last++
				names[*id] = last
			}
			*id = names[*id]
		}
	}
	for i := range w.processes {
		rename(&w.processes[i].id)
	}
	for i := range w.leases {
		rename(&w.leases[i].id)
	}
	for i := range w.requests {
		rename(&w.requests[i].id)
	}
	slices.SortFunc(w.requests[:], func(a, b request) int { return a.order() - b.order() })
	return w
}

func (m *mover) alike() bool {
	if m.Shared > 0 && m.Shared < m.Processes {
		return false
	}
	for i := range m.Processes {
		if m.Permits[i] != m.Permits[0] || m.Leases[i] != m.Leases[0] {
			return false
		}
	}
	return true
}

func less(a, b process) bool {
	order := func(p process) int {
		return (((int(p.standing)*8+int(p.call))*32+int(p.until))*32+int(p.began)+16)*4 + int(p.reply)
	}
	return order(a) < order(b)
}

func (r request) order() int {
	if r.kind == none {
		return 1 << 30
	}
	v := (((int(r.kind)*8+int(r.by))*8+int(r.id))*256 + int(r.clock) + 128) * 2
	if r.awaited {
		v++
	}
	return v
}

func (h *History) add(m *mover, next move) world {
	h.Moves = append(h.Moves, next.what)
	if next.event != nil {
		h.Events = append(h.Events, *next.event)
	}
	m.time += next.ticks
	m.offset += next.step
	for _, p := range next.to.processes {
		if p.id != shared {
			m.ids = max(m.ids, p.id)
		}
	}
	return next.to
}

// Random returns a random history of the scope, in which the limit holds.
func Random(s Scope, rng *rand.Rand) *History {
	h, m, w := &History{Scope: s}, &mover{Scope: s, oldest: 100, describe: true}, world{}
	for operations, ticks := 0, 0; ticks < 12; {
		moves := m.from(w, operations < s.Operations)
		move := moves[rng.IntN(len(moves))]
		if move.costs {
			operations++
		} else if move.to == w {
			break
		}
		w = h.add(m, move)
		ticks = int(m.time)
		if m.held(w) > s.Limit {
			panic("the limit is broken")
		}
	}
	return h
}
