package merge

import (
	"runtime"
	"sync"
	"weak"

	"github.com/tryacquire/ratelimit/internal/redisclient"
	"github.com/tryacquire/ratelimit/internal/script"
)

// shared are the queues that limiters share, for as long as one of these limiters is in use.
var shared = struct {
	sync.Mutex
	of map[user]weak.Pointer[Queues]
}{of: map[user]weak.Pointer[Queues]{}}

// A user of shared queues is a client and an algorithm, by its script for many requests, and whose clock
// decides.
type user struct {
	client redisclient.Client
	many   *script.Script
	clock  any
}

// Shared returns the queues that the limiters of this client, this script and this clock share. The client
// is a pointer. clock is nil for the server's clock; otherwise values of clock are equal if the clocks are
// one, and keep nothing alive.
func Shared(client redisclient.Client, many *script.Script, clock any) *Queues {
	shared.Lock()
	defer shared.Unlock()
	by := user{client, many, clock}
	if q := shared.of[by].Value(); q != nil {
		return q
	}
	q := NewQueues(client)
	shared.of[by] = weak.Make(q)
	runtime.AddCleanup(q, forget, by)
	return q
}

// forget forgets queues that nobody uses any more, unless others have taken their place.
func forget(by user) {
	shared.Lock()
	defer shared.Unlock()
	if shared.of[by].Value() == nil {
		delete(shared.of, by)
	}
}
