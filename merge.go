package ratelimit

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// A merger sends the calls of one limiter that arrive while others are in flight
// together, in the next execution: what one execution costs the server and the
// client is then shared by all of them.
//
// Calls for different servers do not wait for one another: each server has a
// lane. Where a lane has nothing in flight a call goes at once.
type merger struct {
	c     *core
	fleet pipeliner
	apart atomic.Bool // keys may live on several servers: pipeline, an execution each

	common *lane    // where all keys live on one server, or it is not known on which
	lanes  sync.Map // *redis.Client to *lane
	opened struct {
		sync.Mutex
		lanes, most int // how many there are, and may be before those of servers that are gone are looked for
	}
	// route tells the server of a key, nil if there is but one. It may be slow
	// until a first flight has found out about the servers.
	route  func(ctx context.Context, key string) (*redis.Client, error)
	routed atomic.Bool
}

type pipeliner interface{ Pipeline() redis.Pipeliner }

func newMerger(c *core) *merger {
	m := &merger{c: c}
	m.common = &lane{m: m}
	m.fleet, _ = c.client.(pipeliner)
	switch client := c.client.(type) {
	case *redis.ClusterClient:
		m.apart.Store(true)
		m.route = client.MasterForKey
	case *redis.Ring:
		m.apart.Store(true)
		m.route = func(_ context.Context, key string) (*redis.Client, error) { return client.GetShardClientForKey(key) }
	}
	return m
}

// lane is where the calls for a key wait.
func (m *merger) lane(ctx context.Context, key string) *lane {
	if m.route == nil || !m.routed.Load() {
		return m.common
	}
	server, err := m.route(ctx, m.c.prefix+key)
	if err != nil {
		return m.common
	}
	l, ok := m.lanes.Load(server)
	if !ok {
		l = m.open(server)
	}
	return l.(*lane)
}

// open adds a lane, and now and then closes those where nobody is: servers come and
// go, and each is another client. Who holds a closed one flies from there once.
func (m *merger) open(server *redis.Client) any {
	o := &m.opened
	o.Lock()
	defer o.Unlock()
	if o.lanes >= o.most {
		o.lanes = 0
		m.lanes.Range(func(server, l any) bool {
			if l.(*lane).idle() {
				m.lanes.Delete(server)
			} else {
				o.lanes++
			}
			return true
		})
		o.most = 2*o.lanes + 64
	}
	l, known := m.lanes.LoadOrStore(server, &lane{m: m})
	if !known {
		o.lanes++
	}
	return l
}

// learn takes note that a server has answered, and so that routes are known.
func (m *merger) learn(err error) {
	if err == nil && !m.routed.Load() {
		m.routed.Store(true)
	}
}

// acquire takes n permits from key, with whoever else is waiting. It returns what
// the flight brings, or the context's error as soon as it ends.
func (m *merger) acquire(ctx context.Context, key string, n int) (Result, error) {
	l := m.lane(ctx, key)
	itself, patience := ctx.Done() == nil, endless
	if !itself {
		if deadline, ok := ctx.Deadline(); ok {
			patience = deadline.Sub(epoch)
		}
	}
	s, f, alone := l.enter(ctx, key, n, patience, itself)
	if alone {
		return m.alone(ctx, l, key, n)
	}
	l.start(f)
	if itself {
		<-s.flight.landed
	} else {
		select {
		case <-s.flight.landed:
		case <-ctx.Done():
			l.leave(s) // and is not sent, if it was waiting for the take-off
			return Result{}, m.c.failed(ctx, key, ctx.Err())
		}
	}
	return m.result(ctx, s, key, n)
}

// result is what the flight has brought a call.
func (m *merger) result(ctx context.Context, s seat, key string, n int) (Result, error) {
	words, index, err := s.outcome()
	if err != nil {
		return Result{}, m.c.failed(ctx, key, err)
	}
	return m.c.explain(words, int64(n), index), nil
}

// alone makes a call that goes by itself.
func (m *merger) alone(ctx context.Context, l *lane, key string, n int) (Result, error) {
	defer func() { l.start(l.land(1)) }() // also when a hook of the client panics
	r, err := m.c.alone(ctx, m.c.one, key, n)
	m.learn(err)
	return r, err
}
