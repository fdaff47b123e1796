package ratelimit

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/model"
)

// What tests of package ratelimit_test need of the engine.

// Merged makes calls for these keys in one execution, in this order, of which some are
// given up before it is sent: these have no result.
func Merged(t testing.TB, l Limiter, calls []model.Step, keys []string, givenUp ...int) []Result {
	t.Helper()
	if len(calls) >= 64 { // more than wait for each other
		require.Empty(t, givenUp)
		return decideTogether(t, coreOf(t, l), calls, keys)
	}
	gone := map[int]bool{}
	for _, i := range givenUp {
		gone[i] = true
	}
	results, errs := inOneBatch(t, coreOf(t, l), calls, keys, gone)
	for i, err := range errs {
		if !gone[i] {
			require.NoError(t, err)
		}
	}
	return results
}

// Together makes one call for one permit of each of the keys, all in one batch.
var Together = together

// ReserveBy is l.Reserve for a reservation whose delay is counted by a clock of the test's.
func ReserveBy(now func() time.Time, l Reserver, key string, n int, maxWait time.Duration) (*Reservation, error) {
	clock := timing{now: now}
	switch l := l.(type) {
	case *TokenBucket:
		return l.core.reserve(context.Background(), clock, key, n, maxWait, nil)
	case *LeakyBucket:
		return l.core.reserve(context.Background(), clock, key, n, maxWait, nil)
	}
	panic("a limiter that cannot reserve")
}
