package model

import (
	"fmt"
	"time"
)

// A FixedWindow allows limit permits in [M, M+window), where M is the millisecond of the
// first permit. It counts in whole milliseconds, as Redis's expiry does. After the clock
// is set back, at most one whole window is left.
type FixedWindow struct {
	limit  int
	window int64 // milliseconds
	used   int   // 0: never used
	end    int64 // milliseconds since the epoch
}

// NewFixedWindow returns the model of an unused key.
func NewFixedWindow(limit int, window time.Duration) *FixedWindow {
	checkPositive("limit", limit)
	checkPositive("window", window)
	if window%time.Millisecond != 0 {
		panic(fmt.Sprintf("model: window is %v, want whole milliseconds", window))
	}
	return &FixedWindow{limit: limit, window: window.Milliseconds()}
}

// Take implements [Model].
func (f *FixedWindow) Take(now int64, n int, peek bool) Answer {
	checkPermits(n, f.limit)
	return f.decide(now, n, peek, false)
}

// decide is Take. If charge is true, the permits are taken whether they are there or not.
func (f *FixedWindow) decide(now int64, n int, peek, charge bool) Answer {
	ms := floorDiv(now, 1000)
	used, left, repaired := f.used, f.end-ms, false
	switch {
	case f.Unused(now):
		used, left = 0, f.window
	case left > f.window:
		left, repaired = f.window, true
	}
	answer := Answer{Limit: f.limit, Window: f.Span()}
	answer.ResetAfter = time.Duration(left) * time.Millisecond
	used = answer.count(used, n, peek, charge)
	if !peek && (answer.Allowed || repaired) {
		f.used, f.end = used, ms+left
	}
	return answer
}

// Reset implements [Model].
func (f *FixedWindow) Reset() { f.used = 0 }

// Unused implements [Model].
func (f *FixedWindow) Unused(now int64) bool { return f.used == 0 || floorDiv(now, 1000) >= f.end }

// Max implements [Model].
func (f *FixedWindow) Max() int { return f.limit }

// Span implements [Model].
func (f *FixedWindow) Span() time.Duration { return time.Duration(f.window) * time.Millisecond }
