package ratelimit

import (
	"strconv"
	"time"

	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/scripts"
	"github.com/tryacquire/ratelimit/internal/windows"
)

// A FixedWindow allows up to limit permits per window, and so up to twice that across the boundary of two windows.
// A window opens with the first permit, or with [WithAlignment] at fixed times. RetryAfter and ResetAfter are the
// time until the window ends, to the millisecond (with WithAlignment or WithClock, or a limit above 1,000,000,000, to the
// microsecond).
//
// Rules under one name share one counter with one start, and together allow at most the largest limit in each
// shortest window. docs/plans.md says how a window goes on after a change. It is the cheapest limiter: its state
// is one small string; a decision is O(1).
type FixedWindow struct{ limiterCore }

func (l *FixedWindow) kind() kind { return kindOnRedis(l, &l.core) }

// NewFixedWindow returns a fixed window. The bounds of limit and window are those of a
// [Rule], and the window is a whole number of milliseconds. The error wraps
// ErrInvalidConfig. Redis is not asked.
func NewFixedWindow(c Client, limit int, window time.Duration, opts ...Option) (*FixedWindow, error) {
	s, err := collect(newFixedWindow, opts)
	if err != nil {
		return nil, err
	}
	if err := checkRule(Rule{limit, window}); err != nil {
		return nil, err
	}
	if window%time.Millisecond != 0 {
		return nil, invalidConfig("the window is %v; a fixed one must be a whole number of milliseconds", window)
	}
	if err := s.checkOffset(); err != nil {
		return nil, err
	}
	if err := s.checkHeadroom("limit", limit); err != nil {
		return nil, err
	}
	f := &windows.Fixed{Limit: int64(limit), Own: int64(limit - s.headroom), Window: window}
	var a algorithm
	switch {
	case s.aligned:
		offset := (s.offset%window + window) % window
		a = datedWindow(f, strconv.FormatInt(offset.Microseconds(), 10))
	case s.clock != nil, limit > exact.Counted, s.ticketLease > 0:
		a = datedWindow(f, "first")
	default:
		a = countedWindow(f)
	}
	if a, err = a.withTickets(&s); err != nil {
		return nil, err
	}
	l := &FixedWindow{}
	if err := l.build(c, s, a); err != nil {
		return nil, err
	}
	return l, nil
}

// countedWindow is a window whose end is the TTL of its key, and whose limit is at most exact.Counted.
func countedWindow(f *windows.Fixed) algorithm {
	f.Unit = time.Millisecond
	of, unpack := scripts.Of("fixedwindow"), f.Unpack
	if !f.FitsOneInteger() {
		of, unpack = scripts.WideWindow, nil
	}
	return algorithm{
		id: algorithms.FixedWindow, scripts: of, most: int(f.Own),
		args: []string{strconv.FormatInt(f.Counter(), 10), strconv.FormatInt(f.Window.Milliseconds(), 10)},
		cost: redisexec.Cost{Key: 6, Run: 1}, unpack: unpack, explainer: f, mostCharge: exact.Counted, credits: true, window: true,
	}
}

// datedWindow is a window whose state holds its start. It starts at the multiples of
// the window plus start, in microseconds, or with the first permit if start is "first".
func datedWindow(f *windows.Fixed, start string) algorithm {
	f.Unit = time.Microsecond
	return algorithm{
		id: algorithms.FixedWindow, scripts: scripts.Of("datedwindow"), most: int(f.Own),
		args: append(exact.Texts(f.Own, f.Window.Microseconds()), start),
		cost: redisexec.Cost{Key: 8, Run: 1}, explainer: f, credits: true, window: true,
	}
}
