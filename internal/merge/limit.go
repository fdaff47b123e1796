package merge

import (
	"unique"

	"github.com/tryacquire/ratelimit/internal/redisexec"
)

// A Limit is what the calls of one limiter have in common.
type Limit struct {
	Exec *redisexec.Executor
	Name func(key string) string // of a key in Redis
	Tag  func(key string) string // the hash tag of that name, which needs no memory; nil: none is known

	// States is the same for limiters whose keys have the same names, such as the plans of one name:
	// the calls for such a key are decided in the order in which they came. Private limits need none, nor
	// do packed requests, which hold the names of their keys.
	States unique.Handle[string]
}

// A lastKey is the key of a call, by which its place in a batch is found.
type lastKey struct {
	states unique.Handle[string]
	key    string
}

// route is a text in the slot of a key's name.
func (l *Limit) route(key string) string {
	if l.Tag != nil {
		return l.Tag(key)
	}
	return l.Exec.Route(l.Name(key))
}

func (l *Limit) last(key string) lastKey { return lastKey{l.States, key} }
