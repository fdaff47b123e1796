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
	of map[sharing]weak.Pointer[Queues]
}{of: map[sharing]weak.Pointer[Queues]{}}

// Limiters share queues if their sharing is the same: the client, the script that decides many requests, which stands for
// the algorithm, and the clock.
type sharing struct {
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
	by := sharing{client, many, clock}
	if q := shared.of[by].Value(); q != nil {
		return q
	}
	q := NewQueues(client)
	shared.of[by] = weak.Make(q)
	runtime.AddCleanup(q, forget, by)
	return q
}

// forget forgets queues that nobody uses any more, unless others have taken their place.
func forget(by sharing) {
	shared.Lock()
	defer shared.Unlock()
	if shared.of[by].Value() == nil {
		delete(shared.of, by)
	}
}
