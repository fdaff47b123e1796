package ratelimit

import (
	"context"
	"iter"
	"math"
	"slices"
	"strconv"
	"time"
)

// A flight is calls that go together, in the order in which they came. All but
// the outcomes is settled when it takes off.
type flight struct {
	runs   []run
	keys   int    // that the runs are for
	latest int    // run that somebody joined
	key    string // of that one

	handed   int             // seats handed out
	seats    int             // of those, the ones of callers who still wait
	first    context.Context // of the first call
	patience time.Duration   // of the most patient call
	departed bool

	landed chan struct{} // closed when the outcomes are there
}

// A run is the calls for a key that follow one another and ask for equal permits.
// It takes a cache line.
type run struct {
	key   string  // its name in Redis, in the key's first run
	n     int32   // permits; below maxCount
	seats int32   // handed out, numbered from 0
	next  int32   // run of the key; 0: none
	words []int64 // the outcome
	odd   *oddity
}

// An oddity is what few runs have.
type oddity struct {
	gone  []int     // seats whose callers gave up before the take-off
	alone [][]int64 // words for the first calls, each asked for by itself
	err   error     // the outcome of the rest
}

// A seat is a call's place on a flight.
type seat struct {
	flight      *flight
	run, number int
}

// endless is the patience of who has no deadline.
const endless time.Duration = math.MaxInt64

func newFlight() *flight { return &flight{landed: make(chan struct{})} }

// join gives a call a seat in the latest run, if it fits there, as it does on a
// hot key. The patience is the caller's deadline, since epoch.
func (f *flight) join(key string, n int, patience time.Duration) (seat, bool) {
	if f.handed == maxSeats || f.key != key || int(f.runs[f.latest].n) != n {
		return seat{}, false
	}
	return f.sit(patience), true
}

// sit gives a call a seat in the latest run.
func (f *flight) sit(patience time.Duration) seat {
	r := &f.runs[f.latest]
	s := seat{f, f.latest, int(r.seats)}
	r.seats++
	f.handed++
	f.seats++
	f.patience = max(f.patience, patience)
	return s
}

// board gives a call a seat, unless it is one too many or its key is. last tells
// each key's last run; keys in Redis begin with prefix.
func (f *flight) board(ctx context.Context, prefix, key string, n int, patience time.Duration, last map[string]int) (seat, bool) {
	i, known := last[key]
	if f.handed == maxSeats || !known && f.keys == maxKeys {
		return seat{}, false
	}
	if f.handed == 0 {
		f.first = ctx
	}
	if !known || int(f.runs[i].n) != n {
		r := run{n: int32(n)}
		next := len(f.runs)
		if known {
			f.runs[i].next = int32(next)
		} else {
			r.key = prefix + key
			f.keys++
		}
		if next == cap(f.runs) {
			f.runs = slices.Grow(f.runs, min(max(2, 3*next), maxSeats-next)) // doubling would leave more garbage
		}
		f.runs = append(f.runs, r)
		last[key] = next
		i = next
	}
	f.key, f.latest = key, i
	return f.sit(patience), true
}

// leave gives the seat back, before the take-off.
func (s seat) leave() {
	odd := s.flight.runs[s.run].oddity()
	odd.gone = append(odd.gone, s.number)
	s.flight.seats--
}

// outcome is what the flight brought the seat: the words of a run, and the call's
// place in that run.
func (s seat) outcome() (words []int64, index int64, err error) {
	r := &s.flight.runs[s.run]
	if r.odd == nil {
		return r.words, int64(s.number), nil
	}
	place := s.number
	for _, gone := range r.odd.gone {
		if gone < s.number {
			place--
		}
	}
	alone := r.odd.alone
	if place < len(alone) {
		return alone[place], 0, nil
	}
	return r.words, int64(place - len(alone)), r.odd.err
}

func (r *run) oddity() *oddity {
	if r.odd == nil {
		r.odd = &oddity{}
	}
	return r.odd
}

// unanswered counts the calls of r without an outcome.
func (r *run) unanswered() int {
	switch {
	case r.words != nil:
		return 0
	case r.odd == nil:
		return int(r.seats)
	case r.odd.err != nil:
		return 0
	}
	return int(r.seats) - len(r.odd.gone) - len(r.odd.alone)
}

// of yields the runs of the key whose first run is at index first, without those
// that have their outcome.
func (f *flight) of(first int) iter.Seq[*run] {
	return func(yield func(*run) bool) {
		for i := first; ; {
			r := &f.runs[i]
			if r.unanswered() > 0 && !yield(r) {
				return
			}
			if i = int(r.next); i == 0 {
				return
			}
		}
	}
}

// pending is the first run of the key without its outcome, or nil.
func (f *flight) pending(key int) *run {
	for r := range f.of(key) {
		return r
	}
	return nil
}

// waiting is the keys that somebody waits for, by the indices of their first runs.
func (f *flight) waiting() []int {
	keys := make([]int, 0, f.keys)
	for i := range f.runs {
		if f.runs[i].key != "" && f.pending(i) != nil {
			keys = append(keys, i)
		}
	}
	return keys
}

// fail gives all who have no outcome the error.
func (f *flight) fail(err error) {
	for i := range f.runs {
		if r := &f.runs[i]; r.unanswered() > 0 {
			r.oddity().err = err
		}
	}
}

// context is the flight's: of nobody in particular, and with the deadline of the
// most patient. A call that nobody joined, not even somebody who left, has its own.
func (f *flight) context() (context.Context, context.CancelFunc) {
	switch {
	case f.handed == 1:
		return f.first, func() {}
	case f.patience == endless:
		return context.Background(), func() {}
	}
	return context.WithDeadline(context.Background(), epoch.Add(f.patience))
}

// single reports whether just one call waits for the key.
func (f *flight) single(key int) bool {
	calls := 0
	for r := range f.of(key) {
		calls += r.unanswered()
	}
	return calls == 1
}

// requests tells the permits of a key's calls as runs of equal ones.
func (f *flight) requests(key int) any {
	if f.pending(key).n == 1 && f.single(key) {
		return "1"
	}
	var runs []byte
	for r := range f.of(key) {
		if runs != nil {
			runs = append(runs, ',')
		}
		runs = strconv.AppendInt(runs, int64(r.n), 10)
		runs = append(runs, 'x')
		runs = strconv.AppendInt(runs, int64(r.unanswered()), 10)
	}
	return runs
}
