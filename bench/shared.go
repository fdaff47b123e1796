package main

import (
	"context"
	"runtime"
	"sync"

	"github.com/redis/go-redis/v9"
)

// A sharing sends one PING for all calls that wait, and does nothing else: no
// keys, no contexts, no errors but the PING's, no answers. It is what waiting
// together costs in Go, the floor of merged calls.
type sharing struct {
	client  *redis.Client
	mu      sync.Mutex
	next    *shared // that callers join; nil: none has
	sending bool
}

type shared struct {
	callers int
	done    chan struct{}
	err     error
}

func openSharing(b *testbed, _ verdict, _ string) (decide, error) {
	s := &sharing{client: b.client}
	return func(context.Context, string) (bool, error) {
		mine := s.join()
		<-mine.done
		return mine.err == nil, mine.err
	}, nil
}

func (s *sharing) join() *shared {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		s.next = &shared{done: make(chan struct{})}
	}
	s.next.callers++
	if !s.sending {
		s.sending = true
		go s.sendAll()
	}
	return s.next
}

// sendAll sends PINGs until no call waits. Like the limiters, it lets the answered
// callers call again, unless as many others wait already.
func (s *sharing) sendAll() {
	for f := s.take(); f != nil; f = s.take() {
		f.err = s.client.Ping(context.Background()).Err()
		close(f.done)
		for last, now := -1, s.waiting(); now > last && now < f.callers; last, now = now, s.waiting() {
			runtime.Gosched()
		}
	}
}

func (s *sharing) take() *shared {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.next
	s.next, s.sending = nil, f != nil
	return f
}

func (s *sharing) waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		return 0
	}
	return s.next.callers
}
