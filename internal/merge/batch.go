package merge

import (
	"context"
	"iter"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/tryacquire/ratelimit/internal/redisexec"
)

// A batch is calls that are sent together, in the order in which they came. Once it is
// sent, only its outcomes change.
type batch struct {
	price redisexec.Cost // of what is added
	apart bool           // each key has its own execution: the cost is not that of one
	cost  int            // estimate of the execution

	runs   []run
	keys   int    // number of different keys in the runs
	latest int    // the run to which a call was last added
	key    string // of that run

	calls    int             // number of slots
	callers  int             // number of slots whose callers still wait
	first    context.Context // of the first call
	deadline time.Duration   // the latest of the calls' deadlines, since epoch
	closed   bool            // sent, or dropped
	sent     redisexec.Batch // for callers who want to know

	done chan struct{} // closed when the outcomes are known
}

// A run is calls for a key that follow one another and ask for the same number of
// permits. It takes a cache line.
type run struct {
	key        string  // the key's name in Redis, in the key's first run; empty in the others
	n          int32   // permits; at most a billion
	calls      int32   // number of slots, which are numbered from 0
	next       int32   // index of the key's next run; 0: none
	words      []int64 // the outcome
	exceptions *exceptions
}

// exceptions holds what few runs need.
type exceptions struct {
	left   []int     // slots whose callers left before the batch was sent
	single [][]int64 // words of the first calls, if each of them was executed on its own
	err    error     // the outcome of the other calls
}

// A slot is a call's place in a batch.
type slot struct {
	batch       *batch
	run, number int
}

// noDeadline is later than any deadline.
const noDeadline time.Duration = math.MaxInt64

func newBatch(price redisexec.Cost) *batch {
	return &batch{price: price, done: make(chan struct{})}
}

// join gives a call a slot in the latest run, if that run is for the same key and as
// many permits, as it often is with a hot key.
func (b *batch) join(key string, n int, deadline time.Duration) (slot, bool) {
	if b.calls == maxCalls || b.key != key || int(b.runs[b.latest].n) != n || !b.afford(n*b.price.Permit) {
		return slot{}, false
	}
	return b.newSlot(deadline), true
}

// afford adds to the cost of the batch, unless that would be more than maxCost. The
// first call always has its place, whatever it costs.
func (b *batch) afford(cost int) bool {
	if b.calls > 0 && b.cost+cost > maxCost {
		return false
	}
	b.cost += cost
	return true
}

// newSlot gives a call a slot in the latest run.
func (b *batch) newSlot(deadline time.Duration) slot {
	r := &b.runs[b.latest]
	s := slot{b, b.latest, int(r.calls)}
	r.calls++
	b.calls++
	b.callers++
	b.deadline = max(b.deadline, deadline)
	return s
}

// add gives a call a slot, unless the batch has no room for the call or its key, or would
// cost too much with it. last maps each key to its last run; name is what a key is named in Redis.
func (b *batch) add(ctx context.Context, name func(key string) string, key string, n int, deadline time.Duration, last map[string]int) (slot, bool) {
	i, known := last[key]
	joins := known && int(b.runs[i].n) == n
	cost := n * b.price.Permit
	if !known {
		cost += b.price.Key
	}
	if !joins && (known || n > 1) {
		cost += b.price.Run
	}
	if b.calls == maxCalls || !b.apart && (!known && b.keys == maxKeys || !b.afford(cost)) {
		return slot{}, false
	}
	if b.calls == 0 {
		b.first = ctx
	}
	if !joins {
		r := run{n: int32(n)}
		next := len(b.runs)
		if known {
			b.runs[i].next = int32(next)
		} else {
			r.key = name(key)
			b.keys++
		}
		if next == cap(b.runs) {
			b.runs = slices.Grow(b.runs, min(max(2, 3*next), maxCalls-next)) // doubling would leave more garbage
		}
		b.runs = append(b.runs, r)
		last[key] = next
		i = next
	}
	b.key, b.latest = key, i
	return b.newSlot(deadline), true
}

// leave takes the call out of the batch, before the batch is sent.
func (s slot) leave() {
	e := s.batch.runs[s.run].except()
	e.left = append(e.left, s.number)
	s.batch.callers--
}

// outcome is the outcome of the slot's call: the reply to its run with the call's index
// in that run, or an error.
func (s slot) outcome() (redisexec.Reply, error) {
	r := &s.batch.runs[s.run]
	if r.exceptions == nil {
		return redisexec.Reply{Words: r.words, Index: int64(s.number)}, nil
	}
	place := s.number
	for _, left := range r.exceptions.left {
		if left < s.number {
			place--
		}
	}
	single := r.exceptions.single
	if place < len(single) {
		return redisexec.Reply{Words: single[place]}, nil
	}
	if err := r.exceptions.err; err != nil {
		return redisexec.Reply{}, err
	}
	return redisexec.Reply{Words: r.words, Index: int64(place - len(single))}, nil
}

// reply is the outcome, and how the call was sent.
func (s slot) reply() (redisexec.Reply, error) {
	reply, err := s.outcome()
	reply.Batch = &s.batch.sent
	return reply, err
}

func (r *run) except() *exceptions {
	if r.exceptions == nil {
		r.exceptions = &exceptions{}
	}
	return r.exceptions
}

// pending counts the calls of r that have no outcome yet.
func (r *run) pending() int {
	switch {
	case r.words != nil:
		return 0
	case r.exceptions == nil:
		return int(r.calls)
	case r.exceptions.err != nil:
		return 0
	}
	return int(r.calls) - len(r.exceptions.left) - len(r.exceptions.single)
}

// runsOf yields the runs with pending calls of the key whose first run is at index
// key.
func (b *batch) runsOf(key int) iter.Seq[*run] {
	return func(yield func(*run) bool) {
		for i := key; ; {
			r := &b.runs[i]
			if r.pending() > 0 && !yield(r) {
				return
			}
			if i = int(r.next); i == 0 {
				return
			}
		}
	}
}

// firstOf is the key's first run with pending calls, or nil.
func (b *batch) firstOf(key int) *run {
	for r := range b.runsOf(key) {
		return r
	}
	return nil
}

// pendingKeys returns the keys with pending calls, as the indices of their first runs.
func (b *batch) pendingKeys() []int {
	keys := make([]int, 0, b.keys)
	for i := range b.runs {
		if b.runs[i].key != "" && b.firstOf(i) != nil {
			keys = append(keys, i)
		}
	}
	return keys
}

// fail gives all pending calls the error.
func (b *batch) fail(err error) {
	for i := range b.runs {
		if r := &b.runs[i]; r.pending() > 0 {
			r.except().err = err
		}
	}
}

// context is the context of the batch's execution. It has no caller's values, and the
// latest of the callers' deadlines. If the batch only ever had one call, it is that
// call's context.
func (b *batch) context() (context.Context, context.CancelFunc) {
	switch {
	case b.calls == 1:
		return b.first, func() {}
	case b.deadline == noDeadline:
		return context.Background(), func() {}
	}
	return context.WithDeadline(context.Background(), epoch.Add(b.deadline))
}

// single reports whether just one call is pending for the key.
func (b *batch) single(key int) bool {
	calls := 0
	for r := range b.runsOf(key) {
		calls += r.pending()
	}
	return calls == 1
}

// requests is the permits of a key's pending calls, as many.lua reads them: runs of
// equal requests.
func (b *batch) requests(key int) any {
	if b.firstOf(key).n == 1 && b.single(key) {
		return "1"
	}
	var runs []byte
	for r := range b.runsOf(key) {
		if runs != nil {
			runs = append(runs, ',')
		}
		runs = strconv.AppendInt(runs, int64(r.n), 10)
		runs = append(runs, 'x')
		runs = strconv.AppendInt(runs, int64(r.pending()), 10)
	}
	return runs
}
