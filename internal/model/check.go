package model

import (
	"cmp"
	"math/big"
	"slices"
	"time"
)

// A Grant is N permits that were granted at an instant, in microseconds.
type Grant struct {
	At int64
	N  int
}

// An Interval is a closed interval of time and what was granted in it.
type Interval struct {
	From, To int64
	Permits  int

	// Over is by how many permits that is more than is allowed: negative when
	// there was room, 0 when the allowance was used up exactly.
	Over *big.Rat
}

// MaxInAnyWindow is the most that was granted in any half-open interval
// (t-window, t].
func MaxInAnyWindow(grants []Grant, window time.Duration) int {
	grants = byTime(grants)
	most, sum, oldest := 0, 0, 0
	for _, g := range grants {
		sum += g.N
		for grants[oldest].At <= g.At-wholeMicros("window", window) {
			sum -= grants[oldest].N
			oldest++
		}
		most = max(most, sum)
	}
	return most
}

// ExceedsBucket reports whether any interval of any length t holds more than
// burst + count*t/period permits, and the interval that comes closest to that
// or exceeds it most.
func ExceedsBucket(grants []Grant, count int, period time.Duration, burst int) (exceeds bool, worst Interval) {
	return mostOver(grants, count, period, rat(int64(burst)))
}

// ExceedsSteppedBucket is [ExceedsBucket] for a bucket that refills in steps: an
// interval holds one step more, for a step may come at its very end for time
// that passed before it.
func ExceedsSteppedBucket(grants []Grant, count int, period time.Duration, burst int, every time.Duration) (exceeds bool, worst Interval) {
	step := quo(mul(rat(int64(count)), ratMicros(every)), ratMicros(period))
	return mostOver(grants, count, period, add(rat(int64(burst)), step))
}

// mostOver finds the interval in which the permits exceed allowance + rate*t by
// most. With P(i) the permits before grant i, an interval from grant i to grant j
// holds P(j)+N(j)-P(i) in t(j)-t(i): for each j the best i is that with the
// largest rate*t(i) - P(i), whichever j. Permits are counted in units of
// 1/period, so that everything is whole.
func mostOver(grants []Grant, count int, period time.Duration, allowance *big.Rat) (bool, Interval) {
	grants = byTime(grants)
	unit := big.NewInt(int64(period))
	balance := func(at int64, permits int) *big.Int { // rate*at - permits
		earned := new(big.Int).Mul(big.NewInt(int64(count)), big.NewInt(at))
		earned.Mul(earned, big.NewInt(int64(time.Microsecond)))
		return earned.Sub(earned, new(big.Int).Mul(big.NewInt(int64(permits)), unit))
	}

	var worst Interval
	var best, most *big.Int
	from, before, sum := int64(0), 0, 0
	for _, g := range grants {
		if start := balance(g.At, sum); best == nil || start.Cmp(best) > 0 {
			best, from, before = start, g.At, sum
		}
		sum += g.N
		excess := new(big.Int).Sub(best, balance(g.At, sum))
		if most == nil || excess.Cmp(most) > 0 {
			most = excess
			worst = Interval{From: from, To: g.At, Permits: sum - before}
		}
	}
	if most == nil {
		return false, Interval{Over: new(big.Rat).Neg(allowance)}
	}
	worst.Over = sub(new(big.Rat).SetFrac(most, unit), allowance)
	return worst.Over.Sign() > 0, worst
}

func byTime(grants []Grant) []Grant {
	grants = slices.Clone(grants)
	slices.SortStableFunc(grants, func(a, b Grant) int { return cmp.Compare(a.At, b.At) })
	return grants
}
