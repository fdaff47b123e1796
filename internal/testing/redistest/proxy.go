package redistest

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Proxy is a TCP proxy in front of a server. It passes everything on unchanged, until one of its methods says otherwise;
// that applies to open connections as well as to later ones. Its methods may be called from any goroutine. Without a
// delay it adds some tens of microseconds to a round trip.
//
// Faults strike single requests or replies. The proxy finds these by following the protocol, so that a fault also strikes
// the right one inside a pipeline. It cannot follow TLS, nor connections that subscribe or turn replies off.
//
// Each method that arms a fault takes matchers, such as OnScript(); the fault applies to requests that one of them
// matches. Without matchers it applies to all requests except those that set up a connection (HELLO, AUTH, CLIENT,
// SELECT, READONLY).
type Proxy struct {
	t      testing.TB
	target string
	addr   string

	delay    atomic.Int64 // of each direction, in nanoseconds
	requests gate         // whether requests reach the server
	replies  gate         // whether replies reach the client
	links    sync.WaitGroup

	mu       sync.Mutex // guards what follows
	listener net.Listener
	open     map[*link]struct{}
	accepted int
	faults   []*Fault
}

// NewProxy starts a proxy in front of the server at target. The test's cleanup closes it.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := listen()
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{t: t, target: target, addr: l.Addr().String(), open: map[*link]struct{}{}}
	p.serve(l)
	t.Cleanup(func() {
		p.Refuse()
		p.links.Wait()
	})
	return p
}

// Addr returns the host and port at which the proxy listens.
func (p *Proxy) Addr() string { return p.addr }

// Accepted returns how many connections have been accepted so far.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Delay delays everything that arrives from now on, in each direction, so that a round trip takes 2 * eachWay longer. It
// keeps the order and does not limit the throughput: any amount of data can be on its way.
func (p *Proxy) Delay(eachWay time.Duration) { p.delay.Store(int64(eachWay)) }

// Hang stops forwarding in both directions, as a network partition does: connections stay open and are accepted, and
// nothing is answered.
func (p *Proxy) Hang() {
	p.requests.close()
	p.replies.close()
}

// HoldReplies stops forwarding replies only: requests are executed, and their callers wait.
func (p *Proxy) HoldReplies() { p.replies.close() }

// Unhang ends Hang and HoldReplies. Everything that was held is delivered, in order, as TCP does when a partition heals,
// even requests whose callers have given up.
func (p *Proxy) Unhang() {
	p.requests.open()
	p.replies.open()
}

// Refuse closes the port and all connections. New connections are refused.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	if p.listener != nil {
		_ = p.listener.Close()
		p.listener = nil
	}
	p.mu.Unlock()
	p.CutAll()
}

// Allow ends Refuse.
func (p *Proxy) Allow() {
	p.mu.Lock()
	listening := p.listener != nil
	p.mu.Unlock()
	if listening {
		return
	}
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		p.t.Errorf("redistest: listen again: %v", err)
		return
	}
	p.serve(l)
}

// CutAll closes all connections. New ones are accepted.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.open {
		l.cut()
	}
}

// DropRequest makes the next n matching requests disappear before they reach the server, and closes the connection.
func (p *Proxy) DropRequest(n int, match ...Matcher) *Fault {
	return p.arm(newFault(loseRequest, n, 0, match))
}

// DropReply makes the replies to the next n matching requests disappear, and closes the connection when the reply
// would have arrived: the server has executed the request, and the client cannot know.
func (p *Proxy) DropReply(n int, match ...Matcher) *Fault {
	return p.arm(newFault(loseReply, n, 0, match))
}

// DropNextReply is DropReply(1, match...).
func (p *Proxy) DropNextReply(match ...Matcher) *Fault { return p.DropReply(1, match...) }

// MuteReply is DropReply, but the connection stays open and silent: no later reply on it arrives either.
func (p *Proxy) MuteReply(n int, match ...Matcher) *Fault {
	return p.arm(newFault(muteReply, n, 0, match))
}

// CutReplyAfter passes on the first bytes of the reply to the next matching request, and then closes the connection. A
// reply of no more bytes arrives complete.
func (p *Proxy) CutReplyAfter(bytes int, match ...Matcher) *Fault {
	return p.arm(newFault(cutReply, 1, bytes, match))
}

// Disarm removes the faults that have not struck yet.
func (p *Proxy) Disarm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = nil
}

func (p *Proxy) arm(f *Fault) *Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, f)
	return f
}

// claim returns the fault that strikes this request, or nil.
func (p *Proxy) claim(request []byte) *Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.faults {
		if f.claim(request) {
			return f
		}
	}
	return nil
}

func (p *Proxy) serve(l net.Listener) {
	p.mu.Lock()
	p.listener = l
	p.mu.Unlock()
	p.links.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed by Refuse
			}
			p.links.Go(func() { p.connect(conn) })
		}
	})
}

// connect serves one connection until both its directions have ended.
func (p *Proxy) connect(client net.Conn) {
	server, err := net.DialTimeout("tcp", p.target, callDeadline)
	if err != nil {
		_ = client.Close() // the server is down; a proxy cannot refuse a connection that it has accepted
		return
	}
	l := newLink(p, client, server)
	p.mu.Lock()
	if p.listener == nil { // Refuse was called since Accept
		p.mu.Unlock()
		l.cut()
		return
	}
	p.open[l] = struct{}{}
	p.accepted++
	p.mu.Unlock()
	l.run()
	p.mu.Lock()
	delete(p.open, l)
	p.mu.Unlock()
}
