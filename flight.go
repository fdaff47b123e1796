package ratelimit

import (
	"context"
	"strconv"
	"sync"
	"time"
)

// A flight is the calls that go together, by key.
type flight struct {
	seats  int // taken
	runs   int
	groups []group
	index  map[string]int // of a key, into groups
	args   []any

	deadline time.Time // the latest of its passengers'
	endless  bool      // one of them has none
}

// A group is the calls for one key, in their order. The first are gone as they
// are answered.
type group struct {
	name        string // of the key in Redis
	first, last *passenger
}

var flights = sync.Pool{New: func() any {
	return &flight{index: map[string]int{}}
}}

// board adds p, unless its key or run is one too many. Keys in Redis begin with
// prefix.
func (f *flight) board(p *passenger, prefix string) bool {
	i, ok := f.index[p.key]
	run := !ok || f.groups[i].last.n != p.n
	if !ok && len(f.groups) == maxKeys || run && f.runs == maxRuns {
		return false
	}
	if ok {
		g := &f.groups[i]
		g.last.next = p
		g.last = p
	} else {
		f.index[p.key] = len(f.groups)
		f.groups = append(f.groups, group{prefix + p.key, p, p})
	}
	p.boarded = true
	f.seats++
	if run {
		f.runs++
	}
	if deadline, ok := p.ctx.Deadline(); !ok {
		f.endless = true
	} else if deadline.After(f.deadline) {
		f.deadline = deadline
	}
	return true
}

// clear makes f fit for another flight.
func (f *flight) clear() {
	clear(f.groups)
	clear(f.index)
	clear(f.args)
	*f = flight{groups: f.groups[:0], index: f.index, args: f.args[:0]}
	flights.Put(f)
}

// context is the flight's: of nobody in particular, and with the deadline of the
// most patient, for a client that minds it. It is never cancelled.
func (f *flight) context() context.Context {
	if f.endless {
		return context.Background()
	}
	return until{context.Background(), f.deadline}
}

// until has a deadline that others keep.
type until struct {
	context.Context
	at time.Time
}

func (u until) Deadline() (time.Time, bool) { return u.at, true }

// requests tells the calls' permits as runs of equal ones.
func (g group) requests() any {
	if g.first.next == nil && g.first.n == 1 {
		return "1"
	}
	var runs []byte
	for p := g.first; p != nil; {
		n, times := p.n, 0
		for p != nil && p.n == n {
			times++
			p = p.next
		}
		if runs != nil {
			runs = append(runs, ',')
		}
		runs = strconv.AppendInt(runs, int64(n), 10)
		runs = append(runs, 'x')
		runs = strconv.AppendInt(runs, int64(times), 10)
	}
	return runs
}
