package faulttest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

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
