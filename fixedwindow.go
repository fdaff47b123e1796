package ratelimit

import (
	"strconv"
	"time"

	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/scripts"
)

// A FixedWindow allows up to limit permits per window, and so up to twice that across the boundary of two windows.
// A window opens with the first permit, or with [WithAlignment] at fixed times. RetryAfter and ResetAfter are the
// time until the window ends, to the millisecond (with WithAlignment or WithClock, to the microsecond).
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
	if s.offset%time.Microsecond != 0 {
		return nil, invalidConfig("WithAlignment: %v is not a whole number of microseconds", s.offset)
	}
	if err := s.checkHeadroom("limit", limit); err != nil {
		return nil, err
	}
	f := &fixed{limit: int64(limit), own: int64(limit - s.headroom), window: window}
	var a algorithm
	switch {
	case s.aligned:
		offset := (s.offset%window + window) % window
		a = datedWindow(f, strconv.FormatInt(offset.Microseconds(), 10))
	case s.clock != nil:
		a = datedWindow(f, "first")
	default:
		a = countedWindow(f)
	}
	l := &FixedWindow{}
	if err := l.build(c, s, a); err != nil {
		return nil, err
	}
	return l, nil
}

// countedWindow is a window whose end is the TTL of its key.
func countedWindow(f *fixed) algorithm {
	f.unit = time.Millisecond
	of, unpack := scripts.Of("fixedwindow"), f.unpack
	if float64(f.own+1)*float64(f.window.Milliseconds()+1) >= exact.Bound { // one integer does not hold the reply
		of, unpack = scripts.WideWindow, nil
	}
	return algorithm{
		id: algorithms.FixedWindow, scripts: of, most: int(f.own),
		args: []string{strconv.FormatInt(f.counter(), 10), strconv.FormatInt(f.window.Milliseconds(), 10)},
		cost: redisexec.Cost{Key: 6, Run: 1}, unpack: unpack, explainer: f,
	}
}

// datedWindow is a window whose state holds its start. It starts at the multiples of
// the window plus start, in microseconds, or with the first permit if start is "first".
func datedWindow(f *fixed, start string) algorithm {
	f.unit = time.Microsecond
	return algorithm{
		id: algorithms.FixedWindow, scripts: scripts.Of("datedwindow"), most: int(f.own),
		args: append(exact.Texts(f.own, f.window.Microseconds()), start),
		cost: redisexec.Cost{Key: 8, Run: 1}, explainer: f,
	}
}

// The words of a fixed window's reply, after decision.WordAllowed.
const (
	wordRoom = 1 // permits left before the run
	wordLeft = 2 // time left of the window, in units
)

// fixed explains the replies of a fixed window.
type fixed struct {
	limit  int64
	own    int64 // what of the limit this limiter may use, see WithHeadroom
	window time.Duration
	unit   time.Duration // of wordLeft
}

// counter is the state of a window whose permits are all taken: their number, then the
// window's milliseconds as five digits and an exponent of ten. Further digits are cut
// off: when a window is changed by less than that, it keeps the end that it had.
func (f *fixed) counter() int64 {
	mantissa, exponent := f.window.Milliseconds(), int64(0)
	for mantissa%10 == 0 || mantissa > 99_999 {
		mantissa /= 10
		exponent++
	}
	return f.own*1_000_000 + mantissa*10 + exponent
}

// unpack reads a reply of one integer: room × (window + 1) + left, negative when the
// call was denied. It is never 0, because some of the window is always left.
func (f *fixed) unpack(reply int64, words []int64) {
	words[decision.WordAllowed] = 1
	if reply < 0 {
		words[decision.WordAllowed], reply = 0, -reply
	}
	span := f.window.Milliseconds() + 1
	words[wordRoom], words[wordLeft] = reply/span, reply%span
}

func (f *fixed) Explain(words []int64, n, taken int64, allowed bool) decision.Result {
	left := time.Duration(words[wordLeft]) * f.unit
	r := decision.Result{
		Allowed:    allowed,
		Limit:      int(f.limit),
		Window:     f.window,
		Remaining:  int(words[wordRoom] - taken),
		ResetAfter: left,
	}
	switch {
	case !allowed:
		r.RetryAfter = left
	case int64(r.Remaining) == f.own: // nothing is used
		r.ResetAfter = 0
	}
	return r
}
