package ratelimit

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit/internal/script"
)

// A merger sends the calls of one limiter that arrive while others are in flight
// together, in the next execution: what one execution costs the server and the
// client is then shared by all of them.
//
// A call that finds nothing in flight goes at once. There is no timer: calls
// wait for the next landing, or for a call that arrives when the last take-off
// was a while ago, so that waiting costs little where the network is slow. The
// goroutine of a flight ends when nothing waits.
type merger struct {
	c     *core
	fleet pipeliner // pipelines where keys may live on several servers, else nil

	mu      sync.Mutex // guards all below
	waiting []*passenger
	flying  int
	tookOff time.Duration // of the last flight, since epoch
}

const (
	maxFlying = 16                     // flights at a time
	maxKeys   = 128                    // keys of a flight: a server does nothing else meanwhile
	headway   = 200 * time.Microsecond // between take-offs while others are in flight
)

type pipeliner interface{ Pipeline() redis.Pipeliner }

// A passenger is one call on its way.
type passenger struct {
	ctx  context.Context
	key  string
	n    int
	next *passenger // of the same key

	gone bool // gave up before take-off; guarded by merger.mu

	// What the flight brings back.
	words   []int64
	index   int64 // of the call within its run
	err     error
	arrived chan struct{}
}

var passengers = sync.Pool{New: func() any {
	return &passenger{arrived: make(chan struct{}, 1)}
}}

var epoch = time.Now()

func newMerger(c *core) *merger {
	m := &merger{c: c}
	switch client := c.client.(type) {
	case *redis.ClusterClient:
		m.fleet = client
	case *redis.Ring:
		m.fleet = client
	}
	return m
}

// acquire takes n permits from key, with whoever else is waiting.
func (m *merger) acquire(ctx context.Context, key string, n int) (Result, error) {
	m.mu.Lock()
	if m.flying == 0 && ctx.Done() == nil {
		m.flying, m.tookOff = 1, time.Since(epoch)
		m.mu.Unlock()
		defer m.land() // also when a hook of the client panics
		return m.c.alone(ctx, m.c.one, key, n)
	}
	p := passengers.Get().(*passenger)
	p.ctx, p.key, p.n, p.next, p.gone = ctx, key, n, nil, false
	m.waiting = append(m.waiting, p)
	var flight *flight
	if m.mayTakeOff() {
		flight = m.board()
		m.flying++
	}
	m.mu.Unlock()
	if flight != nil {
		go m.fly(flight)
	}
	return m.await(ctx, p)
}

// await returns what the flight brings, or the context's error as soon as it
// ends. Who gives up before the take-off is not sent at all.
func (m *merger) await(ctx context.Context, p *passenger) (Result, error) {
	if ctx.Done() == nil {
		<-p.arrived
	} else {
		select {
		case <-p.arrived:
		case <-ctx.Done():
			m.mu.Lock()
			p.gone = true
			m.mu.Unlock()
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
	p.ctx, p.key, p.words, p.err = nil, "", nil, nil
	passengers.Put(p)
	return r, err
}

// mayTakeOff is called with mu held.
func (m *merger) mayTakeOff() bool {
	return m.flying == 0 || m.flying < maxFlying && time.Since(epoch)-m.tookOff >= headway
}

// board puts those who wait on a flight, in their order, as far as its keys
// allow. It is called with mu held, and returns nil if nobody waits.
func (m *merger) board() *flight {
	f := flights.Get().(*flight)
	done := 0
	for _, p := range m.waiting {
		if !p.gone && !f.board(p, m.c.prefix) {
			break
		}
		done++
	}
	rest := copy(m.waiting, m.waiting[done:])
	clear(m.waiting[rest:])
	m.waiting = m.waiting[:rest]
	if f.seats == 0 {
		f.clear()
		return nil
	}
	m.tookOff = time.Since(epoch)
	return f
}

// land ends a flight of a single call, and starts another for those who came
// meanwhile.
func (m *merger) land() {
	if f := m.turnAround(); f != nil {
		go m.fly(f)
	}
}

// turnAround is the next flight of one that has landed, or nil when there is none.
func (m *merger) turnAround() *flight {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.board()
	if f == nil {
		m.flying--
	}
	return f
}

func (m *merger) fly(f *flight) {
	for f != nil {
		m.execute(f)
		seats := f.seats
		f.clear()
		if seats > 1 {
			m.gather(seats)
		}
		f = m.turnAround()
	}
}

// gather lets those who were just answered run, for as long as they come to wait
// again: a flight that took off at once would leave nearly empty. Nobody is
// waited for who is not about to run.
func (m *merger) gather(most int) {
	for last := -1; ; {
		runtime.Gosched()
		m.mu.Lock()
		now := len(m.waiting)
		m.mu.Unlock()
		if now >= most || now <= last {
			return
		}
		last = now
	}
}

// execute flies f and brings everybody an answer.
func (m *merger) execute(f *flight) {
	switch {
	case f.seats == 1:
		m.flyAlone(f.groups[0].first)
	case m.fleet != nil:
		m.flyApart(f)
	default:
		m.flyTogether(f)
	}
}

// flyAlone sends one call by itself.
func (m *merger) flyAlone(p *passenger) {
	r := calls.Get().(*call)
	defer calls.Put(r)
	err := m.c.ask(p.ctx, m.c.one, p.key, p.n, r)
	if err == nil {
		p.words, p.index = slices.Clone(r.words), 0
	}
	p.arrive(err)
}

// flyTogether runs all of f in one execution.
func (m *merger) flyTogether(f *flight) {
	ctx := context.Background() // of nobody in particular
	var reply []int64
	args, err := m.c.manyArgs(f.args[:0], f.groups)
	f.args = args
	if err == nil {
		reply, err = m.c.askMany(ctx, args)
	}
	for _, g := range f.groups {
		reply = m.answer(g, reply, err)
	}
}

// flyApart runs each key of f in an execution of its own, in one pipeline for
// each server.
func (m *merger) flyApart(f *flight) {
	ctx := context.Background() // of nobody in particular
	pipe := m.fleet.Pipeline()
	cmds := make([]*redis.IntSliceCmd, len(f.groups))
	var err error
	for i := range f.groups {
		var args []any
		args, err = m.c.manyArgs(nil, f.groups[i:i+1])
		if err != nil {
			break
		}
		cmds[i] = redis.NewIntSliceCmd(ctx, args...)
		_ = pipe.Process(ctx, &script.Once{Cmder: cmds[i]})
	}
	if err == nil {
		_, _ = pipe.Exec(ctx) // each command knows its own error
	}
	for i, g := range f.groups {
		if err != nil {
			m.answer(g, nil, err)
			continue
		}
		reply, err := cmds[i].Result()
		if script.IsUnknown(err) {
			reply, err = m.c.askMany(ctx, cmds[i].Args())
		}
		m.answer(g, reply, err)
	}
}

// answer brings the calls of g their part of the reply, or the error, and
// returns the rest of the reply.
func (m *merger) answer(g group, reply []int64, err error) []int64 {
	if err == nil && len(reply) > 0 && reply[0] < 0 {
		// The key could not be read or written, and was left as it was. Asked
		// alone, each call gets the reason.
		for p := g.first; p != nil; {
			next := p.next
			m.flyAlone(p)
			p = next
		}
		return reply[1:]
	}
	for p := g.first; p != nil; {
		if err == nil && len(reply) < m.c.words {
			err = replyError("a reply that ends too soon")
		}
		var words []int64
		if err == nil {
			words, reply = reply[:m.c.words], reply[m.c.words:]
		}
		n := p.n
		for index := int64(0); p != nil && p.n == n; index++ {
			next := p.next // before p is somebody else's
			p.words, p.index = words, index
			p.arrive(err)
			p = next
		}
	}
	return reply
}

func (p *passenger) arrive(err error) {
	p.err = err
	p.arrived <- struct{}{} // never blocks: it has room for the one arrival
}
