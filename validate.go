package ratelimit

import (
	"fmt"
	"strings"
	"time"

	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/limitername"
)

// maxKey is the most bytes of a key. Redis gets a whole key with each call, and keeps it
// for as long as its state. Without a bound, a client that chooses its own key would
// choose how much memory each of its requests takes.
const maxKey = 4096

// checkKey refuses a key that is empty or too long. The error does not hold the key,
// which may be megabytes of a stranger's text.
func checkKey(key string) error {
	switch {
	case key == "":
		return errEmptyKey
	case len(key) > maxKey:
		return fmt.Errorf("%w: it has %d bytes and may have at most %d; use a hash of long keys", ErrInvalidKey, len(key), maxKey)
	}
	return nil
}

// checkCount refuses a number of permits that cannot work.
func checkCount(name string, n int) error {
	if n < 1 {
		return invalidConfig("%s is %d; it must be at least 1", name, n)
	}
	if n > exact.Permits {
		return invalidConfig("%s is %d; it must be at most %d; count in a larger unit", name, n, exact.Permits)
	}
	return nil
}

// errNoTenant is for a key of a limiter whose keys are those of tenants.
func errNoTenant(key string) error {
	return fmt.Errorf("%w: %s says not who shares what; begin it with the limit in braces and then name the tenant, such as {gpt-4}:tenant:42", ErrInvalidKey, shortKey(key))
}

// checkRule refuses a limit or a window that cannot work.
func checkRule(r Rule) error {
	if err := checkCount("the limit", r.Limit); err != nil {
		return err
	}
	return checkSpan("the window", r.Window)
}

// checkSpan refuses a window or period that cannot work.
func checkSpan(name string, d time.Duration) error {
	switch {
	case d < time.Millisecond:
		return invalidConfig("%s is %v; it must be at least 1ms", name, d)
	case d > exact.Duration(exact.Micros):
		return invalidConfig("%s is %v; it must be at most %v", name, d, exact.Duration(exact.Micros))
	case d%time.Microsecond != 0:
		return invalidConfig("%s is %v; it must be a whole number of microseconds", name, d)
	}
	return nil
}

// maxStored is how many permits one call can take, from all its limiters together, of those
// that store each permit. All is done in one execution: to add as many members takes 20 ms.
const maxStored = 10_000

// maxLimits is how many limits of [TokenBucket.With] are kept: as many as are usually in use at once,
// in some 26 MB.
const maxLimits = 16_384

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
