package ratelimit_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// Tests of this package need its exported surface only (package ratelimit_test, with
// the stages and variants of internal/testing/limitertest), but for those of its insides
// (package ratelimit).
//
// They assert with require. In goroutines other than the test's own, where FailNow is
// not allowed, they report with t.Error.

var ctx = context.Background()

// must returns a result, and ends the test at an error.
func must(t testing.TB) func(ratelimit.Result, error) ratelimit.Result {
	return func(r ratelimit.Result, err error) ratelimit.Result {
		t.Helper()
		require.NoError(t, err)
		return r
	}
}

func TestMain(m *testing.M) {
	defer redistest.StopShared()
	m.Run()
}
