package quotaslices

import (
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"strings"
)

// A Scope is what a search goes through.
type Scope struct {
	Algorithm
	Calls int // calls and steps of the clock
	Pause int // ticks that pass at most between two of them
}

// A History is a sequence of moves from an unused key.
type History []Move

func (h History) String() string {
	lines := make([]string, len(h))
	for i, m := range h {
		lines[i] = m.String()
	}
	return strings.Join(lines, "\n")
}

// Found is the result of a search.
type Found struct {
	Worlds int // that differ, before the last call
	Excess int // the worst, in the smallest units
	History
	nodes []node
}

func (f Found) String() string {
	return fmt.Sprintf("excess %d in %d worlds\n%s", f.Excess, f.Worlds, f.History)
}

type node struct {
	world  World
	parent int32
	move   Move
}

// Search goes through all histories of the scope. Histories that end in the same world are followed once.
func Search(s Scope) Found {
	seed := maphash.MakeSeed()
	seen := map[uint64]struct{}{}
	nodes := []node{{parent: -1}}
	moves := s.moves()
	var found Found
	from := 0
	for call := range s.Calls {
		end := len(nodes)
		for i := from; i < end; i++ {
			waited := nodes[i].world
			for pause := range int8(s.Pause + 1) {
				if pause > 0 {
					waited.tick(s.Algorithm)
				}
				for _, m := range moves {
					w := waited
					ok, changed := w.apply(s.Algorithm, m)
					if !changed {
						continue
					}
					m.Pause = pause
					if ok && (m.Op == Plain || m.Op == Lease) {
						if excess := s.excess(&w); excess > found.Excess {
							found.Excess, found.History = excess, append(historyOf(nodes, i), m)
						}
					}
					if call == s.Calls-1 {
						continue
					}
					hash := maphash.Comparable(seed, w)
					if _, ok := seen[hash]; ok {
						continue
					}
					seen[hash] = struct{}{}
					nodes = append(nodes, node{w, int32(i), m})
				}
			}
		}
		from = end
	}
	found.Worlds, found.nodes = len(nodes), nodes
	return found
}

// Len is how many histories there are to choose from: the shortest to each world.
func (f Found) Len() int { return len(f.nodes) }

// Number is history number i of them.
func (f Found) Number(i int) History { return historyOf(f.nodes, i) }

// A Player follows one history of a key move by move, for a test that does the same elsewhere.
type Player struct {
	Algorithm
	world World
}

// Play lets the move's pause pass and then makes it. ok is false if its permits do not fit.
func (p *Player) Play(m Move) (ok bool) {
	for range m.Pause {
		p.world.tick(p.Algorithm)
	}
	w := p.world
	ok, changed := w.apply(p.Algorithm, m)
	if changed {
		p.world = w
	}
	return ok
}

// Uses is how many takings the history still has.
func (p *Player) Uses() (n int) {
	for _, u := range p.world.uses {
		if u.n > 0 {
			n++
		}
	}
	return n
}

// Lasts is for how many ticks the slice may be spent that was taken last.
func (p *Player) Lasts() int { return int(p.world.uses[p.Uses()-1].until) }

// Remaining is the permits that a rule finds left now.
func (p *Player) Remaining(rule int) int { return p.remaining(&p.world, int8(rule)) }

func historyOf(nodes []node, i int) History {
	var all History
	for ; nodes[i].parent >= 0; i = int(nodes[i].parent) {
		all = append(History{nodes[i].move}, all...)
	}
	return all
}

// Random makes so many random histories of the scope, of up to the most calls, and returns the worst of them.
func Random(s Scope, rng *rand.Rand, histories int) Found {
	moves := s.moves()
	var found Found
	for range histories {
		if h, worst := random(s, moves, rng); worst > found.Excess {
			found.Excess, found.History = worst, h
		}
	}
	return found
}

// RandomHistory makes one.
func RandomHistory(s Scope, rng *rand.Rand) History {
	h, _ := random(s, s.moves(), rng)
	return h
}

// random makes a history, and stops where it exceeds the rule, by worst.
func random(s Scope, moves []Move, rng *rand.Rand) (h History, worst int) {
	var w World
	for range maxCalls {
		m, next := moves[rng.IntN(len(moves))], w
		m.Pause = int8(rng.IntN(s.Pause + 1))
		for range m.Pause {
			next.tick(s.Algorithm)
		}
		if _, changed := next.apply(s.Algorithm, m); !changed {
			continue
		}
		w, h = next, append(h, m)
		if worst = s.excess(&w); worst > 0 {
			break
		}
	}
	return h, worst
}
