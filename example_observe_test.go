package ratelimit_test

import (
	"context"
	"fmt"

	"github.com/tryacquire/ratelimit"
)

// The same observer for a limiter and the decorators around it: each call is reported by the
// one that answered it.
func ExampleWithObserver() {
	watched := ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) {
		fmt.Printf("%s %s: %s by %s\n", o.Limiter, o.Call, o.Outcome, o.Source)
	})
	bucket := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerHour(1), 1, ratelimit.WithName("api"), watched))
	limiter := ratelimit.Must(ratelimit.NewDenyCache(bucket, watched))

	for range 3 {
		_, _ = limiter.TryAcquire(context.Background(), "user:42")
	}
	// Output:
	// api acquire: allowed by local
	// api acquire: denied by local
	// api acquire: denied by memory
}
