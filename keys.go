package ratelimit

import (
	"slices"
	"strings"

	"github.com/tryacquire/ratelimit/internal/limitername"
)

// The keys of a limiter are named prefix:name:algorithm:key. A name has no colon,
// and no segment of a prefix or a name is an algorithm's id. So the first segment
// that is an id ends the limiter's part of a key, whatever a caller's key holds, and
// the keys of two limiters never meet.

const (
	defaultPrefix = "ratelimit"
	defaultName   = limitername.Default
)

// The ids of the algorithms in keys. A changed state format gets a new id: the old one
// with a number behind it.
const (
	idFixedWindow       = "fixedwindow"
	idCalendarWindow    = "calendarwindow"
	idSlidingWindowHash = "slidingwindow-hash"
	idSlidingWindowList = "slidingwindow-list"
	idSlidingWindowZSet = "slidingwindow-zset"
	idSlidingLog        = "slidinglog"
	idTokenBucket       = "tokenbucket"
	idLeakyBucket       = "leakybucket"
	idInFlight          = "inflight"
)

var algorithmIDs = []string{
	idFixedWindow, idCalendarWindow, idSlidingWindowHash, idSlidingWindowList, idSlidingWindowZSet, idSlidingLog, idTokenBucket, idLeakyBucket,
	idInFlight,
}

// isAlgorithmID reports whether segment is the id of an algorithm, in its present
// state format or in any other.
func isAlgorithmID(segment string) bool {
	return slices.Contains(algorithmIDs, strings.TrimRight(segment, "0123456789"))
}

// keyPrefix is what the keys of a limiter begin with.
func keyPrefix(prefix, name, id string) string {
	return prefix + ":" + name + ":" + id + ":"
}

// checkKeyPart refuses a prefix or a name with which the keys of two limiters could
// meet, or which would send all keys to one slot of a cluster.
func (s *settings) checkKeyPart(option, what, value, byDefault string) {
	if value == "" {
		s.refuse("%s: the %s is empty; leave the option out for %q", option, what, byDefault)
	}
	if strings.ContainsAny(value, "{}") {
		s.refuse("%s: %q holds a brace, which Redis Cluster takes for a hash tag; put hash tags into the key", option, value)
	}
	for segment := range strings.SplitSeq(value, ":") {
		if isAlgorithmID(segment) {
			s.refuse("%s: %q holds %q, the id of an algorithm, so that its keys could be those of another limiter; choose another %s",
				option, value, segment, what)
		}
	}
}
