package model

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// row is one call of a step table and the answer computed by hand. Limit and
// Window are those of the table unless the row has its own.
type row struct {
	at   int64 // microseconds after the epoch
	n    int
	peek bool
	want Answer
}

// allowed and denied are the two kinds of answers.
func allowed(remaining int, reset time.Duration) Answer {
	return Answer{Allowed: true, Remaining: remaining, ResetAfter: reset}
}

func denied(remaining int, retry, reset time.Duration) Answer {
	return Answer{Remaining: remaining, RetryAfter: retry, ResetAfter: reset}
}

// of is an answer that names its rule.
func (a Answer) of(limit int, window time.Duration) Answer {
	a.Limit, a.Window = limit, window
	return a
}

func table(t *testing.T, name string, m Model, limit int, window time.Duration, rows []row) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Helper()
		for i, r := range rows {
			if r.want.Limit == 0 {
				r.want = r.want.of(limit, window)
			}
			require.Equal(t, r.want, m.Take(r.at, r.n, r.peek), "row %d, %d permits at %d", i, r.n, r.at)
		}
	})
}

func TestContinuousBuckets(t *testing.T) {
	// A third of a second for each permit: 333333 1/3 microseconds.
	thirds := []row{
		{0, 2, true, allowed(5, 0)},
		{0, 1, false, allowed(4, 333_334*us)},
		{0, 4, false, allowed(0, 1_666_667*us)},
		{0, 1, true, denied(0, 333_334*us, 1_666_667*us)},
		{333_333, 1, false, denied(0, 1*us, 1_333_334*us)},
		{333_334, 1, false, allowed(0, 1_666_666*us)}, // full at 2 s exactly
		{666_666, 1, false, denied(0, 1*us, 1_333_334*us)},
		{666_667, 1, false, allowed(0, 1_666_667*us)}, // full at 2 s and a third
		{999_999, 1, false, denied(0, 1*us, 1_333_335*us)},
		{1_000_000, 1, false, allowed(0, 1_666_667*us)}, // at 2 2/3 s: nothing leaked
		{1_000_000, 3, false, denied(0, 1_000_000*us, 1_666_667*us)},
		{1_999_999, 3, false, denied(2, 1*us, 666_668*us)},
		{2_000_000, 3, false, allowed(0, 1_666_667*us)},
		{3_666_666, 5, false, denied(4, 1*us, 1*us)},
		{3_666_667, 5, false, allowed(0, 1_666_667*us)},
		{9_000_000, 5, false, allowed(0, 1_666_667*us)}, // never beyond the burst
		{9_000_000, 5, false, denied(0, 1_666_667*us, 1_666_667*us)},
	}
	table(t, "token", NewTokenBucket(3, time.Second, 5), 5, 1_666_667*us, thirds)
	table(t, "leaky", NewLeakyBucket(3, time.Second, 5), 5, 1_666_667*us, thirds)

	// Three in a microsecond: a wait of less than one is one.
	fast := []row{
		{0, 2, false, allowed(0, 1*us)},
		{0, 1, false, denied(0, 1*us, 1*us)},
		{1, 2, false, allowed(0, 1*us)},
	}
	table(t, "fast token", NewTokenBucket(3, us, 2), 2, 1*us, fast)
	table(t, "fast leaky", NewLeakyBucket(3, us, 2), 2, 1*us, fast)

	t.Run("the documented example", func(t *testing.T) {
		got := NewTokenBucket(10, time.Second, 20).Take(0, 3, false)
		require.Equal(t, allowed(17, 300*ms).of(20, 2*time.Second), got)
	})
}

func TestContinuousBucketsWhenTheClockIsSetBack(t *testing.T) {
	const s = int64(1_000_000)
	rows := []row{ // one a second
		{100 * s, 2, false, allowed(2, 2*time.Second)},
		{99 * s, 1, true, allowed(2, 2*time.Second)},                // what was missing is missing
		{98 * s, 1, false, allowed(1, 3*time.Second)},               // from now on
		{99 * s, 1, true, allowed(2, 2*time.Second)},                //
		{50 * s, 2, true, denied(1, 1*time.Second, 3*time.Second)},  // peek repairs nothing
		{99 * s, 1, true, allowed(2, 2*time.Second)},                // so it is still of 98 s
		{50 * s, 4, false, denied(1, 3*time.Second, 3*time.Second)}, // repaired: 3 are missing at 50 s
		{51*s - 1, 2, false, denied(1, 1*us, 2*time.Second+us)},     //
		{51 * s, 2, false, allowed(0, 4*time.Second)},               //
		{0, 1, false, denied(0, 1*time.Second, 4*time.Second)},      // to the very beginning
		{1*s - 1, 1, true, denied(0, 1*us, 3*time.Second+us)},       //
		{1 * s, 1, true, allowed(1, 3*time.Second)},                 //
		{-3 * s, 4, false, denied(0, 4*time.Second, 4*time.Second)}, // and before the epoch
		{1*s - 1, 4, false, denied(3, 1*us, 1*us)},                  //
		{1 * s, 4, false, allowed(0, 4*time.Second)},                //
		{999 * s, 1, false, allowed(3, 1*time.Second)},              //
		{998*s + s/3, 4, false, denied(3, 1*time.Second, 1*time.Second)},
	}
	table(t, "token", NewTokenBucket(1, time.Second, 4), 4, 4*time.Second, rows)
	table(t, "leaky", NewLeakyBucket(1, time.Second, 4), 4, 4*time.Second, rows)
}

// By callers' clocks no state moves back: a caller whose clock is behind is answered as at
// the state's instant, and waits for its lag too.
func TestContinuousBucketsByClocksThatDiffer(t *testing.T) {
	const s = int64(1_000_000)
	rows := []row{ // one a second
		{100 * s, 3, false, allowed(1, 3*time.Second)},
		{98 * s, 2, false, denied(1, 3*time.Second, 5*time.Second)}, // one second, and two of lag
		{98 * s, 2, true, denied(1, 3*time.Second, 5*time.Second)},  //
		{98 * s, 1, true, allowed(1, 5*time.Second)},                //
		{98 * s, 1, false, allowed(0, 6*time.Second)},               // all four are missing at 100 s
		{101*s - 1, 1, true, denied(0, 1*us, 3*time.Second+us)},     //
		{101 * s, 1, false, allowed(0, 4*time.Second)},              //
		{100 * s, 1, false, denied(0, 2*time.Second, 5*time.Second)},
		{105*s - 1, 4, false, denied(3, 1*us, 1*us)},
		{105 * s, 4, false, allowed(0, 4*time.Second)},
	}
	token, leaky := NewTokenBucket(1, time.Second, 4), NewLeakyBucket(1, time.Second, 4)
	token.CallersClock, leaky.CallersClock = true, true
	table(t, "token", token, 4, 4*time.Second, rows)
	table(t, "leaky", leaky, 4, 4*time.Second, rows)
	stepped := NewSteppedBucket(2, time.Second, 4, time.Second)
	stepped.CallersClock = true
	table(t, "stepped", stepped, 4, 2*time.Second, []row{
		{100 * s, 4, false, allowed(0, 2*time.Second)},
		{99 * s, 1, false, denied(0, 2*time.Second, 3*time.Second)},
		{101*s + s/2, 1, false, allowed(1, 1500*ms)}, // the last step was at 101 s
		{101 * s, 1, true, allowed(1, 2*time.Second)},
		{100 * s, 1, false, allowed(0, 3*time.Second)}, // as at 101 s
		{102*s - 1, 1, false, denied(0, 1*us, 1*time.Second+us)},
		{102 * s, 2, false, allowed(0, 2*time.Second)},
	})
}

func TestSteppedBucket(t *testing.T) {
	// 7 a minute in steps of 10 s: 7/6 tokens each, five steps fill 5.
	table(t, "fractions", NewSteppedBucket(7, time.Minute, 5, 10*time.Second), 5, 50*time.Second, []row{
		{3_000_000, 5, true, allowed(5, 0)},
		{3_000_000, 1, false, allowed(4, 10*time.Second)}, // steps at 13 s, 23 s…
		{5_000_000, 4, false, allowed(0, 48*time.Second)}, // the cycle goes on
		{5_000_000, 1, false, denied(0, 8*time.Second, 48*time.Second)},
		{12_999_999, 1, false, denied(0, 1*us, 40*time.Second+us)},
		{13_000_000, 1, false, allowed(0, 50*time.Second)}, // 1/6 is left
		{13_000_000, 5, true, denied(0, 50*time.Second, 50*time.Second)},
		{13_000_000, 2, true, denied(0, 20*time.Second, 50*time.Second)},
		{62_999_999, 5, false, denied(4, 1*us, 1*us)}, // 4 5/6
		{63_000_000, 5, false, allowed(0, 50*time.Second)},
		{112_999_999, 1, false, allowed(3, 10*time.Second+us)}, // 4 2/3, less 1
		{122_999_999, 5, true, denied(4, 1*us, 1*us)},          // 4 5/6
		{123_000_000, 5, true, allowed(5, 0)},                  // 6 is 5
		{130_000_000, 1, false, allowed(4, 10*time.Second)},    // full: a new cycle from 130 s
		{139_999_999, 5, true, denied(4, 1*us, 1*us)},
		{140_000_000, 5, true, allowed(5, 0)},
	})
	// A step brings more than the burst.
	table(t, "large steps", NewSteppedBucket(100, time.Second, 3, time.Second), 3, time.Second, []row{
		{0, 3, false, allowed(0, time.Second)},
		{999_999, 1, false, denied(0, 1*us, 1*us)},
		{1_000_000, 3, false, allowed(0, time.Second)},
	})
	// 2 every second; full is 4.
	const s = int64(1_000_000)
	table(t, "clock set back", NewSteppedBucket(2, time.Second, 4, time.Second), 4, 2*time.Second, []row{
		{100 * s, 4, false, allowed(0, 2*time.Second)},
		{101*s + s/2, 1, false, allowed(1, 1500*ms)}, // last step at 101 s
		{101 * s, 1, true, allowed(1, 2*time.Second)},
		{101*s - 1, 3, true, denied(1, 1*time.Second, 2*time.Second)}, // peek: nothing moves
		{102 * s, 3, true, allowed(3, 1*time.Second)},
		{101*s - 1, 3, false, denied(1, 1*time.Second, 2*time.Second)}, // moved
		{102*s - 2, 3, true, denied(1, 1*us, 1*time.Second+us)},
		{102*s - 1, 3, true, allowed(3, 1*time.Second)},
		{50 * s, 1, false, allowed(0, 2*time.Second)}, // what was there can be taken
		{51*s - 1, 1, false, denied(0, 1*us, 1*time.Second+us)},
		{51 * s, 2, false, allowed(0, 2*time.Second)},
	})
}

func TestSteppedBucketNeitherLeaksNorLosesAPermit(t *testing.T) {
	raceflag.SkipSequential(t)
	m := NewSteppedBucket(7, time.Minute, 5, time.Second)
	m.Take(0, 5, false)
	allowed := 0
	for second := int64(1); second <= 60_000; second++ {
		if m.Take(second*1_000_000, 1, false).Allowed {
			allowed++
		}
	}
	require.Equal(t, 7000, allowed, "permits in 1000 minutes")
}

func TestTokenBucketNeitherLeaksNorLosesAPermit(t *testing.T) {
	raceflag.SkipSequential(t)
	for _, r := range []struct {
		count  int
		period time.Duration
		want   int // in 21 minutes, asked for as soon as there is one
	}{{3, time.Second, 3 * 21 * 60}, {7, time.Minute, 7 * 21}} {
		m := NewTokenBucket(r.count, r.period, 1)
		m.Take(0, 1, false)
		allowed := 0
		for now := int64(0); ; {
			now += m.Take(now, 1, true).RetryAfter.Microseconds()
			if now > 21*60*1_000_000 {
				break
			}
			require.True(t, m.Take(now, 1, false).Allowed, "%+v: denied at %d after the promised wait", r, now)
			allowed++
		}
		// Each wait is rounded up, and burst 1 loses what it is rounded by.
		require.GreaterOrEqual(t, allowed, r.want-1, "%+v", r)
		require.LessOrEqual(t, allowed, r.want, "%+v", r)
	}
}
