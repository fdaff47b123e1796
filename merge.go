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

	common lane     // where all keys live on one server, or it is not known on which
	lanes  sync.Map // *redis.Client to *lane
	// route tells the server of a key, nil if there is but one. It may be slow
	// until a first flight has found out about the servers.
	route  func(ctx context.Context, key string) (*redis.Client, error)
	routed atomic.Bool
}

type pipeliner interface{ Pipeline() redis.Pipeliner }

func newMerger(c *core) *merger {
	m := &merger{c: c}
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
		return &m.common
	}
	server, err := m.route(ctx, m.c.prefix+key)
	if err != nil {
		return &m.common
	}
	l, ok := m.lanes.Load(server)
	if !ok {
		l, _ = m.lanes.LoadOrStore(server, new(lane))
	}
	return l.(*lane)
}

// learn takes note that a server has answered, and so that routes are known.
func (m *merger) learn(err error) {
	if err == nil && !m.routed.Load() {
		m.routed.Store(true)
	}
}

// acquire takes n permits from key, with whoever else is waiting.
func (m *merger) acquire(ctx context.Context, key string, n int) (Result, error) {
	l := m.lane(ctx, key)
	p := passengers.Get().(*passenger)
	p.ctx, p.key, p.n = ctx, key, n
	f, alone := l.enter(p, m, ctx.Done() == nil)
	if alone {
		p.release()
		defer func() { m.start(l, l.land(m)) }() // also when a hook of the client panics
		r, err := m.c.alone(ctx, m.c.one, key, n)
		m.learn(err)
		return r, err
	}
	m.start(l, f)
	return m.await(ctx, l, p)
}

// await returns what the flight brings, or the context's error as soon as it
// ends. Who gives up before the take-off is not sent at all.
func (m *merger) await(ctx context.Context, l *lane, p *passenger) (Result, error) {
	if ctx.Done() == nil {
		<-p.arrived
	} else {
		select {
		case <-p.arrived:
		case <-ctx.Done():
			l.leave(p)
			return Result{}, m.c.failed(ctx, p.key, ctx.Err()) // p may still be on board
		}
	}
	var r Result
	err := p.err
	if err != nil {
		err = m.c.failed(ctx, p.key, err)
	} else {
		r = m.c.explain(p.words, int64(p.n), p.index)
	}
	p.release()
	return r, err
}

// start flies f, if there is one, and all that follow it.
func (m *merger) start(l *lane, f *flight) {
	if f != nil {
		go m.fly(l, f)
	}
}

func (m *merger) fly(l *lane, f *flight) {
	for f != nil {
		m.execute(f)
		seats := f.seats
		f.clear()
		if seats > 1 {
			l.gather(seats)
		}
		f = l.land(m)
	}
}
