package ratelimit

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/model"
	"github.com/tryacquire/ratelimit/internal/redisexec"
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

// AllMerged makes so many equal calls of AcquireAll in one execution.
func AllMerged(t testing.TB, claims []Claim, times int) []AllResult {
	t.Helper()
	var limiters [maxGroup]*core
	for i, c := range claims {
		limiters[i] = c.limiter
	}
	g, err := claims[0].limiter.groups.get(limiters, len(claims))
	require.NoError(t, err)
	request, err := g.pack(ctx, claims)
	require.NoError(t, err)
	words, err := g.exec.DoMany(ctx, 1, func(int) (*string, any) {
		return &request, []byte(fmt.Sprintf("1x%d", times))
	})
	require.NoError(t, err)
	require.Len(t, words, g.exec.Words)
	all := make([]AllResult, times)
	for i := range all {
		all[i].Parts = make([]PartResult, len(claims))
		all[i].Result = g.explain(redisexec.Reply{Words: words, Index: int64(i)}, claims, false, all[i].Parts)
	}
	return all
}
