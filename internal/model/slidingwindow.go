package model

import (
	"fmt"
	"time"
)

// A SlidingWindow counts the permits taken in each sub-window. All of time is divided
// into sub-windows, which are equally long and numbered. A sub-window counts until its
// last microsecond has left the window.
//
// When the clock is set back to a time earlier than a sub-window, the permits of that
// sub-window count as taken in the current one. As with [SlidingLog], every write deletes
// the sub-windows that have left the window, unless Keep is set.
type SlidingWindow struct {
	Keep bool

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
	counts, repaired := s.load(now)
	answer := Answer{Limit: s.limit, Window: s.Span()}

	if used := s.used(counts, now); used+n <= s.limit {
		answer.Allowed = true
		counts[floorDiv(now, s.width)] += n
	} else {
		answer.RetryAfter = s.wait(counts, now, n)
	}
	answer.Remaining = max(0, s.limit-s.used(counts, now))
	answer.ResetAfter = s.wait(counts, now, s.limit)
	if !peek && (answer.Allowed || repaired) {
		for id := range counts {
			if !s.Keep && s.leavesAt(id) <= now {
				delete(counts, id)
			}
		}
		s.counts = counts
	}
	return answer
}

// load returns a copy of the counts as they apply at now, and whether that differs from
// what is stored.
func (s *SlidingWindow) load(now int64) (counts map[int64]int, repaired bool) {
	counts = make(map[int64]int, len(s.counts)+1)
	current := floorDiv(now, s.width)
	for id, count := range s.counts {
		if id > current {
			id, repaired = current, true
		}
		counts[id] += count
	}
	return counts, repaired
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

// wait is the time from now until n permits are available. They become available when a
// sub-window leaves the window, so wait tries these instants and takes the first at which
// the permits fit.
func (s *SlidingWindow) wait(counts map[int64]int, now int64, n int) time.Duration {
	first := int64(-1)
	for id := range counts {
		at := s.leavesAt(id)
		if at > now && s.used(counts, at)+n <= s.limit && (first < 0 || at-now < first) {
			first = at - now
		}
	}
	if first < 0 {
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
