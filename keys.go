package ratelimit

import (
	"strings"

	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/limitername"
)

const (
	defaultPrefix = "ratelimit"
	defaultName   = limitername.Default
)

// checkKeyPart refuses a prefix or a name with which the keys of two limiters could
// meet, or whose braces would be the hash tag of all keys. Package keyname says how keys
// are named.
func (s *settings) checkKeyPart(option, what, value, byDefault string) {
	if value == "" {
		s.refuse("%s: the %s is empty; leave the option out for %q", option, what, byDefault)
	}
	if strings.ContainsAny(value, "{}") {
		s.refuse("%s: %q holds a brace, which Redis Cluster takes for a hash tag; put hash tags into the key", option, value)
	}
	for segment := range strings.SplitSeq(value, ":") {
		if algorithms.IsID(segment) {
			s.refuse("%s: %q holds %q, the id of an algorithm, so that its keys could be those of another limiter; choose another %s",
				option, value, segment, what)
		}
	}
}
