package waiting

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Lines are the callers of a process that wait for permits in flight, each line in the order in which they came. Only the
// first of a line asks. The zero value has none.
type Lines struct {
	waiting atomic.Int64 // callers in all lines; read without mu

	mu    sync.Mutex // guards what follows, and the lines
	lines map[any]*line
	over  map[Held][]*line // the lines that wait for a release
}

// InFlight are the lines of this process.
var InFlight Lines

// Held are the permits of a key, by what counts them in this process.
type Held struct {
	State any
	Key   string
}

// A line is callers who ask for the same.
type line struct {
	of     any
	places []*place
	over   []Held
	freed  chan struct{} // has one if permits were released since its first caller asked
}

type place struct {
	*line
	first chan struct{} // closed when all who came before have left
}

// A Denial says when it is worth asking again.
type Denial struct {
	Least time.Duration // until which limits deny the call; 0: no limit does
	Ends  time.Duration // until a lease ends, at the latest; 0: that is not known
}

// Add notes that one more limit denies the call, or that places are missing.
func (d *Denial) Add(retryAfter time.Duration, places bool) {
	if places {
		d.Ends = max(d.Ends, retryAfter)
	} else {
		d.Least = max(d.Least, retryAfter)
	}
}

// AtOnce asks if nobody waits in the line, and reports whether ask is done. The time in the line is an attempt too.
func (l *Lines) AtOnce(w *Wait, of any, ask func() (done bool, d Denial)) (done bool) {
	busy := l.busy(of)
	w.Again()
	if !busy {
		done, _ = ask()
	}
	return done
}

func (l *Lines) busy(of any) bool {
	if l.waiting.Load() == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines[of] != nil
}

// InTurn waits in the line until all who came before have left it, and then asks until ask is done: at once when permits
// are released in this process, otherwise after a pause of 10 to 250 ms, as nobody hears of the releases of others. It
// returns the error of ctx if that ends before. w is the wait that ask is an attempt of.
func (l *Lines) InTurn(ctx context.Context, w *Wait, of any, ask func() (done bool, d Denial)) error {
	p := l.join(of)
	defer l.leave(p)
	select {
	case <-p.first:
	case <-ctx.Done():
		return ctx.Err()
	}
	for tries := 0; ; tries++ {
		w.Again()
		done, d := ask()
		if done {
			return nil
		}
		if l.hears(p, w.denials()) { // a release before may not have been heard
			continue
		}
		timer := time.NewTimer(d.pause(tries))
		freed := p.freed
		if d.Least > 0 { // it would be in vain
			freed = nil
		}
		select {
		case <-timer.C:
		case <-freed:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		timer.Stop()
	}
}

const (
	firstPause   = 10 * time.Millisecond
	longestPause = 250 * time.Millisecond
)

// pause is how long a caller waits that has asked so often.
func (d Denial) pause(tries int) time.Duration {
	pause := min(firstPause<<min(tries/2, 8), longestPause)
	pause += rand.N(pause/4 + 1) // so that processes do not ask in step
	if d.Ends > 0 {
		pause = min(pause, max(d.Ends, leastPause))
	}
	if d.Least > 0 {
		pause = max(pause, d.Least+rand.N(min(d.Least/10, mostJitter)+1))
	}
	return pause
}

// Free wakes those who wait for the permits. It costs a load if nobody waits.
func (l *Lines) Free(h Held) {
	if l.waiting.Load() == 0 || h.State == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.over[h] {
		select {
		case line.freed <- struct{}{}:
		default:
		}
	}
}

func (l *Lines) join(of any) *place {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lines == nil {
		l.lines, l.over = map[any]*line{}, map[Held][]*line{}
	}
	at := l.lines[of]
	if at == nil {
		at = &line{of: of, freed: make(chan struct{}, 1)}
		l.lines[of] = at
	}
	p := &place{at, make(chan struct{})}
	if at.places = append(at.places, p); len(at.places) == 1 {
		close(p.first)
	}
	l.waiting.Add(1)
	return p
}

func (l *Lines) leave(p *place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting.Add(-1)
	i := slices.Index(p.places, p)
	switch p.places = slices.Delete(p.places, i, i+1); {
	case len(p.places) == 0:
		delete(l.lines, p.of)
		for _, h := range p.over {
			l.over[h] = slices.DeleteFunc(l.over[h], func(other *line) bool { return other == p.line })
			if len(l.over[h]) == 0 {
				delete(l.over, h)
			}
		}
	case i == 0:
		close(p.places[0].first)
	}
}

// hears lets the line hear of releases of these permits, and reports whether some are new.
func (l *Lines) hears(p *place, of []Held) (some bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range of {
		if !slices.Contains(p.over, h) {
			p.over = append(p.over, h)
			l.over[h] = append(l.over[h], p.line)
			some = true
		}
	}
	return some
}

// Denied notes which permits in flight were missing for an attempt with ctx, if it is one.
func Denied(ctx context.Context, h Held) {
	if w := In(ctx); w != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.missing = append(w.missing, h)
	}
}

// denials is what was missing for the last attempt.
func (w *Wait) denials() []Held {
	w.mu.Lock()
	defer w.mu.Unlock()
	missing := w.missing
	w.missing = nil
	return missing
}
