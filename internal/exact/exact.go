// Package exact has the bounds below which all numbers of a limiter are exact, in Lua too.
package exact

import (
	"math"
	"strconv"
	"time"
)

// Integers in Lua are exact below Bound. The other bounds keep every sum below that.
const (
	Bound   = 1 << 53
	Permits = 1_000_000_000 // of a limit
	Micros  = 1 << 51       // of a window, 71 years; the caller's clock is below twice that
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
