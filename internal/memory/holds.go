package memory

import (
	"sync"
	"time"

	"github.com/tryacquire/ratelimit/internal/decision"
)

// Held are the permits of keys that are held, under one limit or several, see [Holds].
type Held struct {
	number int64 // see lock

	mu    sync.Mutex // guards what follows
	held  map[string]int
	named map[named]int // the permits of holds with an ID, which held has too
}

type named struct{ key, id string }

// Found says whether a hold of an ID was there.
type Found int

const (
	None  Found = iota // or the call has no ID
	Same               // with as many permits: no more are taken
	Other              // with another number of permits: the call is denied
)

// NewHeld returns a place for permits that are held.
func NewHeld() *Held {
	return &Held{number: number(), held: map[string]int{}, named: map[named]int{}}
}

// Release gives n permits back. Those of a hold with an ID come back once.
func (h *Held) Release(key, id string, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if id != "" {
		n = h.named[named{key, id}]
		delete(h.named, named{key, id})
	}
	if h.held[key] -= n; h.held[key] <= 0 {
		delete(h.held, key)
	}
}

// Holds are held permits under one limit.
type Holds struct {
	*Held
	Limit int
	Retry time.Duration // the RetryAfter of a denial: nobody knows when a hold is released
}

func (h *Holds) ask(q *Question, take bool) {
	of, free := named{q.Key, q.ID}, h.Limit-h.held[q.Key]
	q.Answer = decision.Result{Allowed: q.N <= free, Limit: h.Limit, Remaining: max(free, 0)}
	if q.ID != "" && !take {
		switch n := h.named[of]; n {
		case 0:
		case q.N:
			q.Found = Same
		default:
			q.Found = Other
		}
	}
	switch {
	case q.Found == Same:
		q.Answer.Allowed = true
	case q.Found == Other || !q.Answer.Allowed:
		q.Answer.Allowed = false
		q.Answer.RetryAfter, q.Answer.ResetAfter = h.Retry, h.Retry
	case take:
		h.held[q.Key] += q.N
		q.Answer.Remaining -= q.N
		if q.ID != "" {
			h.named[of] = q.N
		}
	}
}
