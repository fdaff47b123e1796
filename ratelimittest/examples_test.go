package ratelimittest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

func TestSignups(t *testing.T) {
	t.Parallel()
	testSignups(t)
}

func ExampleScript() {
	var t *testing.T // that of go test
	limiter := ratelimittest.NewScript(t)
	limiter.Deny("alice", 30*time.Second)
	limiter.Once().Fail("bob", errors.New("Redis is down"))
	// service := NewService(limiter) …
}

func ExampleRecorder() {
	var calls ratelimittest.Recorder
	perUser := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 5))
	limiter := calls.Around("per user", perUser) // for the service

	_, _ = limiter.TryAcquireN(context.Background(), "user:42", 3)
	_, _ = limiter.TryAcquireN(context.Background(), "user:42", 6)
	fmt.Println(&calls)
	// Output:
	// per user: TryAcquire("user:42", 3): allowed, 2 of 5 left
	// per user: TryAcquire("user:42", 6): ratelimit: more permits than the limit: 6 permits of a local token bucket, which allows 5 at most
}
