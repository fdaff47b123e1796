package explore

// A History is a sequence of moves from an unused key.
type History []Move

// A node is a world that some history reaches, and the last move of the shortest one.
type node struct {
	world  World
	parent int32
	move   Move
}

// A Result is what a search found.
type Result struct {
	Worlds int     // that differ
	Broken History // the shortest that breaks the bound; nil: none does
	nodes  []node
}

// Search follows all histories of up to r.Calls moves, the shorter ones first, until one
// breaks the bound.
func Search(r *Rules) Result {
	seen := map[World]struct{}{{}: {}}
	nodes := []node{{parent: -1}}
	moves := r.moves()
	from := 0
	for range r.Calls {
		end := len(nodes)
		for i := from; i < end; i++ {
			waited := nodes[i].world
			for pause := range int8(r.Pause + 1) {
				if pause > 0 {
					waited.tick(r, nil)
				}
				for _, m := range moves {
					w := waited
					m.Pause = pause
					if _, ok := w.apply(r, m); !ok {
						continue
					}
					if _, ok := seen[w]; ok {
						continue
					}
					seen[w] = struct{}{}
					nodes = append(nodes, node{w, int32(i), m})
					if w.breaks(r) {
						return Result{Worlds: len(nodes), Broken: historyOf(nodes, len(nodes)-1)}
					}
				}
			}
		}
		from = end
	}
	return Result{Worlds: len(nodes), nodes: nodes}
}

// Len is how many histories there are to choose from: the shortest to each world.
func (r Result) Len() int { return len(r.nodes) }

// History is number i of them.
func (r Result) History(i int) History { return historyOf(r.nodes, i) }

func historyOf(nodes []node, i int) History {
	var all History
	for ; nodes[i].parent >= 0; i = int(nodes[i].parent) {
		all = append(History{nodes[i].move}, all...)
	}
	return all
}

// moves are all moves under r, whether they are possible or not, but for the pause.
func (r *Rules) moves() []Move {
	var all []Move
	add := func(m Move) { all = append(all, m) }
	replies := []bool{false}
	if r.Losses {
		replies = append(replies, true)
	}
	for b := range int8(len(r.Buckets)) {
		for n := int8(1); int(n) <= r.Buckets[b].Burst; n++ {
			for _, lost := range replies {
				add(Move{Op: Take, By: b, N: n, Lost: lost})
				if r.Reserving {
					add(Move{Op: Reserve, By: b, N: n, Wait: 1, Lost: lost})
					add(Move{Op: Reserve, By: b, N: n, Wait: int8(r.Longest), Lost: lost})
				}
			}
			if r.Returns {
				add(Move{Op: Borrow, By: b, N: n})
			}
			if r.Settling {
				add(Move{Op: Spend, By: b, N: n})
			}
		}
	}
	for i := range int8(mostHeld) {
		if r.Reserving {
			add(Move{Op: Cancel, Held: i})
			add(Move{Op: Leave, Held: i})
			if r.Losses {
				add(Move{Op: Cancel, Held: i, Lost: true})
			}
		}
		if r.Returns {
			add(Move{Op: Return, Held: i})
		}
		if r.Settling {
			add(Move{Op: Settle, Held: i})
		}
	}
	if r.Clock {
		for _, n := range []int8{-2, -1, 1} {
			add(Move{Op: Step, N: n})
		}
	}
	return all
}

// A Player follows one history move by move, for a test that does the same elsewhere.
type Player struct {
	Rules *Rules
	world World
}

// Play lets the move's pause pass and then applies it. It calls dropped for each
// reservation whose permits are used. It returns what the move's call says.
func (p *Player) Play(m Move, dropped func(i int)) Outcome {
	for range m.Pause {
		p.world.tick(p.Rules, dropped)
	}
	out, ok := p.world.apply(p.Rules, m)
	if !ok {
		panic("explore: an impossible move")
	}
	return out
}

// Missing is the units that bucket b finds missing now.
func (p *Player) Missing(b int) int {
	missing, _ := p.world.key.repaired().load(p.Rules, int8(b))
	return missing
}
