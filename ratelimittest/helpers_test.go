package ratelimittest_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

var ctx = context.Background()

// inBubble runs test in a bubble, beside other tests.
func inBubble(t *testing.T, test func(t *testing.T, env *ratelimittest.Env)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { test(t, ratelimittest.New(t)) })
}

func take(t testing.TB, l ratelimit.Limiter, key string) ratelimit.Result {
	t.Helper()
	r, err := l.TryAcquire(ctx, key)
	require.NoError(t, err)
	return r
}

func allow(t testing.TB, l ratelimit.Limiter, key string) ratelimit.Result {
	t.Helper()
	r := take(t, l, key)
	require.True(t, r.Allowed, "%+v", r)
	return r
}

func deny(t testing.TB, l ratelimit.Limiter, key string, retryAfter time.Duration) {
	t.Helper()
	r := take(t, l, key)
	require.False(t, r.Allowed, "%+v", r)
	require.Equal(t, retryAfter, r.RetryAfter)
}

// A fakeT notes how a test fails. Its Fatalf ends the goroutine by a panic.
type fakeT struct {
	testing.TB
	failure string
}

type failed struct{}

func (f *fakeT) Helper() {}

func (f *fakeT) Fatalf(format string, args ...any) {
	f.failure = fmt.Sprintf(format, args...)
	panic(failed{})
}

// failureOf is the message with which do fails its test.
func failureOf(t *testing.T, do func(t testing.TB)) string {
	t.Helper()
	f := &fakeT{TB: t}
	func() {
		defer func() {
			if p := recover(); p != nil && p != (failed{}) {
				panic(p)
			}
		}()
		do(f)
	}()
	return f.failure
}
