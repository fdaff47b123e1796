package redistest

import (
	"net"
	"sync"
)

// link is one connection through the proxy: two directions, each with a reader that applies faults and a writer that
// keeps the delay.
type link struct {
	proxy          *Proxy
	client, server net.Conn
	up, down       *delayQueue
	once           sync.Once

	// The reader of requests fills marks before the request is passed on, so before its reply can arrive.
	mu    sync.Mutex // guards marks
	marks map[int]*Fault
}

func newLink(p *Proxy, client, server net.Conn) *link {
	return &link{proxy: p, client: client, server: server, marks: map[int]*Fault{},
		up: newDelayQueue(p, &p.requests), down: newDelayQueue(p, &p.replies)}
}

// run returns when all four goroutines have ended.
func (l *link) run() {
	var wg sync.WaitGroup
	wg.Go(l.readRequests)
	wg.Go(l.readReplies)
	wg.Go(func() { l.up.write(l.server, l.cut) })
	wg.Go(func() { l.down.write(l.client, l.cut) })
	wg.Wait()
	l.cut()
}

// cut closes both ends at once. What was not delivered is lost.
func (l *link) cut() {
	l.once.Do(func() {
		_ = l.client.Close()
		_ = l.server.Close()
		l.up.abandon()
		l.down.abandon()
	})
}

// closeUp passes on that the client has closed its end. Everything that the client had sent has been delivered by then,
// and the server may still execute it. The server closes next, which ends the link.
func (l *link) closeUp() {
	if c, ok := l.server.(*net.TCPConn); ok {
		_ = c.CloseWrite()
	}
}

// read calls chunk with what arrives until the connection ends.
func read(c net.Conn, chunk func([]byte) bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := c.Read(buf)
		if n > 0 && !chunk(buf[:n]) {
			return
		}
		if err != nil {
			return
		}
	}
}

func (l *link) readRequests() {
	var f frames
	var request []byte // the part of the current request that has arrived
	seq := 0
	read(l.client, func(p []byte) bool {
		for at := 0; at < len(p); {
			n, done := f.next(p[at:])
			if !f.opaque {
				request = append(request, p[at:at+n]...)
			}
			if !done {
				break
			}
			fault := l.proxy.claim(request)
			request = request[:0]
			if fault != nil && fault.action == loseRequest {
				// The beginning of the request may have been passed on with an earlier chunk. The server does not execute
				// an incomplete request.
				l.up.push(p[:at])
				l.up.then(l.strike(fault))
				return false
			}
			if fault != nil {
				l.mu.Lock()
				l.marks[seq] = fault
				l.mu.Unlock()
			}
			seq++
			at += n
		}
		l.up.push(p)
		return true
	})
	l.up.then(l.closeUp)
}

func (l *link) readReplies() {
	var f frames
	var fault *Fault // what strikes the reply that is arriving
	seq, passed, fresh, mute := 0, 0, true, false
	read(l.server, func(p []byte) bool {
		start := 0 // p[start:at] is to be passed on
		for at := 0; at < len(p) && !mute; {
			if fresh {
				fault, passed = l.mark(seq), 0
			}
			n, done := f.next(p[at:])
			fresh = done
			if fault != nil && !f.push() {
				keep := min(n, fault.keep-passed)
				l.down.push(p[start : at+keep])
				passed += keep
				start = at + n
				if done {
					l.down.then(l.strike(fault))
					if fault.action != muteReply {
						return false
					}
					mute = true
				}
			}
			if done && !f.push() {
				seq++
			}
			at += n
		}
		if !mute {
			l.down.push(p[start:])
		}
		return true
	})
	l.down.then(l.cut)
}

// mark returns the fault that strikes the reply with this number, or nil.
func (l *link) mark(seq int) *Fault {
	l.mu.Lock()
	defer l.mu.Unlock()
	fault := l.marks[seq]
	delete(l.marks, seq)
	return fault
}

func (l *link) strike(fault *Fault) func() {
	return func() {
		fault.hits.Add(1)
		if fault.action != muteReply {
			l.cut()
		}
	}
}
