package model

import (
	"fmt"
	"maps"
	"math"
	"time"
)

// A SlidingWindow counts the permits taken in each sub-window. All of time is divided
// into sub-windows, which are equally long and numbered. A sub-window counts until its
// last microsecond has left the window.
//
// When the server's clock is set back to a time earlier than a sub-window, the permits of
// that sub-window count as taken in the current one, even for a Peek, which writes nothing.
// With CallersClock the clock is the caller's, and nothing moves: a call whose clock is
// earlier than the last sub-window is decided as at the beginning of that one. As with
// [SlidingLog], every allowed call deletes the sub-windows that have left the window,
// unless Keep is set.
type SlidingWindow struct {
	Keep         bool
	CallersClock bool

	limit  int
	window int64
	width  int64         // of a sub-window
	counts map[int64]int // by the sub-window's number
}

// NewSlidingWindow returns the model of an unused key, with so many sub-windows in a
// window.
func NewSlidingWindow(limit int, window time.Duration, subWindows int) *SlidingWindow {
	checkPositive("limit", limit)
	checkPositive("window", window)
	checkPositive("number of sub-windows", subWindows)
	us := wholeMicros("window", window)
	if us%int64(subWindows) != 0 {
		panic(fmt.Sprintf("model: window is %v, want a multiple of %dµs for %d sub-windows", window, subWindows, subWindows))
	}
	return &SlidingWindow{limit: limit, window: us, width: us / int64(subWindows)}
}

// Take implements [Model].
func (s *SlidingWindow) Take(now int64, n int, peek bool) Answer {
	checkPermits(n, s.limit)
	return s.decide(now, n, peek, false)
}

// decide is Take. If charge is true, the permits are taken whether they are there or not.
func (s *SlidingWindow) decide(now int64, n int, peek, charge bool) Answer {
	counts := maps.Clone(s.counts)
	if counts == nil {
		counts = map[int64]int{}
	}
	present, repaired := now, false
	for id, count := range s.counts {
		if current := floorDiv(now, s.width); id > current {
			if s.CallersClock {
				present = max(present, id*s.width)
				continue
			}
			delete(counts, id)
			counts[current] += count
			repaired = true
		}
	}
	answer := Answer{Limit: s.limit, Window: s.Span()}

	if used := s.used(counts, present); used+n <= s.limit || charge {
		answer.Allowed = true
		if !peek {
			maps.DeleteFunc(counts, func(_ int64, count int) bool { return count == 0 })
			counts[floorDiv(present, s.width)] += n
		}
	} else {
		answer.RetryAfter = s.freeAt(counts, present, n) - micros(now)
	}
	used := s.used(counts, present)
	answer.Remaining = max(0, s.limit-used)
	if used > 0 {
		last := int64(math.MinInt64)
		for id := range counts {
			last = max(last, id)
		}
		answer.ResetAfter = micros(s.leavesAt(last) - now)
	}
	if !peek && (answer.Allowed || repaired) {
		for id := range counts {
			if !s.Keep && answer.Allowed && s.leavesAt(id) <= present {
				delete(counts, id)
			}
		}
		s.counts = counts
	}
	return answer
}

// leavesAt is the first instant at which a sub-window no longer counts. Its last
// microsecond counts while that is later than now - window.
func (s *SlidingWindow) leavesAt(id int64) int64 { return (id+1)*s.width - 1 + s.window }

func (s *SlidingWindow) used(counts map[int64]int, now int64) (sum int) {
	for id, count := range counts {
		if now < s.leavesAt(id) {
			sum += count
		}
	}
	return sum
}

// freeAt is the instant from which on n permits are available. They become available when
// a sub-window leaves the window, so freeAt tries these instants and takes the first at
// which the permits fit.
func (s *SlidingWindow) freeAt(counts map[int64]int, now int64, n int) time.Duration {
	first := int64(math.MaxInt64)
	for id := range counts {
		at := s.leavesAt(id)
		if at > now && at < first && s.used(counts, at)+n <= s.limit {
			first = at
		}
	}
	if first == math.MaxInt64 {
		panic("model: more than the limit was asked for")
	}
	return micros(first)
}

// Reset implements [Model].
func (s *SlidingWindow) Reset() { s.counts = nil }

// Unused implements [Model].
func (s *SlidingWindow) Unused(now int64) bool { return s.used(s.counts, now) == 0 }

// Max implements [Model].
func (s *SlidingWindow) Max() int { return s.limit }

// Span implements [Model].
func (s *SlidingWindow) Span() time.Duration { return micros(s.window) }
