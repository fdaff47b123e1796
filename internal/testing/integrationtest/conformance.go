package integrationtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// Denied asserts all that the error of a denied call says. A denial because of too many calls at
// once has AtOnce for a window.
type Denied func(t testing.TB, err error, policy string, limit int, window, delay time.Duration)

// Calls are calls that a variant of limitertest limits.
type Calls struct {
	Stage   *limitertest.Stage
	Variant limitertest.Variant
	Ask     func(n int) error // makes a call that takes n permits
	Denied  Denied
	Code    func(err error) uint32
}

// Conform tests that calls are allowed and denied as the variant says. What a call carries is
// compared: whether it was allowed; of a denial, limit, window and RetryAfter, to the millisecond;
// and the codes of errors.
func (c Calls) Conform(t *testing.T) {
	stage, v := c.Stage, c.Variant
	denied := func(err error, retry time.Duration) {
		t.Helper()
		c.Denied(t, err, "default", v.Limit, v.Window, (retry + time.Millisecond - 1).Truncate(time.Millisecond))
	}

	stage.Wipe(t)
	for range 3 {
		require.NoError(t, c.Ask(1))
	}
	for range 2 {
		denied(c.Ask(1), v.Retry)
	}
	stage.Advance(v.Retry - v.Grain)
	denied(c.Ask(1), v.Grain)
	stage.Advance(v.Grain)
	require.NoError(t, c.Ask(1))

	stage.Wipe(t)
	require.NoError(t, c.Ask(2))
	denied(c.Ask(2), v.Retry)
	require.NoError(t, c.Ask(1), "a denial takes nothing")

	require.EqualValues(t, invalidArgument, c.Code(c.Ask(4)), "more than can ever be allowed")
	require.EqualValues(t, internal, c.Code(c.Ask(-1)))
	if v.Corrupt != nil {
		stage.Wipe(t)
		require.NoError(t, v.Corrupt(stage.Admin, v.Key))
		require.EqualValues(t, internal, c.Code(c.Ask(1)))
	}
}
