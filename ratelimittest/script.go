package ratelimittest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tryacquire/ratelimit"
)

// AnyKey stands for all keys in the methods of a [Script].
const AnyKey = ""

// A Script is a Limiter whose answers the test sets, for tests that do not depend on a real limit.
// It allows every call until the test sets another answer:
//
//	limiter := ratelimittest.NewScript(t)
//	limiter.Deny("alice", 30*time.Second)          // for 30 s
//	limiter.Fail(ratelimittest.AnyKey, errors.New("Redis is down"))
//	limiter.Once().Deny("bob", time.Second)        // bob's next call only
//
// An answer for a key has precedence over one for AnyKey, and an answer of Once over the others. A
// new answer replaces the former answer for the key, except for answers of Once. An invalid key,
// an invalid number of permits and a context that has ended get the errors that every Limiter
// returns. A Script is safe for concurrent use.
type Script struct {
	t testing.TB

	mu     sync.Mutex // guards what follows
	always map[string]answer
	once   []answer // in the order in which they were given
}

var _ ratelimit.Limiter = (*Script)(nil)

// NewScript returns a Script that allows every call.
func NewScript(t testing.TB) *Script { return &Script{t: t, always: map[string]answer{}} }

// An answer is what a Script answers for a key.
type answer struct {
	key    string
	result ratelimit.Result
	err    error
	until  time.Time // of a denial; otherwise zero
}

// Allow allows the calls for key, with the Result of [ratelimit.AllowAll].
func (s *Script) Allow(key string) { s.give(answer{key: key, result: allowed}, false) }

// Deny denies the calls for key for the next retryAfter, as a limiter would: RetryAfter and
// ResetAfter count down by time.Now, which is the bubble's clock in a bubble. Limit, Window and
// Remaining are 0. Reset ends the denial.
func (s *Script) Deny(key string, retryAfter time.Duration) {
	s.t.Helper()
	s.give(s.denial(key, retryAfter), false)
}

// Fail returns err for the calls for key, Peek and Reset included.
func (s *Script) Fail(key string, err error) {
	s.t.Helper()
	s.give(s.failure(key, err), false)
}

// Answer returns r for the calls for key. Reset does not end it.
func (s *Script) Answer(key string, r ratelimit.Result) { s.give(answer{key: key, result: r}, false) }

// Once is for answers to a single call: if a key has several, each call gets the next one. Peek
// and Reset get the answer of the next call, and do not use it up.
func (s *Script) Once() Once { return Once{s} }

// Once gives the answers of [Script.Once].
type Once struct{ s *Script }

// Allow allows the next call for key.
func (o Once) Allow(key string) { o.s.give(answer{key: key, result: allowed}, true) }

// Deny denies the next call for key, however late that call is made.
func (o Once) Deny(key string, retryAfter time.Duration) {
	o.s.t.Helper()
	o.s.give(o.s.denial(key, retryAfter), true)
}

// Fail returns err for the next call for key.
func (o Once) Fail(key string, err error) {
	o.s.t.Helper()
	o.s.give(o.s.failure(key, err), true)
}

// Answer returns r for the next call for key.
func (o Once) Answer(key string, r ratelimit.Result) { o.s.give(answer{key: key, result: r}, true) }

var (
	all        = ratelimit.AllowAll()
	allowed, _ = all.TryAcquire(context.Background(), "any")
)

func (s *Script) denial(key string, retryAfter time.Duration) answer {
	s.t.Helper()
	if retryAfter <= 0 {
		s.t.Fatalf("ratelimittest: Deny(%q, %v): a denial has a RetryAfter above 0", key, retryAfter)
	}
	return answer{
		key:    key,
		result: ratelimit.Result{RetryAfter: retryAfter, ResetAfter: retryAfter},
		until:  time.Now().Add(retryAfter),
	}
}

func (s *Script) failure(key string, err error) answer {
	s.t.Helper()
	if err == nil {
		s.t.Fatalf("ratelimittest: Fail(%q, nil): an error is missing; Allow ends a failure", key)
	}
	return answer{key: key, err: err}
}

func (s *Script) give(a answer, once bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if once {
		s.once = append(s.once, a)
		return
	}
	s.always[a.key] = a
}

// TryAcquire is TryAcquireN(ctx, key, 1).
func (s *Script) TryAcquire(ctx context.Context, key string) (ratelimit.Result, error) {
	return s.TryAcquireN(ctx, key, 1)
}

// TryAcquireN returns the answer that the test has given.
func (s *Script) TryAcquireN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if _, err := all.TryAcquireN(ctx, key, n); err != nil {
		return ratelimit.Result{}, err
	}
	return s.next(key, true)
}

// Peek returns what the next call would get.
func (s *Script) Peek(ctx context.Context, key string) (ratelimit.Result, error) {
	if _, err := all.Peek(ctx, key); err != nil {
		return ratelimit.Result{}, err
	}
	return s.next(key, false)
}

// Reset ends the denial that [Script.Deny] began for key, unless the next call would fail: then
// it returns that error.
func (s *Script) Reset(ctx context.Context, key string) error {
	if err := all.Reset(ctx, key); err != nil {
		return err
	}
	if _, err := s.next(key, false); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if a, ok := s.always[key]; ok && !a.until.IsZero() {
		delete(s.always, key)
	}
	return nil
}

func (s *Script) next(key string, use bool) (ratelimit.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, wanted := range []string{key, AnyKey} {
		if i := slices.IndexFunc(s.once, func(a answer) bool { return a.key == wanted }); i >= 0 {
			a := s.once[i]
			if use {
				s.once = slices.Delete(s.once, i, i+1)
			}
			return a.result, a.err
		}
	}
	for _, wanted := range []string{key, AnyKey} {
		a, ok := s.always[wanted]
		if !ok {
			continue
		}
		if !a.until.IsZero() {
			left := time.Until(a.until)
			if left <= 0 {
				delete(s.always, wanted)
				continue
			}
			a.result.RetryAfter, a.result.ResetAfter = left, left
		}
		return a.result, a.err
	}
	return allowed, nil
}
