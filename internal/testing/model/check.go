package model

import (
	"cmp"
	"math/big"
	"slices"
	"time"
)

// A Taken is N permits that were taken at an instant, in microseconds.
type Taken struct {
	At int64
	N  int
}

// An Interval is a closed interval of time and the permits that were taken in it.
type Interval struct {
	From, To int64
	Permits  int

	// Over is Permits less what the rule allows: negative when there was room, 0 when
	// the allowance was used up exactly.
	Over *big.Rat
}

// MaxInAnyWindow is the largest number of permits that were taken in any half-open
// interval (t-window, t].
func MaxInAnyWindow(taken []Taken, window time.Duration) int {
	taken = byTime(taken)
	most, sum, oldest := 0, 0, 0
	for _, t := range taken {
		sum += t.N
		for taken[oldest].At <= t.At-wholeMicros("window", window) {
			sum -= taken[oldest].N
			oldest++
		}
		most = max(most, sum)
	}
	return most
}

// ExceedsBucket reports whether any interval of any length t holds more than
// burst + count*t/period permits. It returns the interval that exceeds this most, or
// comes closest to it.
func ExceedsBucket(taken []Taken, count int, period time.Duration, burst int) (exceeds bool, worst Interval) {
	return Exceeds(taken, count, period, rat(int64(burst)))
}

// ExceedsSteppedBucket is [ExceedsBucket] for a bucket that refills in steps. An
// interval may hold one step more, because a step at the interval's end may be for time
// before the interval.
func ExceedsSteppedBucket(taken []Taken, count int, period time.Duration, burst int, every time.Duration) (exceeds bool, worst Interval) {
	step := quo(mul(rat(int64(count)), ratMicros(every)), ratMicros(period))
	return Exceeds(taken, count, period, add(rat(int64(burst)), step))
}

// Exceeds reports whether any interval of any length t holds more than
// allowance + count*t/period permits, and returns the interval as [ExceedsBucket] does.
//
// Let P(i) be the permits taken earlier than entry i. An interval from entry i to
// entry j holds P(j)+N(j)-P(i) permits and lasts t(j)-t(i). So for each j the best i is
// the one up to j with the largest rate*t(i) - P(i), which does not depend on j. Permits
// are counted in units of 1/period, so that all numbers are whole.
func Exceeds(taken []Taken, count int, period time.Duration, allowance *big.Rat) (bool, Interval) {
	taken = byTime(taken)
	unit := big.NewInt(int64(period))
	balance := func(at int64, permits int) *big.Int { // rate*at - permits
		earned := new(big.Int).Mul(big.NewInt(int64(count)), big.NewInt(at))
		earned.Mul(earned, big.NewInt(int64(time.Microsecond)))
		return earned.Sub(earned, new(big.Int).Mul(big.NewInt(int64(permits)), unit))
	}

	var worst Interval
	var best, most *big.Int
	from, earlier, sum := int64(0), 0, 0
	for _, t := range taken {
		if start := balance(t.At, sum); best == nil || start.Cmp(best) > 0 {
			best, from, earlier = start, t.At, sum
		}
		sum += t.N
		excess := new(big.Int).Sub(best, balance(t.At, sum))
		if most == nil || excess.Cmp(most) > 0 {
			most = excess
			worst = Interval{From: from, To: t.At, Permits: sum - earlier}
		}
	}
	if most == nil {
		return false, Interval{Over: new(big.Rat).Neg(allowance)}
	}
	worst.Over = sub(new(big.Rat).SetFrac(most, unit), allowance)
	return worst.Over.Sign() > 0, worst
}

func byTime(taken []Taken) []Taken {
	taken = slices.Clone(taken)
	slices.SortStableFunc(taken, func(a, b Taken) int { return cmp.Compare(a.At, b.At) })
	return taken
}
