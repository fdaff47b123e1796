package redistest

import (
	"bytes"
	"sync"
	"sync/atomic"
)

// Matcher reports whether a fault applies to a request. It gets the bytes of one complete RESP request.
type Matcher func(request []byte) bool

// OnScript matches EVALSHA and EVAL.
func OnScript() Matcher { return OnCommand("evalsha", "eval") }

// OnCommand matches requests by the name of their command.
func OnCommand(names ...string) Matcher {
	return func(request []byte) bool {
		name := commandName(request)
		for _, n := range names {
			if bytes.EqualFold(name, []byte(n)) {
				return true
			}
		}
		return false
	}
}

// handshake matches the commands that clients send on their own when they connect.
var handshake = OnCommand("hello", "auth", "client", "select", "readonly")

// commandName returns the first argument of a request: *3\r\n$7\r\nEVALSHA\r\n...
func commandName(request []byte) []byte {
	lines := bytes.SplitN(request, []byte("\r\n"), 4)
	if len(lines) < 3 || !bytes.HasPrefix(request, []byte("*")) {
		return nil
	}
	return lines[2]
}

type action int

const (
	loseRequest action = iota // the request does not reach the server; the connection is closed
	loseReply                 // the reply does not reach the client; the connection is closed
	muteReply                 // neither the reply nor anything after it reaches the client; the connection stays open
	cutReply                  // only the first bytes of the reply reach the client; the connection is closed
)

// Fault is a fault that a method of Proxy has armed.
type Fault struct {
	action action
	keep   int // the bytes of the reply that still reach the client
	match  []Matcher

	mu   sync.Mutex // guards left
	left int

	hits atomic.Int64
}

func newFault(a action, n, keep int, match []Matcher) *Fault {
	return &Fault{action: a, keep: keep, match: match, left: n}
}

// Hits returns how often the fault has struck: a request was lost, or a reply, which means that the server had
// executed the request.
func (f *Fault) Hits() int { return int(f.hits.Load()) }

// claim reports whether the fault applies to the request. If so, it uses up one of the fault's n times.
func (f *Fault) claim(request []byte) bool {
	if !f.matches(request) {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left == 0 {
		return false
	}
	f.left--
	return true
}

func (f *Fault) matches(request []byte) bool {
	if len(f.match) == 0 {
		return !handshake(request)
	}
	for _, m := range f.match {
		if m(request) {
			return true
		}
	}
	return false
}
