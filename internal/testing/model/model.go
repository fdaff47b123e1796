// Package model holds an exact reference model of every algorithm, in plain Go that
// follows the algorithm's definition: fractions are [math/big.Rat], and windows count
// the permits taken one by one. The models are slow and meant to be obviously right. The
// real limiters are tested against them with the same random sequences, see [Scenario].
//
// A model is the state of one key. Instants are microseconds since the Unix
// epoch; every wait is rounded up to a whole microsecond. Constructors panic on
// a configuration that a limiter would refuse, and Take panics on a number of
// permits for which a limiter would return an error without asking Redis.
package model

import (
	"fmt"
	"math/big"
	"time"
)

// A Model is the state of one key under one algorithm.
type Model interface {
	// Take asks for n permits, 1 to Max, at now. With peek it takes nothing and changes
	// nothing: Allowed and RetryAfter are those of Take, Remaining and ResetAfter are
	// about what there is now.
	Take(now int64, n int, peek bool) Answer

	// Reset deletes the state.
	Reset()

	// Unused reports whether no permit that was ever taken matters at now or later, so
	// that the key may have expired in Redis. An expired key and a model that still has
	// its state differ only if the clock is set back after that; a test that does so
	// calls Reset first.
	Unused(now int64) bool

	// Max is the largest number of permits that one call can ask for.
	Max() int

	// Span is the longest window, or the time to refill or drain completely.
	Span() time.Duration
}

// An Answer has the fields of a result of the real limiters.
type Answer struct {
	Allowed    bool
	Limit      int
	Window     time.Duration
	Remaining  int
	RetryAfter time.Duration
	ResetAfter time.Duration
	ByShare    bool
}

// count decides on n permits of a window of which so many are used, and returns how many are
// used then. a has the limit, and in ResetAfter the time until the window ends.
func (a *Answer) count(used, n int, peek, charge bool) int {
	if a.Allowed = used+n <= a.Limit || charge; !a.Allowed {
		a.RetryAfter = a.ResetAfter
	}
	if peek && used == 0 {
		a.ResetAfter = 0
	}
	if a.Allowed && !peek {
		used += n
	}
	a.Remaining = max(a.Limit-used, 0)
	return used
}

// A Rule allows at most Limit permits in any interval of one Window.
type Rule struct {
	Limit  int
	Window time.Duration
}

// checkPermits panics unless a limiter would ask Redis for n permits.
func checkPermits(n, most int) {
	if n < 1 || n > most {
		panic(fmt.Sprintf("model: %d permits, want 1 to %d", n, most))
	}
}

// checkPositive panics unless value is at least 1.
func checkPositive[T ~int | ~int64](name string, value T) {
	if value < 1 {
		panic(fmt.Sprintf("model: %s is %v, want at least 1", name, value))
	}
}

// wholeMicros returns d in microseconds. It panics if that is not a whole number.
func wholeMicros(name string, d time.Duration) int64 {
	if d%time.Microsecond != 0 {
		panic(fmt.Sprintf("model: %s is %v, want whole microseconds", name, d))
	}
	return d.Microseconds()
}

// micros is the duration of us microseconds.
func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// floorDiv is the largest whole number that is at most a/b, b > 0.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

func rat(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

// ratMicros is d in microseconds, exactly.
func ratMicros(d time.Duration) *big.Rat { return big.NewRat(int64(d), int64(time.Microsecond)) }

func add(a, b *big.Rat) *big.Rat { return new(big.Rat).Add(a, b) }
func sub(a, b *big.Rat) *big.Rat { return new(big.Rat).Sub(a, b) }
func mul(a, b *big.Rat) *big.Rat { return new(big.Rat).Mul(a, b) }
func quo(a, b *big.Rat) *big.Rat { return new(big.Rat).Quo(a, b) }

func less(a, b *big.Rat) bool { return a.Cmp(b) < 0 }

// floor is the largest whole number that is at most r.
func floor(r *big.Rat) int64 {
	// Euclidean division is floored division when the divisor is positive.
	q := new(big.Int).Div(r.Num(), r.Denom())
	if !q.IsInt64() {
		panic("model: " + r.String() + " is beyond 64 bits")
	}
	return q.Int64()
}

// ceil is the smallest whole number that is at least r.
func ceil(r *big.Rat) int64 { return -floor(new(big.Rat).Neg(r)) }
