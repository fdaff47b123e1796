package ratelimit

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/model"
)

// What tests of package ratelimit_test need of the engine.

// Merged makes calls for these keys in one execution, in this order, of which some are
// given up before it is sent: these have no result.
func Merged(t testing.TB, l Limiter, calls []model.Step, keys []string, givenUp ...int) []Result {
	t.Helper()
	c := coreOf(t, l)
	m := newMerger(c)
	f, seats := boarded(t, m, calls, keys)
	for _, i := range givenUp {
		seats[i].leave()
		seats[i].flight = nil
	}
	require.Equal(t, len(calls)-len(givenUp), f.seats)
	m.execute(f)
	results := make([]Result, len(calls))
	for i, s := range seats {
		if s.flight == nil {
			continue
		}
		words, index, err := s.outcome()
		require.NoError(t, err)
		results[i] = c.explain(words, int64(calls[i].N), index)
	}
	return results
}

// ReadReply lets a limiter read words as the reply to merged calls, of which the first
// is for one permit of a key, and returns what is left of them for the others.
func ReadReply(t testing.TB, l Limiter, words []int64) (rest []int64) {
	t.Helper()
	c := coreOf(t, l)
	m := newMerger(c)
	f, seats := boarded(t, m, ones(1), []string{"k"})
	rest = m.answer(f, 0, words, nil)
	if words, index, err := seats[0].outcome(); err == nil {
		c.explain(words, 1, index)
	}
	return rest
}
