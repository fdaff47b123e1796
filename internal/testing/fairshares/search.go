package fairshares

import (
	"fmt"
	"hash/maphash"
	"strings"
)

const most = 4 // tenants

// A Scope is what a search goes through.
type Scope struct {
	Rule
	Weights  [][]int64 // of each tenant, one or several
	Permits  [][]int64 // of its calls
	Promises [][]int64 // parts of the rule that each tenant is promised, one number or several; nil: none
	Pauses   []int64   // ticks that pass at once; below 0: the clock steps back
	Always   int       // so many tenants, the first ones, always ask, in turns: time passes when all of them are denied
	Moves    int
	MostSeen int // worlds, at most
}

// A Move is a call, or time that passes.
type Move struct {
	Tenant int // -1: time passes
	N      int64
	Weight int64
	Parts  int64 // of the rule, that its tenant is promised
	Pause  int64
	Answer
}

func (m Move) String() string {
	if m.Tenant < 0 {
		return fmt.Sprintf("%d ticks", m.Pause)
	}
	return fmt.Sprintf("tenant %d of weight %d and %d parts asks for %d: %+v", m.Tenant, m.Weight, m.Parts, m.N, m.Answer)
}

// A World is all that decides what comes next.
type World struct {
	Now     int64
	Limit   Limit
	Tenants [most]Tenant
	Asked   [most]bool // and was denied, since a call was allowed
	Last    int8       // who of those that always ask has asked last
	Ahead   Lead
	Wait    [most]int64
}

// Found is the worst that a search has seen.
type Found struct {
	Worlds  int
	Broken  string // a promise that does not hold, or ""
	Apart   int64  // grains per weight by which what the first two tenants have had in some interval differs
	Wait    int64  // ticks that a tenant that always asks waits
	history []Move
	Worst   []Move // to Apart
	Longest []Move // to Wait
}

func (f Found) String() string {
	lines := []string{fmt.Sprintf("%d worlds, apart %d, wait %d %s", f.Worlds, f.Apart, f.Wait, f.Broken)}
	show := f.history
	if show == nil {
		show = f.Worst
	}
	for _, m := range show {
		lines = append(lines, m.String())
	}
	return strings.Join(lines, "\n")
}

// A Lead is by how much the first of two tenants has had more per weight than the second, since both are counted.
type Lead struct{ Now, Least, Most int64 }

func (l Lead) after(tenant int, grains int64, both bool) Lead {
	if !both {
		return Lead{}
	}
	if tenant == 1 {
		grains = -grains
	}
	l.Now += grains
	return Lead{0, min(l.Least, l.Now) - l.Now, max(l.Most, l.Now) - l.Now}
}

// counted reports whether a tenant's weight is counted.
func (w *World) counted(tenant int) bool {
	t, l := w.Tenants[tenant], w.Limit
	return t.Exists && (t.Epoch == l.Began || l.Before != 0 && t.Epoch == l.Before)
}

type node struct {
	World
	parent int
	move   Move
}

// Search goes through all histories of the scope. Histories that end in the same world are followed once.
func Search(s Scope) Found {
	seed := maphash.MakeSeed()
	seen, nodes := map[uint64]struct{}{}, []node{{parent: -1}}
	nodes[0].Last = -1
	nodes[0].Now = 1000
	var found Found
	history := func(i int, m Move) []Move {
		all := []Move{m}
		for ; nodes[i].parent >= 0; i = nodes[i].parent {
			all = append([]Move{nodes[i].move}, all...)
		}
		return all
	}
	from := 0
	for range s.Moves {
		end := len(nodes)
		for i := from; i < end && len(nodes) < s.MostSeen; i++ {
			for _, m := range s.moves(&nodes[i].World) {
				w := nodes[i].World
				broken := s.apply(&w, &m)
				if broken != "" {
					found.Broken, found.history, found.Worlds = broken, history(i, m), len(nodes)
					return found
				}
				if apart := w.Ahead.Most - w.Ahead.Least; apart > found.Apart {
					found.Apart, found.Worst = apart, history(i, m)
				}
				for t := range s.Always {
					if w.Wait[t] > found.Wait {
						found.Wait, found.Longest = w.Wait[t], history(i, m)
					}
				}
				hash := maphash.Comparable(seed, w.relative())
				if _, ok := seen[hash]; !ok {
					seen[hash] = struct{}{}
					nodes = append(nodes, node{w, i, m})
				}
			}
		}
		from = end
	}
	found.Worlds = len(nodes)
	return found
}

// relative is w with instants relative to now, and without what no later move reads.
func (w World) relative() World {
	if w.Limit.Exists {
		w.Limit.At -= w.Now
		if w.Limit.Before != 0 {
			w.Limit.Before -= w.Now + 1
		}
		w.Limit.Began -= w.Now
	}
	for i := range w.Tenants {
		if w.Tenants[i].Exists {
			w.Tenants[i].Epoch -= w.Now
			w.Tenants[i].Full = max(w.Tenants[i].Full-w.Now, 0)
		}
	}
	w.Now = 0
	return w
}

func (s *Scope) moves(w *World) (all []Move) {
	quiet := true
	for t, weights := range s.Weights {
		if t < s.Always {
			quiet = quiet && w.Asked[t]
			// Nobody asks twice before all others that always ask have had their turn.
			if w.Asked[t] || int(w.Last) == t && !s.othersAsked(w, t) {
				continue
			}
		}
		for _, n := range s.Permits[t] {
			for _, weight := range weights {
				for _, parts := range s.promises(t) {
					all = append(all, Move{Tenant: t, N: n, Weight: weight, Parts: parts})
				}
			}
		}
	}
	if quiet {
		for _, p := range s.Pauses {
			all = append(all, Move{Tenant: -1, Pause: p})
		}
	}
	return all
}

func (s *Scope) othersAsked(w *World, t int) bool {
	for other := range s.Always {
		if other != t && !w.Asked[other] {
			return false
		}
	}
	return true
}

// apply returns what promise the move breaks.
func (s *Scope) apply(w *World, m *Move) string {
	if m.Tenant < 0 {
		w.Now += m.Pause
		w.Asked = [most]bool{}
		for t := range s.Always {
			if !w.counted(t) {
				w.Wait[t] += max(m.Pause, 0)
			}
		}
		return ""
	}
	r, l, t := &s.Rule, &w.Limit, &w.Tenants[m.Tenant]
	before, was := *l, *t
	kept := w.counted(m.Tenant) && t.Promise > 0 && t.Promise == m.Parts && r.Tau-max(t.Full-w.Now, 0) >= ceil(m.N*r.Permit*r.Parts, r.Flow*t.Promise)
	m.Answer = r.Call(l, t, w.Now, m.N, m.Weight, m.Parts)
	if kept && !m.Allowed {
		return "a promise is not kept"
	}
	if m.Tenant < s.Always {
		w.Last = int8(m.Tenant)
	}
	if !m.Allowed {
		w.Asked[m.Tenant] = true
		before.At = l.At // which a step back of the clock repairs
		if before != *l || was != *t {
			return "a denial changes the state"
		}
		return s.denied(w, m)
	}
	w.Wait[m.Tenant] = 0
	w.Asked = [most]bool{}
	if m.Tenant < 2 && s.Always >= 2 {
		w.Ahead = w.Ahead.after(m.Tenant, m.N*r.Grain/m.Weight, w.counted(0) && w.counted(1))
	}
	return s.check(w)
}

func (s *Scope) promises(tenant int) []int64 {
	if s.Promises == nil {
		return []int64{0}
	}
	return s.Promises[tenant]
}

// check compares the state with what it stands for.
func (s *Scope) check(w *World) string {
	r, l := &s.Rule, &w.Limit
	if l.Missing > r.Burst*r.Permit {
		return "more than the burst is missing"
	}
	all, current, pledged := int64(0), int64(0), int64(0)
	for i, t := range w.Tenants {
		if w.counted(i) {
			all += t.Weight
			pledged += t.Promise * (r.Tau - max(t.Full-w.Now, 0))
			if t.Epoch == l.Began {
				current += t.Weight
			}
		}
	}
	free := r.free(l.Missing, l.Pledged)
	switch {
	case pledged > l.Pledged:
		return fmt.Sprintf("%d are promised, and %d are kept", pledged, l.Pledged)
	case free < 0:
		return fmt.Sprintf("%d grains more are promised than are left", -free)
	}
	stepped := false
	for _, p := range s.Pauses {
		stepped = stepped || p < 0
	}
	if !stepped && (l.Counts != current || l.Counts+l.Left < all) {
		return fmt.Sprintf("counted %d and %d, there are %d and %d", l.Counts, l.Left, current, all-current)
	}
	if 2*l.Most > r.Kept*r.Grain/max(l.Counts+l.Left, 1) || stepped {
		return "" // calls are larger than a share: nothing is promised
	}
	owed := int64(0)
	for i, t := range w.Tenants {
		if w.counted(i) {
			v := r.look(l, &t, w.Now, 1, t.Weight)
			owed += max(v.behind, 0) * t.Weight
		}
	}
	if owed > free {
		return fmt.Sprintf("%d grains are owed, and %d are left", owed, free)
	}
	return ""
}

// denied checks what a denial says.
func (s *Scope) denied(w *World, m *Move) string {
	r := &s.Rule
	again := func(at int64) bool {
		l, t := w.Limit, w.Tenants[m.Tenant]
		return r.Call(&l, &t, at, m.N, m.Weight, m.Parts).Allowed
	}
	if m.Retry < 1 || again(w.Now+m.Retry-1) || !again(w.Now+m.Retry) {
		return fmt.Sprintf("allowed at another time than %d", m.Retry)
	}
	return ""
}
