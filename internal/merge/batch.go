package merge

import (
	"context"
	"encoding/binary"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/tryacquire/ratelimit/internal/redisexec"
)

// A batch is calls that are sent together, in the order in which they came. Once it is
// sent, only its outcomes change.
type batch struct {
	mixed bool // not only takes: many.lua does not know it
	cost  int  // estimate of the execution

	limits []*Limit // of the runs
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

// A run is operations of one kind on a key that follow one another and ask for the same
// number of permits. It takes a cache line.
type run struct {
	key        string // the key's name in Redis, in the key's first run; empty in the others
	n          count  // permits
	times      count  // requests of its slots: one each, but as many as may be taken of one that takes up to a number
	next       uint16 // index of the key's next run; 0: none
	limit      uint16 // index of its limit
	op         redisexec.Op
	words      []int64 // the outcome
	exceptions *exceptions
}

// exceptions holds what few runs need.
type exceptions struct {
	detail *redisexec.Detail // of a run that is one call
	left   []place           // of calls whose callers left before the batch was sent
	err    error             // the outcome
}

// A slot is a call's place in a batch.
type slot struct {
	batch *batch
	run   int
	place
}

// A place is where a call stands in its run: the number of its first request, and how many
// requests it has.
type place struct{ first, times int }

// cancelCost is that of a cancel among many that wait in the state, see the block cancel.
const cancelCost = 200

// A count is below 2^40: exact.Permits and more.
type count [5]byte

func countOf(n int) (c count) {
	binary.LittleEndian.PutUint32(c[:], uint32(n))
	c[4] = byte(uint64(n) >> 32)
	return c
}

func (c count) int() int { return int(uint64(binary.LittleEndian.Uint32(c[:])) | uint64(c[4])<<32) }

// maxTimes keeps the requests of a run within its counter.
const maxTimes = min(1<<40-1, math.MaxInt)

// noDeadline is later than any deadline.
const noDeadline time.Duration = math.MaxInt64

func newBatch() *batch { return &batch{done: make(chan struct{})} }

// join gives a call a slot in the latest run, if that run is for the same key and as
// many permits, as it often is with a hot key.
func (b *batch) join(l *Limit, key string, o redisexec.Operation, deadline time.Duration) (slot, bool) {
	if b.calls == maxCalls || b.key != key || b.limitOf(b.latest) != l || !b.runs[b.latest].takes(o) || !b.afford(o.N*o.Times*l.Exec.Cost.Permit) {
		return slot{}, false
	}
	return b.newSlot(o.Times, deadline), true
}

// limitOf is the limit of a run.
func (b *batch) limitOf(run int) *Limit { return b.limits[b.runs[run].limit] }

// takes reports whether a call may join r.
func (r *run) takes(o redisexec.Operation) bool {
	return r.n.int() == o.N && r.op == o.Op && !o.Op.Own() && r.times.int() <= maxTimes-o.Times
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
func (b *batch) newSlot(times int, deadline time.Duration) slot {
	r := &b.runs[b.latest]
	s := slot{b, b.latest, place{r.times.int(), times}}
	r.times = countOf(r.times.int() + times)
	b.calls++
	b.callers++
	b.deadline = max(b.deadline, deadline)
	return s
}

// add gives a call a slot, unless the batch has no room for the call or its key, or would
// cost too much with it. last maps each key to its last run. Where that is of another limit of the
// same key, the call begins a list of its own behind it.
func (b *batch) add(ctx context.Context, l *Limit, key string, o redisexec.Operation, deadline time.Duration, last map[lastKey]int) (slot, bool) {
	at, price := l.last(key), &l.Exec.Cost
	i, known := last[at]
	known = known && b.limitOf(i) == l
	joins := known && b.runs[i].takes(o)
	cost := o.N * o.Times * price.Permit
	if !known {
		cost += price.Key
	}
	if !joins && (known || o.N > 1) {
		cost += price.Run
	}
	if o.Op.Apart() { // it is loaded on its own, and so is what comes after it
		cost += 2 * price.Key
	}
	switch o.Op {
	case redisexec.GiveBack:
		cost += price.Back
	case redisexec.Cancel:
		cost += cancelCost
	}
	if b.calls == maxCalls || !known && b.keys == maxKeys || !b.afford(cost) {
		return slot{}, false
	}
	if b.calls == 0 {
		b.first = ctx
	}
	if !joins {
		r := run{n: countOf(o.N), op: o.Op, limit: b.indexOf(l)}
		if o.Op.Own() {
			r.exceptions = &exceptions{detail: o.Detail}
		}
		b.mixed = b.mixed || o.Op != redisexec.Take
		next := len(b.runs)
		if known {
			b.runs[i].next = uint16(next)
		} else {
			r.key = l.Name(key)
			b.keys++
		}
		if next == cap(b.runs) {
			b.runs = slices.Grow(b.runs, min(max(2, 3*next), maxCalls-next)) // doubling would leave more garbage
		}
		b.runs = append(b.runs, r)
		last[at] = next
		i = next
	}
	b.key, b.latest = key, i
	return b.newSlot(o.Times, deadline), true
}

// indexOf returns the index of a limit, which it adds to the others.
func (b *batch) indexOf(l *Limit) uint16 {
	if n := len(b.limits); n > 0 && b.limits[n-1] == l {
		return uint16(n - 1)
	}
	i := slices.Index(b.limits, l)
	if i < 0 {
		i = len(b.limits)
		b.limits = append(b.limits, l)
	}
	return uint16(i)
}

// leave takes the call out of the batch, before the batch is sent.
func (s slot) leave() {
	e := s.batch.runs[s.run].except()
	e.left = append(e.left, s.place)
	s.batch.callers--
}

// outcome is the outcome of the slot's call: the reply to its run with the index of the call's
// first request in that run, or an error.
func (s slot) outcome() (redisexec.Reply, error) {
	r := &s.batch.runs[s.run]
	if r.exceptions == nil {
		return redisexec.Reply{Words: r.words, Index: int64(s.first)}, nil
	}
	if err := r.exceptions.err; err != nil {
		return redisexec.Reply{}, err
	}
	first := s.first
	for _, left := range r.exceptions.left {
		if left.first < s.first {
			first -= left.times
		}
	}
	return redisexec.Reply{Words: r.words, Index: int64(first)}, nil
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

// pending counts the requests of r that have no outcome yet.
func (r *run) pending() int {
	switch {
	case r.words != nil:
		return 0
	case r.exceptions == nil:
		return r.times.int()
	case r.exceptions.err != nil:
		return 0
	}
	times := r.times.int()
	for _, left := range r.exceptions.left {
		times -= left.times
	}
	return times
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

// single reports whether just one request is pending for the key.
func (b *batch) single(key int) bool {
	requests := 0
	for r := range b.runsOf(key) {
		requests += r.pending()
	}
	return requests == 1
}

// operation is what the pending calls of r ask for.
func (r *run) operation() redisexec.Operation {
	o := redisexec.Operation{Op: r.op, N: r.n.int(), Times: r.pending()}
	if o.Op.Own() {
		o.Detail = r.exceptions.detail
	}
	return o
}

// requests is what a key's pending calls ask for, as many.lua and operations.lua read it: runs
// of equal requests.
func (b *batch) requests(key int) any {
	if !b.mixed && b.firstOf(key).n.int() == 1 && b.single(key) {
		return "1" // for many.lua
	}
	var runs []byte
	for r := range b.runsOf(key) {
		if runs != nil {
			runs = append(runs, ',')
		}
		runs = r.operation().Append(runs)
	}
	return runs
}
