// Package windows has the arguments and the replies of the scripts of windows and logs.
package windows

import (
	"time"

	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/exact"
)

// The words of a fixed window's reply, after decision.WordAllowed.
const (
	wordRoom = 1 // permits left before the run
	wordLeft = 2 // time left of the window, in units
)

// Fixed explains the replies of a fixed window.
type Fixed struct {
	Limit  int64
	Own    int64 // what of the limit can be used
	Window time.Duration
	Unit   time.Duration // of the time left in a reply
}

// FitsOneInteger reports whether one integer can hold a reply, see Unpack.
func (f *Fixed) FitsOneInteger() bool {
	return float64(f.Own+1)*float64(f.Window.Milliseconds()+1) < exact.Bound
}

// Counter is the state of a window whose permits are all taken: their number, then the
// window's milliseconds as five digits and an exponent of ten. Further digits are cut
// off: when a window is changed by less than that, it keeps the end that it had.
func (f *Fixed) Counter() int64 {
	mantissa, exponent := f.Window.Milliseconds(), int64(0)
	for mantissa%10 == 0 || mantissa > 99_999 {
		mantissa /= 10
		exponent++
	}
	return f.Own*1_000_000 + mantissa*10 + exponent
}

// Unpack reads a reply of one integer: room × (window + 1) + left, negative when the
// call was denied. It is never 0, because some of the window is always left.
func (f *Fixed) Unpack(reply int64, words []int64) {
	words[decision.WordAllowed] = 1
	if reply < 0 {
		words[decision.WordAllowed], reply = 0, -reply
	}
	span := f.Window.Milliseconds() + 1
	words[wordRoom], words[wordLeft] = reply/span, reply%span
}

// Explain is that of a decision.Explainer.
func (f *Fixed) Explain(words []int64, n, taken int64, allowed bool) decision.Result {
	left := time.Duration(words[wordLeft]) * f.Unit
	r := decision.Result{
		Allowed:    allowed,
		Limit:      int(f.Limit),
		Window:     f.Window,
		Remaining:  int(words[wordRoom] - taken),
		ResetAfter: left,
	}
	switch {
	case !allowed:
		r.RetryAfter = left
	case int64(r.Remaining) == f.Own: // nothing is used
		r.ResetAfter = 0
	}
	return r
}

// wordLength is, behind the words of a fixed window's reply, the length of the window in microseconds.
const wordLength = wordLeft + 1

// Calendar explains the replies of a calendar window. Own is what of the limit can be used.
type Calendar struct{ Limit, Own int64 }

// Explain is that of a decision.Explainer.
func (c Calendar) Explain(words []int64, n, taken int64, allowed bool) decision.Result {
	f := Fixed{Limit: c.Limit, Own: c.Own, Window: exact.Duration(words[wordLength]), Unit: time.Microsecond}
	return f.Explain(words, n, taken, allowed)
}
