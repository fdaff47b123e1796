package redistest

import (
	"bytes"
	"net"
	"sync"
	"time"
)

// delayQueue is one direction of a link: a queue of what has arrived, with the time at which each item is due. It has no
// bound, so that a delay does not limit the throughput.
type delayQueue struct {
	proxy *Proxy
	gate  *gate
	wake  chan struct{} // holds a token when there may be items
	stop  chan struct{} // closed when the link is cut
	timer timer

	mu    sync.Mutex // guards items
	items []item
}

// item is either bytes to be written, or a function to be called in order with them.
type item struct {
	due  time.Time
	data []byte
	do   func()
}

func newDelayQueue(p *Proxy, g *gate) *delayQueue {
	return &delayQueue{proxy: p, gate: g, wake: make(chan struct{}, 1), stop: make(chan struct{})}
}

// push queues a copy of the data.
func (q *delayQueue) push(data []byte) {
	if len(data) > 0 {
		q.add(item{data: bytes.Clone(data)})
	}
}

// then queues a function, which is called when everything queued earlier has been written.
func (q *delayQueue) then(do func()) { q.add(item{do: do}) }

func (q *delayQueue) add(i item) {
	i.due = time.Now().Add(time.Duration(q.proxy.delay.Load()))
	q.mu.Lock()
	q.items = append(q.items, i)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default: // a token is there already
	}
}

// abandon ends the writer without writing the rest. It must be called once only.
func (q *delayQueue) abandon() { close(q.stop) }

// write writes each item to the connection when it is due, until the queue is abandoned. It calls cut when the connection
// fails.
func (q *delayQueue) write(c net.Conn, cut func()) {
	defer q.timer.close()
	for {
		select {
		case <-q.stop:
			return
		case <-q.wake:
		}
		q.mu.Lock()
		queue := q.items
		q.items = nil
		q.mu.Unlock()
		for len(queue) > 0 {
			if !q.await(queue[0].due) || !q.gate.await(q.stop) {
				return
			}
			if queue[0].do != nil {
				queue[0].do()
				queue = queue[1:]
				continue
			}
			var due net.Buffers // everything that is due is written in one system call
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

// coarse is how late a timer of the Go runtime may be, because it waits in whole milliseconds. A finer timer, which cannot
// be interrupted, waits for the rest of a delay.
const coarse = 2 * time.Millisecond

// await returns true when the time has come, and false if the queue was abandoned earlier.
func (q *delayQueue) await(due time.Time) bool {
	if d := time.Until(due); d > coarse {
		select {
		case <-q.stop:
			return false
		case <-time.After(d - coarse):
		}
	}
	for d := time.Until(due); d > 0; d = time.Until(due) {
		q.timer.sleep(d)
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

// await returns true when the gate is open, and false if stop was closed earlier.
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
