package main

import (
	"context"
	"errors"
	"net"
	"sync"
)

var errDown = errors.New("connection refused (the playground's outage)")

// A link is the way to Redis. While it is down, connections end and new ones are refused; what Redis
// holds is kept.
type link struct {
	connect func(context.Context) (net.Conn, error)

	mu    sync.Mutex
	down  bool
	conns map[*linkConn]struct{}
}

func newLink(connect func(context.Context) (net.Conn, error)) *link {
	return &link{connect: connect, conns: map[*linkConn]struct{}{}}
}

// dial is a Dialer of go-redis. While the link is down it succeeds, and the connection fails when it
// is used, because go-redis would try to dial several times.
func (l *link) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	l.mu.Lock()
	down := l.down
	l.mu.Unlock()
	if down {
		near, _ := net.Pipe()
		return &linkConn{Conn: near, link: l}, nil
	}
	conn, err := l.connect(ctx)
	if err != nil {
		return nil, err
	}
	c := &linkConn{Conn: conn, link: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = struct{}{}
	return c, nil
}

func (l *link) setDown(down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = down
	if down {
		for c := range l.conns {
			_ = c.Conn.Close()
		}
		clear(l.conns)
	}
}

func (l *link) isDown() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.down
}

type linkConn struct {
	net.Conn
	link *link
}

func (c *linkConn) Write(b []byte) (int, error) {
	if c.link.isDown() {
		_ = c.Close()
		return 0, errDown
	}
	return c.Conn.Write(b)
}

func (c *linkConn) Close() error {
	c.link.mu.Lock()
	delete(c.link.conns, c)
	c.link.mu.Unlock()
	return c.Conn.Close()
}
