package ratelimittest

import (
	"bytes"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2/server"
)

// Down takes the server off the network until [Env.Up]: its connections end, and new ones are
// refused. What the server holds is kept.
func (e *Env) Down() { e.link.setDown() }

// FailWith answers every command with an error until [Env.Up], like a server that is loading
// its data or is out of memory. Nothing is executed. message is not empty, and begins with
// the error's code:
//
//	env.FailWith("LOADING Redis is loading the dataset in memory")
func (e *Env) FailWith(message string) {
	e.t.Helper()
	if message == "" {
		e.t.Fatalf("ratelimittest: FailWith: the message is empty; Up ends the outage")
	}
	e.server.SetError(message)
}

// Slow delays every command by d until [Env.Up]. A command is executed even if its caller has
// left before d has passed, as with a busy server. With a long d the server hangs. d is above
// 0.
func (e *Env) Slow(d time.Duration) {
	e.t.Helper()
	if d <= 0 {
		e.t.Fatalf("ratelimittest: Slow(%v): the delay must be above 0; Up ends it", d)
	}
	e.link.setSlow(d)
}

// LoseReplies executes the next n calls and loses their replies: the connection ends instead.
// Calls that are sent together count as one. Two kinds of replies are never lost: the error
// that Redis did not know the script and executed nothing (NOSCRIPT), and the replies to the
// first commands of a new connection. n is at least 1.
func (e *Env) LoseReplies(n int) {
	e.t.Helper()
	if n < 1 {
		e.t.Fatalf("ratelimittest: LoseReplies(%d): lose at least 1", n)
	}
	e.link.setLose(n)
}

// Up ends the outages of Down, FailWith, Slow and LoseReplies. Commands that were delayed are
// executed now.
func (e *Env) Up() {
	e.server.SetError("")
	e.link.up()
}

// A link is what is between clients and the server.
type link struct {
	server *server.Server

	mu    sync.Mutex // guards what follows; held for moments only
	down  bool
	slow  time.Duration
	lose  int
	ended chan struct{} // closed when the present outage ends
	conns map[*serverConn]struct{}
}

func newLink(s *server.Server) *link {
	return &link{server: s, ended: make(chan struct{}), conns: map[*serverConn]struct{}{}}
}

func (l *link) dial() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	near, far := net.Pipe()
	if l.down {
		return &clientConn{Conn: near, link: l, refused: true}, nil
	}
	c := &serverConn{Conn: far, link: l, idle: true}
	l.conns[c] = struct{}{}
	l.server.ServeConn(c)
	return &clientConn{Conn: near, link: l}, nil
}

func (l *link) setDown() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = true
	for c := range l.conns {
		c.mu.Lock()
		if !c.idle {
			_ = c.Conn.Close()
		}
		c.mu.Unlock()
	}
}

func (l *link) isDown() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.down
}

func (l *link) setSlow(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slow = d
}

func (l *link) setLose(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lose = n
}

func (l *link) up() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down, l.slow, l.lose = false, 0, 0
	close(l.ended)
	l.ended = make(chan struct{})
}

// delay waits as long as a command is delayed now.
func (l *link) delay() {
	l.mu.Lock()
	d, ended := l.slow, l.ended
	l.mu.Unlock()
	if d == 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ended:
	}
}

// loses reports whether a reply is lost, and counts it.
func (l *link) loses() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lose == 0 {
		return false
	}
	l.lose--
	return true
}

// A clientConn is the client's end of a connection. What ails it shows when it is used first:
//
//   - A connection that was refused: go-redis logs a dial that fails, which would fill the output
//     of every test.
//   - A connection from before the link went down: go-redis looks whether an idle connection has
//     ended, but not at that of a pipe, and would use it for the first call after the outage.
type clientConn struct {
	net.Conn
	link    *link
	refused bool
}

func (c *clientConn) Write(b []byte) (int, error) {
	switch {
	case c.refused:
		return 0, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	case c.link.isDown():
		_ = c.Close()
		return 0, &net.OpError{Op: "write", Net: "tcp", Err: syscall.ECONNRESET}
	}
	return c.Conn.Write(b)
}

// A pipe refuses a deadline once its other end is closed. A socket does not, and the next read
// says so.

func (c *clientConn) SetDeadline(t time.Time) error {
	_ = c.Conn.SetDeadline(t)
	return nil
}

func (c *clientConn) SetReadDeadline(t time.Time) error {
	_ = c.Conn.SetReadDeadline(t)
	return nil
}

func (c *clientConn) SetWriteDeadline(t time.Time) error {
	_ = c.Conn.SetWriteDeadline(t)
	return nil
}

// A serverConn is the server's end of a connection. The server reads in one goroutine and writes
// in another, the latter only after a command was read.
type serverConn struct {
	net.Conn
	link *link

	mu       sync.Mutex // guards what follows
	idle     bool       // no command has been read that is not answered
	greeting bool       // the commands that were read last are those of a new connection
}

func (c *serverConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	first := c.idle && n > 0 // of a command that may take several reads
	if first {
		c.idle, c.greeting = false, greets(b[:n])
	}
	c.mu.Unlock()
	if first {
		c.link.delay()
	}
	return n, err
}

func (c *serverConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.idle = true
	greeting := c.greeting
	c.mu.Unlock()
	if !greeting && !bytes.HasPrefix(b, []byte("-NOSCRIPT")) && c.link.loses() {
		_ = c.Conn.Close()
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}

func (c *serverConn) Close() error {
	c.link.mu.Lock()
	delete(c.link.conns, c)
	c.link.mu.Unlock()
	return c.Conn.Close()
}

// greets reports whether the first command of b is one that a client sends when it connects.
func greets(b []byte) bool {
	parts := bytes.SplitN(b, []byte("\r\n"), 4) // *<arguments>, $<length>, the command
	if len(parts) < 3 {
		return false
	}
	switch string(bytes.ToLower(parts[2])) {
	case "hello", "client", "auth", "select", "ping", "readonly":
		return true
	}
	return false
}
