package gcra

import (
	"math/bits"
	"slices"
	"strings"

	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/exact"
)

// evenUnits bounds the capacity of a bucket whose state is one number, so that a debt of
// fifteen times as much fits beside it.
const evenUnits = exact.Bound / 32

// IsEven reports whether bucket.lua can decide: the refill is even, and one number holds the state.
func (b *Bucket) IsEven() bool {
	high, capacity := bits.Mul64(uint64(b.Limit), uint64(b.permit))
	return b.every == 1 && high == 0 && capacity < evenUnits
}

// The words of a reply of bucket.lua, after decision.WordAllowed.
const (
	wordMissing = 1 // units missing before the run
	wordLate    = 2 // microseconds of the clock's lag, or until another rule's state lets the request fit
	wordFull    = 3 // microseconds until another rule's state is full, or 0
)

// Even is what bucket.lua is given, and the meaning of its replies.
type Even struct{ *Bucket }

// Args are the arguments of the script. mark is that of the clock in its states.
func (b Even) Args(mark string) []string {
	return withRule(mark, b.Size*b.permit, b.permit, b.flow)
}

// Longest is the longest wait of a reservation, in microseconds: the units of the capacity and the debt are
// below 2^52.
func (b Even) Longest() int64 { return (exact.Bound/2 - 1 - b.Size*b.permit) / b.flow }

// Unpack reads a reply of one integer: the units missing before the call, negative when
// the call was denied. 0 means that it was allowed: of a full bucket no call is denied.
func (b Even) Unpack(reply int64, words []int64) {
	words[decision.WordAllowed], words[wordMissing] = 1, reply
	if reply < 0 {
		words[decision.WordAllowed], words[wordMissing] = 0, -reply
	}
}

// Explain is that of a decision.Explainer.
func (b Even) Explain(words []int64, n, taken int64, allowed bool) decision.Result {
	missing := Level{words[wordMissing] / b.permit, words[wordMissing] % b.permit}
	if full := words[wordFull]; full > 0 && taken == 0 {
		return b.Beside(missing, allowed, words[wordLate], full)
	}
	return b.Result(missing, n, taken, allowed, words[wordLate])
}

// The words of a reply of steppedbucket.lua, after decision.WordAllowed.
const (
	wordMissingPermits = 1 // missing before the run
	wordMissingUnits   = 2
	wordSince          = 3 // microseconds since the last step, less the clock's lag; or minus those until another rule's state is full
	wordWait           = 4 // microseconds until another rule's state lets the request fit, or 0
)

// Stepped is what steppedbucket.lua is given, and the meaning of its replies.
type Stepped struct{ *Bucket }

// Args are the arguments of the script. mark is that of the clock in its states.
func (b Stepped) Args(mark string) []string {
	offset := "first"
	if b.aligned {
		offset = exact.Texts(b.offset)[0]
	}
	args := withRule(mark, b.Size, b.permit, b.flow, b.every)
	return slices.Insert(args, len(args)-1, offset)
}

// Longest is the longest wait of a reservation, in microseconds: the permits of the debt are at most 2^51.
func (b Stepped) Longest() int64 {
	if b.permit >= b.flow {
		return exact.Micros
	}
	high, low := bits.Mul64(exact.Micros, uint64(b.permit))
	longest, _ := bits.Div64(high, low, uint64(b.flow))
	return int64(longest)
}

// Explain is that of a decision.Explainer.
func (b Stepped) Explain(words []int64, n, taken int64, allowed bool) decision.Result {
	missing := Level{words[wordMissingPermits], words[wordMissingUnits]}
	if wait := words[wordWait]; wait > 0 && taken == 0 {
		return b.Beside(missing, allowed, wait, -words[wordSince])
	}
	return b.Result(missing, n, taken, allowed, -words[wordSince])
}

// withRule are a script's arguments: some numbers, and the rule as it stands in a state, which is all of them but the
// first.
func withRule(mark string, numbers ...int64) []string {
	args := exact.Texts(numbers...)
	return append(args, "/"+strings.Join(args[1:], "/")+mark)
}

// Result is the answer to a request for n permits. missing is what was missing before the
// run. taken: the run's permits so far, with this request's. late is added to every time until
// something is restored.
func (b *Bucket) Result(missing Level, n, taken int64, allowed bool, late int64) decision.Result {
	missing.Permits += taken
	r := b.left(missing)
	r.Allowed = allowed
	if missing != (Level{}) {
		r.ResetAfter = exact.Duration(b.Restores(missing) + late)
	}
	if !allowed {
		r.RetryAfter = exact.Duration(max(b.Restores(missing.Plus(n-b.Size))+late, 1))
		r.ResetAfter = max(r.ResetAfter, r.RetryAfter)
	}
	return r
}

// Beside is the answer to a request that has taken nothing, while the state is one of another
// rule. Both times are those of the faster rule; the reply does not say which rule that is.
func (b *Bucket) Beside(missing Level, allowed bool, wait, full int64) decision.Result {
	r := b.left(missing)
	r.Allowed = allowed
	r.ResetAfter = exact.Duration(max(full, 0))
	if !allowed {
		r.RetryAfter = exact.Duration(max(wait, 1))
		r.ResetAfter = max(r.ResetAfter, r.RetryAfter)
	}
	return r
}

// left is a Result that says what is left.
func (b *Bucket) left(missing Level) decision.Result {
	return decision.Result{Limit: int(b.Limit), Window: b.Window, Remaining: int(max(b.Size-missing.Ceil(), 0))}
}
