package ratelimittest

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
)

// Serve is httptest.NewServer for a bubble: the connections of the server's Client are in
// memory, so that time can pass while they are idle. No other client reaches the server. It is
// closed when the test ends. Each connection comes from 192.0.2.1, an address that no network uses.
//
// If a test needs no connection, use httptest.NewRecorder.
func Serve(t testing.TB, h http.Handler) *httptest.Server {
	t.Helper()
	l := &listener{conns: make(chan net.Conn), closed: make(chan struct{})}
	s := httptest.NewUnstartedServer(h)
	l.addr = s.Listener.Addr()
	_ = s.Listener.Close() // a bubble's time stands still while anybody waits for a real one
	s.Listener = l
	s.Start()
	s.Client().Transport.(*http.Transport).DialContext = l.dial
	t.Cleanup(s.Close)
	return s
}

// A listener accepts what its dial connects.
type listener struct {
	conns  chan net.Conn
	addr   net.Addr
	once   sync.Once
	closed chan struct{}
	dialed atomic.Int32
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *listener) Addr() net.Addr { return l.addr }

func (l *listener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	a, b := net.Pipe()
	near, far := newBuffered(a), newBuffered(b)
	from := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1024 + int(l.dialed.Add(1))%64512}
	select {
	case l.conns <- &webConn{Conn: far, from: from}:
		return near, nil
	case <-l.closed:
	case <-ctx.Done():
	}
	_, _ = near.Close(), far.Close()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return nil, &net.OpError{Op: "dial", Net: "tcp", Err: net.ErrClosed}
}

// A webConn has an address.
type webConn struct {
	net.Conn
	from net.Addr
}

func (c *webConn) RemoteAddr() net.Addr { return c.from }
