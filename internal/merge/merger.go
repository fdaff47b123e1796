// Package merge sends calls together, in one execution, when they wait at the same time:
// they share what an execution costs the server and the client.
//
// A [Merger] makes the calls of one limiter. Its [Queues] are those of a client, which the
// limiters of one algorithm share: one queue for each server. A queue collects
// calls in batches and decides when a batch is sent. A sender executes a batch and
// fills in its outcomes. Queues know the sender; the sender knows batches only.
package merge

import (
	"context"
	"sync"

	"github.com/tryacquire/ratelimit/internal/redisclient"
	"github.com/tryacquire/ratelimit/internal/redisexec"
)

// A Merger sends the calls of one limiter.
type Merger struct {
	limit *Limit
	*Queues
}

// Queues are those of a client. Each server has one, so that calls for different servers do not
// wait for one another.
type Queues struct {
	sender *sender

	servers redisclient.Merging // nil: there is only one server

	common *queue   // for keys of a single server, and for keys whose server is not known
	queues sync.Map // a server to its *queue
	opened struct {
		sync.Mutex
		count, limit int // number of queues; at limit, open drops the unused ones
	}
}

// New returns a merger whose calls exec executes, with queues of its own. name is what the keys of
// the calls are named in Redis.
func New(exec *redisexec.Executor, name func(key string) string) *Merger {
	return NewQueues(exec.Client).Merger(&Limit{Exec: exec, Name: name})
}

// NewQueues returns the queues of a client.
func NewQueues(client redisclient.Client) *Queues {
	q := &Queues{sender: newSender(client)}
	q.common = q.newQueue()
	if servers := q.sender.client; servers != nil && servers.Several() {
		q.servers = servers
		q.sender.pipelined.Store(true)
	}
	return q
}

// Merger returns a merger for the calls of a limiter. All limiters of q have the client of q, and
// the same scripts, among them those of several limits.
func (q *Queues) Merger(limit *Limit) *Merger { return &Merger{limit, q} }

// Acquire takes n permits from key, in one execution with other calls that wait. It
// returns the context's error as soon as ctx ends. The caller calls Done on the reply.
func (m *Merger) Acquire(ctx context.Context, key string, n int) (redisexec.Reply, error) {
	return m.Operate(ctx, key, take(n))
}

func take(n int) redisexec.Operation {
	return redisexec.Operation{Op: redisexec.Take, N: n, Times: 1}
}

// Operate is Acquire for an operation of any kind.
func (m *Merger) Operate(ctx context.Context, key string, o redisexec.Operation) (redisexec.Reply, error) {
	return m.queue(ctx, key).operate(ctx, m.limit, key, o)
}

func (q *Queues) newQueue() *queue { return &queue{sender: q.sender} }

// queue is the queue of the calls for a key.
func (m *Merger) queue(ctx context.Context, key string) *queue {
	if m.servers == nil || !m.sender.answered.Load() { // before a reply, the client would look for the servers
		return m.common
	}
	server, err := m.servers.Server(ctx, m.limit.route(key))
	if err != nil {
		return m.common
	}
	if q, ok := m.queues.Load(server); ok {
		return q.(*queue)
	}
	return m.open(server)
}

// open adds a queue, and drops the unused ones when their number has about doubled:
// servers come and go, and each has another client. A call that has just looked up a
// queue that is then dropped is sent from that queue.
func (all *Queues) open(server any) *queue {
	o := &all.opened
	o.Lock()
	defer o.Unlock()
	if o.count >= o.limit {
		o.count = 0
		all.queues.Range(func(server, q any) bool {
			if q.(*queue).idle() {
				all.queues.Delete(server)
			} else {
				o.count++
			}
			return true
		})
		o.limit = 2*o.count + 64
	}
	q, known := all.queues.LoadOrStore(server, all.newQueue())
	if !known {
		o.count++
	}
	return q.(*queue)
}
