// Package exact has the bounds below which all numbers of a limiter are exact, in Lua too.
package exact

import (
	"math"
	"math/bits"
	"strconv"
	"time"
)

// Integers in Lua are exact below Bound. The other bounds keep every sum below that; docs/choosing.md has them in a table.
const (
	Bound  = 1 << 53
	Micros = 1 << 51 // of a window, 71 years; the caller's clock is below twice that

	Permits = Counted * (1 + 999*(bits.UintSize/64)) // of a limit or a call: 10^12, or what an int of 32 bits holds
	Counted = 1_000_000_000                          // of a fixed window whose state is one integer with its length

	// Debt is how many permits a window counts at most, with those that were charged beyond its limit: 4e12 in
	// the scripts, of which one with an int of 32 bits takes a part.
	Debt        = 4_000_000_000_000
	CountedDebt = 4 * Counted
)

// Duration is n microseconds, or the longest Duration, 292 years.
func Duration(n int64) time.Duration {
	return time.Duration(min(n, math.MaxInt64/int64(time.Microsecond))) * time.Microsecond
}

// Texts are the numbers as arguments of a script.
func Texts(numbers ...int64) []string {
	texts := make([]string, len(numbers))
	for i, n := range numbers {
		texts[i] = strconv.FormatInt(n, 10)
	}
	return texts
}

// CeilDiv is a/b rounded up, for a ≥ 0 and b > 0.
func CeilDiv(a, b int64) int64 {
	q := a / b
	if a%b > 0 {
		q++
	}
	return q
}
