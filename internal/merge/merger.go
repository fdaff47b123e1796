// Package merge sends calls of one limiter together, in one execution, when they wait
// at the same time: they share what an execution costs the server and the client.
//
// A [Merger] routes each call to the queue of its key's server. A queue collects
// calls in batches and decides when a batch is sent. A sender executes a batch and
// fills in its outcomes. Queues know the sender; the sender knows batches only.
package merge

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit/internal/redisexec"
)

// A Merger sends the calls of one limiter. Each server has a queue, so that calls for
// different servers do not wait for one another.
type Merger struct {
	name   func(key string) string
	sender *sender

	// route returns the server of a key, by the key's name in Redis. It is nil if there
	// is only one server. It may be slow until a first execution has made the client
	// look for the servers.
	route func(ctx context.Context, name string) (*redis.Client, error)

	common *queue   // for keys of a single server, and for keys whose server is not known
	queues sync.Map // *redis.Client to *queue
	opened struct {
		sync.Mutex
		count, limit int // number of queues; at limit, open drops the unused ones
	}
}

// New returns a merger whose calls exec executes. name is what the keys of the calls are
// named in Redis.
func New(exec *redisexec.Executor, name func(key string) string) *Merger {
	m := &Merger{name: name, sender: newSender(exec)}
	m.common = m.newQueue()
	switch client := exec.Client.(type) {
	case *redis.ClusterClient:
		m.route = client.MasterForKey
	case *redis.Ring:
		m.route = func(_ context.Context, name string) (*redis.Client, error) { return client.GetShardClientForKey(name) }
	}
	if m.route != nil {
		m.sender.pipelined.Store(true)
	}
	return m
}

// NewUnmerged returns a merger that executes each key on its own, for AcquireMany.
func NewUnmerged(exec *redisexec.Executor, name func(key string) string) *Merger {
	m := &Merger{name: name, sender: newSender(exec)}
	m.sender.pipelined.Store(true)
	return m
}

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
	return m.queue(ctx, key).operate(ctx, key, o)
}

func (m *Merger) newQueue() *queue { return &queue{sender: m.sender, name: m.name} }

// queue is the queue of the calls for a key.
func (m *Merger) queue(ctx context.Context, key string) *queue {
	if m.route == nil || !m.sender.answered.Load() {
		return m.common
	}
	server, err := m.route(ctx, m.sender.exec.Route(m.name(key)))
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
func (m *Merger) open(server *redis.Client) *queue {
	o := &m.opened
	o.Lock()
	defer o.Unlock()
	if o.count >= o.limit {
		o.count = 0
		m.queues.Range(func(server, q any) bool {
			if q.(*queue).idle() {
				m.queues.Delete(server)
			} else {
				o.count++
			}
			return true
		})
		o.limit = 2*o.count + 64
	}
	q, known := m.queues.LoadOrStore(server, m.newQueue())
	if !known {
		o.count++
	}
	return q.(*queue)
}
