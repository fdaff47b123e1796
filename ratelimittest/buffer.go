package ratelimittest

import (
	"io"
	"net"
	"sync"
	"time"
)

// socketBuffer is how many bytes are under way at most, as in the buffers of a socket.
const socketBuffer = 64 << 10

// A buffered is an end of a net.Pipe whose writes do not wait for a reader, as those of a socket:
// a server that streams would otherwise stand still until its client reads.
type buffered struct {
	net.Conn

	mu     sync.Mutex // guards what follows
	change *sync.Cond
	bytes  []byte // written, and not yet taken by the other end
	closed bool
	err    error // of the pipe
}

func newBuffered(c net.Conn) *buffered {
	b := &buffered{Conn: c}
	b.change = sync.NewCond(&b.mu)
	go b.pass()
	return b
}

func (b *buffered) Write(p []byte) (n int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for n < len(p) {
		for len(b.bytes) >= socketBuffer && b.err == nil && !b.closed {
			b.change.Wait()
		}
		switch {
		case b.closed:
			return n, net.ErrClosed
		case b.err != nil:
			return n, b.err
		}
		k := min(len(p)-n, socketBuffer-len(b.bytes))
		b.bytes = append(b.bytes, p[n:n+k]...)
		n += k
		b.change.Broadcast()
	}
	return n, nil
}

// pass writes to the pipe until there is nothing more to come.
func (b *buffered) pass() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.err == nil {
		for len(b.bytes) == 0 && !b.closed {
			b.change.Wait()
		}
		if len(b.bytes) == 0 {
			break
		}
		next := b.bytes
		b.bytes = nil
		b.mu.Unlock()
		_, err := b.Conn.Write(next)
		b.mu.Lock()
		b.err = err
		b.change.Broadcast()
	}
	_ = b.Conn.Close()
}

func (b *buffered) Read(p []byte) (int, error) {
	n, err := b.Conn.Read(p)
	if err != nil && b.isClosed() {
		return n, net.ErrClosed
	}
	return n, err
}

func (b *buffered) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

// Close lets the other end read what was written. What the other end still writes is thrown away,
// so that two ends that are closed do not wait for each other.
func (b *buffered) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return net.ErrClosed
	}
	b.closed = true
	b.change.Broadcast()
	_ = b.Conn.SetReadDeadline(time.Unix(1, 0)) // wakes a reader
	_ = b.Conn.SetReadDeadline(time.Time{})
	go func() { _, _ = io.Copy(io.Discard, b.Conn) }() // until pass closes the pipe
	return nil
}
