// Package script assembles the Lua scripts that a limiter runs. Each algorithm is one
// complete script for one request; its other scripts are made from the marked blocks of
// that one.
package script

import (
	"crypto/sha1"
	"encoding/hex"
	"sync"
	"weak"
)

// A Script is a Lua script.
type Script struct {
	make func() string // nil: source is kept

	once   sync.Once
	bySHA  []any
	source string // of New

	mu   sync.Mutex // guards made
	made weak.Pointer[string]
}

// New returns a script with this source.
func New(source string) *Script { return &Script{source: source} }

// Lazy returns a script whose source is made when it is needed, and not kept: a server needs it once. make
// returns the same each time.
func Lazy(make func() string) *Script { return &Script{make: make} }

// Source is the text of the script.
func (s *Script) Source() string {
	if s.make == nil {
		return s.source
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if made := s.made.Value(); made != nil {
		return *made
	}
	source := s.make()
	s.made = weak.Make(&source)
	return source
}

// BySHA are the first arguments of the commands that run it: EVALSHA and the digest. These
// are made once, because boxing a string in every call would allocate.
func (s *Script) BySHA() []any {
	s.once.Do(func() {
		sum := sha1.Sum([]byte(s.Source()))
		s.bySHA = []any{"evalsha", hex.EncodeToString(sum[:])}
	})
	return s.bySHA
}

// Whole are the first arguments of a command that sends it: EVAL and the source.
func (s *Script) Whole() []any { return []any{"eval", s.Source()} }

// Digest is the SHA-1 by which Redis knows the script.
func (s *Script) Digest() string { return s.BySHA()[1].(string) }
