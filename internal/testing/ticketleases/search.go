package ticketleases

import (
	"fmt"
	"hash/maphash"
	"strings"
)

// A History is a sequence of moves from an unused key.
type History []Move

func (h History) String() string {
	lines := make([]string, len(h))
	for i, m := range h {
		lines[i] = m.String()
	}
	return strings.Join(lines, "; ")
}

func (m Move) String() string {
	text := ""
	if m.Pause > 0 {
		text = fmt.Sprintf("%d ticks, ", m.Pause)
	}
	switch m.Op {
	case Take:
		text += fmt.Sprintf("take %d", m.N)
	case Bare:
		text += fmt.Sprintf("take %d without the option", m.N)
	case Peek:
		text += "peek"
	case Estimate:
		text += fmt.Sprintf("estimate %d", m.N)
	case More:
		text += fmt.Sprintf("%d more for ticket %d", m.N, m.Of)
	case Extend:
		text += fmt.Sprintf("extend ticket %d", m.Of)
	case Settle:
		text += fmt.Sprintf("settle ticket %d by %d", m.Of, m.N)
	case Step:
		text += fmt.Sprintf("the clock steps by %d", m.N)
	case Forget:
		text += "the tickets are forgotten"
	}
	return text + [...]string{"", ", the reply is lost", ", the request is lost"}[m.Lost]
}

// Found is the result of a search.
type Found struct {
	Worlds       int // that differ, before the last call
	Excess, Leak int // the worst, see the package
	ByExcess     History
	ByLeak       History
	nodes        []node
}

type node struct {
	world  World
	parent int32
	move   Move
}

// Search goes through all histories of so many moves, with so many ticks at most between two of them. Histories that end in
// the same world are followed once.
func Search(r *Rules, calls, pause int) Found {
	seed := maphash.MakeSeed()
	seen := map[uint64]struct{}{}
	nodes := []node{{parent: -1}}
	moves := r.moves()
	var found Found
	from := 0
	for call := range calls {
		end := len(nodes)
		for i := from; i < end; i++ {
			waited := nodes[i].world
			for pause := range int8(pause + 1) {
				if pause > 0 {
					waited.tick(r)
				}
				for _, m := range moves {
					w := waited
					out, ok := w.apply(r, m)
					if !ok {
						continue
					}
					m.Pause = pause
					if excess := w.excess(r); out.Allowed && excess > found.Excess {
						found.Excess, found.ByExcess = excess, append(historyOf(nodes, i), m)
					}
					if leak := int(w.Leak); leak > found.Leak {
						found.Leak, found.ByLeak = leak, append(historyOf(nodes, i), m)
					}
					if call == calls-1 {
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

func historyOf(nodes []node, i int) History {
	var all History
	for ; nodes[i].parent >= 0; i = int(nodes[i].parent) {
		all = append(History{nodes[i].move}, all...)
	}
	return all
}

// moves are all moves under r, whether they are possible or not, but for the pause.
func (r *Rules) moves() []Move {
	all := []Move{{Op: Peek}, {Op: Forget}}
	for n := int8(1); n <= r.Limit; n++ {
		all = append(all, Move{Op: Take, N: n}, Move{Op: Estimate, N: n})
		if r.Bare {
			all = append(all, Move{Op: Bare, N: n})
		}
		if r.Losses {
			all = append(all, Move{Op: Estimate, N: n, Lost: TheReply})
		}
	}
	for of := range int8(mostTickets) {
		all = append(all, Move{Op: Extend, Of: of})
		for n := int8(1); n <= r.Limit; n++ {
			all = append(all, Move{Op: More, N: n, Of: of})
			if r.Losses {
				all = append(all, Move{Op: More, N: n, Of: of, Lost: TheReply})
			}
		}
		for n := range r.Limit + 2 {
			all = append(all, Move{Op: Settle, N: n, Of: of})
			if r.Losses {
				all = append(all, Move{Op: Settle, N: n, Of: of, Lost: TheReply}, Move{Op: Settle, N: n, Of: of, Lost: TheRequest})
			}
		}
	}
	for _, n := range r.Steps {
		all = append(all, Move{Op: Step, N: n})
	}
	return all
}

// A Player follows one history of a key move by move, for a test that does the same elsewhere.
type Player struct {
	Rules *Rules
	world World
}

// Wait lets the pause of a move pass. mayForget says that Redis may have forgotten all tickets.
func (p *Player) Wait(pause int8) (mayForget bool) {
	for range pause {
		p.world.tick(p.Rules)
	}
	return p.world.forgets(p.Rules)
}

// Play makes a move, after its pause.
func (p *Player) Play(m Move) Outcome {
	out, ok := p.world.apply(p.Rules, m)
	if !ok {
		panic("ticketleases: an impossible move")
	}
	return out
}

// Remaining is the permits that a limiter without the option finds left now.
func (p *Player) Remaining() int {
	if p.Rules.Windows != nil {
		return p.world.logRemaining(p.Rules)
	}
	k := p.world.rewound(p.Rules)
	if !p.Rules.Bucket {
		return int(max(p.Rules.Limit-k.used, 0))
	}
	return int(max(p.Rules.Limit*p.Rules.Permit-k.used, 0) / p.Rules.Permit)
}
