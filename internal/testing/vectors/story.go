package vectors

import (
	"strings"
	"time"
)

// A step is an operation, so long after the one before it. What it shows stands beside it in the file.
type step struct {
	after     time.Duration // below 0: the clock steps back
	operation string        // and behind a space the last argument of a call under an id, a tenant, or another rule
	about     string
}

// tell makes the cases of chosen steps.
func (h *history) tell(steps []step) []Case {
	for _, s := range steps {
		h.now += s.after.Microseconds()
		h.do(h.now, s.operation, s.about)
	}
	return h.cases
}

// A keeper is a model of a key, or of two, that does operations of its own and says what the keys hold.
type keeper interface {
	// operate does the operation of a case, and adds the reply, and the Result if the reply becomes one.
	operate(now int64, c *Case)

	// keys are what the keys of a case hold, after the operations up to now.
	keys(*Case) []*kept
}

// kept is what a key holds, nil if there is none, and until when, in milliseconds.
type kept struct {
	state   any
	expires int64
}

// write stores a state for so many milliseconds.
func (k *kept) write(now int64, state any, ttl int64) { k.state, k.expires = state, now/1000+ttl }

func (k *kept) delete() { *k = kept{} }

// at is what the key holds now, and its TTL.
func (k *kept) at(now int64) (state any, ttl int64) {
	if k.state == nil || k.expires <= now/1000 {
		k.delete()
		return nil, 0
	}
	return k.state, k.expires - now/1000
}

// narrate makes the cases of chosen steps.
func narrate(of keeper, steps []step) (cases []Case) {
	now := int64(start)
	for _, s := range steps {
		now += s.after.Microseconds()
		c := Case{About: s.about, Clock: now}
		c.Operation, c.ID, _ = strings.Cut(s.operation, " ")
		keys := of.keys(&c)
		c.Before, c.TTLBefore = keys[0].at(now)
		if len(keys) > 1 {
			c.Beside = &Change{}
			c.Beside.Before, c.Beside.TTLBefore = keys[1].at(now)
		}
		of.operate(now, &c)
		if c.Args != nil {
			c.Result = nil // the group's limiter has another rule
		}
		c.After, c.TTL = keys[0].at(now)
		if len(keys) > 1 {
			c.Beside.After, c.Beside.TTL = keys[1].at(now)
		}
		cases = append(cases, c)
	}
	return cases
}
