package keyname

import (
	"slices"
	"strings"
)

// The ids of the algorithms in keys. A changed state format gets a new id: the old one
// with a number behind it.
const (
	FixedWindow       = "fixedwindow"
	CalendarWindow    = "calendarwindow"
	SlidingWindowHash = "slidingwindow-hash"
	SlidingWindowList = "slidingwindow-list"
	SlidingWindowZSet = "slidingwindow-zset"
	SlidingLog        = "slidinglog"
	TokenBucket       = "tokenbucket"
	LeakyBucket       = "leakybucket"
	InFlight          = "inflight"
)

var ids = []string{
	FixedWindow, CalendarWindow, SlidingWindowHash, SlidingWindowList, SlidingWindowZSet, SlidingLog, TokenBucket, LeakyBucket,
	InFlight,
}

// All are the ids of the present state formats.
func All() []string { return slices.Clone(ids) }

// IsID reports whether segment is the id of an algorithm, in its present state format or
// in any other.
func IsID(segment string) bool {
	return slices.Contains(ids, strings.TrimRight(segment, "0123456789"))
}
