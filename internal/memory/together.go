package memory

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tryacquire/ratelimit/internal/decision"
)

// A Limit is [Buckets] or [Holds].
type Limit interface {
	// State is the table or the held permits: limits that share it share the states of their keys.
	State() any

	// guard is what guards the state of key. It is locked for the other methods.
	guard(key string) lock
	ask(q *Question, take bool) // with take, at the instant of the first time
	refuse(key string)          // a call was denied for which key was asked
}

// A lock is a mutex, and its place in the order in which several are taken, so that no two calls wait
// for each other.
type lock struct {
	mu    *sync.Mutex
	made  int64 // the number of the table or of the held permits
	shard int
}

var numbers atomic.Int64

// number is the next in the order of locks.
func number() int64 { return numbers.Add(1) }

// A Question is what a call asks of one limit: n permits of a key.
type Question struct {
	Limit  Limit
	Key    string
	N      int
	ID     string // of a hold, in Holds; empty: it has none
	Answer decision.Result
	Found  Found // the hold of that ID

	at int64 // the instant of the answer
}

// Together answers questions about different states, all or nothing: it takes the permits if take is true and all are
// there, and reports whether all are.
func Together(questions []Question, take bool) (allowed bool) {
	locks := make([]lock, 0, 8) // without an allocation for usual calls
	for _, q := range questions {
		locks = append(locks, q.Limit.guard(q.Key))
	}
	slices.SortFunc(locks, func(a, b lock) int { return cmp.Or(cmp.Compare(a.made, b.made), cmp.Compare(a.shard, b.shard)) })
	for _, l := range slices.Compact(locks) {
		l.mu.Lock()
		defer l.mu.Unlock()
	}
	allowed = true
	for i := range questions {
		q := &questions[i]
		q.Limit.ask(q, false)
		allowed = allowed && q.Answer.Allowed
	}
	for i := range questions {
		switch q := &questions[i]; {
		case !take:
		case allowed:
			q.Limit.ask(q, true)
		default:
			q.Limit.refuse(q.Key)
		}
	}
	return allowed
}

// State is the table.
func (b *Buckets) State() any { return b.Table }

func (b *Buckets) guard(key string) lock {
	place := b.place(key)
	return lock{&b.shards[place].mu, b.number, place}
}

func (b *Buckets) ask(q *Question, take bool) {
	if !take {
		q.at = b.now()
	}
	s := state{now: q.at}
	b.loadAt(b.shard(q.Key), q.Key, &s)
	q.Answer = b.look(&s, q.N, take)
}

func (b *Buckets) refuse(key string) {
	var s state
	if b.load(b.shard(key), key, &s); b.empty && s.b == nil {
		b.beginEmpty(&s)
	}
}

// State is the held permits.
func (h *Holds) State() any { return h.Held }

func (h *Holds) guard(string) lock { return lock{&h.mu, h.number, 0} }
func (h *Holds) refuse(string)     {}
