package simulate

import "github.com/tryacquire/ratelimit"

// keys are the states of the keys of a limiter, of whatever kind these are.
type keys interface {
	decide(now int64, key string, n int64, peek bool) ratelimit.Result
	reset(key string)
	len() int
	most() int // the most permits of one call
}

// A decider decides by an algorithm whose state for a key is an S. The zero S is that of an
// unused key. now is in microseconds since 1970.
type decider[S any] interface {
	// decide asks for n permits. With peek it does not change the state.
	decide(s *S, now, n int64, peek bool) ratelimit.Result

	// unused reports whether the state decides at now, and later, as that of an unused key.
	unused(s *S, now int64) bool
}

// sweepFrom is the number of keys from which on unused ones are removed.
const sweepFrom = 1024

// A table holds the states of keys.
type table[S any] struct {
	decider[S]
	ceiling int
	states  map[string]*S
	sweepAt int // the number of keys at which unused ones are removed
}

func newTable[S any](most int, d decider[S]) *table[S] {
	return &table[S]{decider: d, ceiling: most, states: map[string]*S{}, sweepAt: sweepFrom}
}

func (t *table[S]) decide(now int64, key string, n int64, peek bool) ratelimit.Result {
	s, found := t.states[key]
	if found {
		return t.decider.decide(s, now, n, peek)
	}
	s = new(S)
	if !peek { // the first call of a key is always allowed
		if len(t.states) >= t.sweepAt {
			t.sweep(now)
		}
		t.states[key] = s
	}
	return t.decider.decide(s, now, n, peek)
}

// sweep removes the keys that decide as unused ones.
func (t *table[S]) sweep(now int64) {
	for key, s := range t.states {
		if t.unused(s, now) {
			delete(t.states, key)
		}
	}
	t.sweepAt = max(2*len(t.states), sweepFrom)
}

func (t *table[S]) reset(key string) { delete(t.states, key) }
func (t *table[S]) len() int         { return len(t.states) }
func (t *table[S]) most() int        { return t.ceiling }
