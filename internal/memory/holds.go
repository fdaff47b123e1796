package memory

import (
	"sync"
	"time"

	"github.com/tryacquire/ratelimit/internal/decision"
)

// Held are the permits of keys that are held, under one limit or several, see [Holds].
type Held struct {
	number int64 // see lock

	mu   sync.Mutex // guards what follows
	held map[string]int
}

// NewHeld returns a place for permits that are held.
func NewHeld() *Held { return &Held{number: number(), held: map[string]int{}} }

// Release gives n permits back.
func (h *Held) Release(key string, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
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

func (h *Holds) look(key string, n int, take bool) decision.Result {
	free := h.Limit - h.held[key]
	r := decision.Result{Allowed: n <= free, Limit: h.Limit, Remaining: max(free, 0)}
	switch {
	case !r.Allowed:
		r.RetryAfter, r.ResetAfter = h.Retry, h.Retry
	case take:
		h.held[key] += n
		r.Remaining -= n
	}
	return r
}
