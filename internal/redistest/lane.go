package redistest

import (
	"bytes"
	"net"
	"sync"
	"time"
)

// lane is one direction of a link: a queue of what has arrived, each with the time at which it is due. The queue has
// no bound, so that a delay does not limit the throughput.
type lane struct {
	proxy *Proxy
	gate  *gate
	wake  chan struct{} // holds a token when the queue may have something
	stop  chan struct{} // closed when the link is cut
	timer timer

	mu    sync.Mutex // guards queue
	queue []item
}

// item is either bytes to be written or something to be done in their order.
type item struct {
	due  time.Time
	data []byte
	do   func()
}

func newLane(p *Proxy, g *gate) *lane {
	return &lane{proxy: p, gate: g, wake: make(chan struct{}, 1), stop: make(chan struct{})}
}

// push queues a copy of the data.
func (l *lane) push(data []byte) {
	if len(data) > 0 {
		l.add(item{data: bytes.Clone(data)})
	}
}

// then queues something to be done once all that was pushed before has been written.
func (l *lane) then(do func()) { l.add(item{do: do}) }

func (l *lane) add(i item) {
	i.due = time.Now().Add(time.Duration(l.proxy.delay.Load()))
	l.mu.Lock()
	l.queue = append(l.queue, i)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default: // a token is there already
	}
}

// abandon ends the writer without writing the rest. It must be called once only.
func (l *lane) abandon() { close(l.stop) }

// write writes what is queued to the connection, each when it is due, until the lane is abandoned. It calls cut when
// the connection fails.
func (l *lane) write(c net.Conn, cut func()) {
	defer l.timer.close()
	for {
		select {
		case <-l.stop:
			return
		case <-l.wake:
		}
		l.mu.Lock()
		queue := l.queue
		l.queue = nil
		l.mu.Unlock()
		for len(queue) > 0 {
			if !l.await(queue[0].due) || !l.gate.await(l.stop) {
				return
			}
			if queue[0].do != nil {
				queue[0].do()
				queue = queue[1:]
				continue
			}
			var due net.Buffers // what is due goes out in one system call
			for now := time.Now(); len(queue) > 0 && queue[0].do == nil && !queue[0].due.After(now); queue = queue[1:] {
				due = append(due, queue[0].data)
			}
			if _, err := due.WriteTo(c); err != nil {
				cut()
				return
			}
		}
	}
}

// coarse is by how much a timer of the Go runtime may be late: it waits in whole milliseconds. The rest of a delay is
// left to a finer timer, which cannot be interrupted.
const coarse = 2 * time.Millisecond

// await returns true when the time has come, and false when the lane was abandoned before.
func (l *lane) await(due time.Time) bool {
	if d := time.Until(due); d > coarse {
		select {
		case <-l.stop:
			return false
		case <-time.After(d - coarse):
		}
	}
	for d := time.Until(due); d > 0; d = time.Until(due) {
		l.timer.sleep(d)
	}
	return true
}

// gate holds writers while it is closed. The zero gate is open.
type gate struct {
	mu     sync.Mutex    // guards closed
	closed chan struct{} // nil when open; closed when the gate opens again
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed == nil {
		g.closed = make(chan struct{})
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed != nil {
		close(g.closed)
		g.closed = nil
	}
}

// await returns true once the gate is open, and false when stop is closed before.
func (g *gate) await(stop <-chan struct{}) bool {
	for {
		g.mu.Lock()
		closed := g.closed
		g.mu.Unlock()
		if closed == nil {
			return true
		}
		select {
		case <-closed:
		case <-stop:
			return false
		}
	}
}
