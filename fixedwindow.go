package ratelimit

import (
	_ "embed"
	"strconv"
	"time"
)

var (
	//go:embed scripts/fixedwindow.lua
	fixedWindowSource string
	//go:embed scripts/widewindow.lua
	wideWindowSource string
	//go:embed scripts/datedwindow.lua
	datedWindowSource string
)

// A FixedWindow allows up to limit permits per window, and so up to twice that
// across the boundary of two windows. A window opens with the first permit, or with
// WithAlignment at fixed times. RetryAfter and ResetAfter are the rest of the
// window, to the millisecond (with WithAlignment or WithClock, to the microsecond).
//
// It is the cheapest limiter: its state is one small string, a decision is O(1).
type FixedWindow struct{ *core }

// NewFixedWindow returns a fixed window. The bounds of limit and window are those of a
// [Rule], and the window is a whole number of milliseconds. The error wraps
// ErrInvalidConfig. Redis is not asked.
func NewFixedWindow(c Client, limit int, window time.Duration, opts ...FixedWindowOption) (*FixedWindow, error) {
	s, err := collect(opts)
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
	f := &fixed{limit: int64(limit), window: window, unit: time.Millisecond}
	a := algorithm{
		title: "fixed window", id: idFixedWindow, most: limit,
		sources: []string{fixedWindowSource}, timeless: true,
		args:  []string{strconv.FormatInt(f.counter(), 10), strconv.FormatInt(window.Milliseconds(), 10)},
		words: 3, packed: true,
	}
	if float64(limit+1)*float64(window.Milliseconds()+1) >= exact {
		a.packed = false
		a.sources = append(a.sources, wideWindowSource)
	}
	if s.aligned || s.clock != nil {
		f.unit = time.Microsecond
		start := "first"
		if s.aligned {
			offset := (s.offset%window + window) % window
			start = strconv.FormatInt(offset.Microseconds(), 10)
		}
		a.sources, a.timeless, a.packed = []string{datedWindowSource}, false, false
		a.args = []string{strconv.Itoa(limit), strconv.FormatInt(window.Microseconds(), 10), start}
	}
	a.explainer = f
	inner, err := newCore(c, s, a)
	if err != nil {
		return nil, err
	}
	return &FixedWindow{inner}, nil
}

// fixed explains the replies of a fixed window.
type fixed struct {
	limit  int64
	window time.Duration
	unit   time.Duration // of the time left
}

// counter is the state of a window that is used up: the limit, then the window's
// milliseconds as five digits and an exponent. What is beyond five digits is cut:
// a window that is changed by less than that keeps the end it had.
func (f *fixed) counter() int64 {
	mantissa, exponent := f.window.Milliseconds(), int64(0)
	for mantissa%10 == 0 || mantissa > 99_999 {
		mantissa /= 10
		exponent++
	}
	return f.limit*1_000_000 + mantissa*10 + exponent
}

// unpack reads room × (window + 1) + left, negative when denied; some of the
// window is always left.
func (f *fixed) unpack(reply int64, words []int64) {
	words[0] = 1
	if reply < 0 {
		words[0], reply = 0, -reply
	}
	span := f.window.Milliseconds() + 1
	words[1], words[2] = reply/span, reply%span
}

func (f *fixed) explain(words []int64, n, i int64) Result {
	granted, left := words[0], time.Duration(words[2])*f.unit
	retry := left
	if i < granted {
		retry = 0
	}
	return Result{
		Allowed:    i < granted,
		Limit:      int(f.limit),
		Window:     f.window,
		Remaining:  int(words[1] - min(i+1, granted)*n),
		RetryAfter: retry,
		ResetAfter: left,
	}
}
