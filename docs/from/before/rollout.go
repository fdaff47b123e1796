package before

import (
	"context"

	"github.com/go-redis/redis_rate/v10"

	"github.com/tryacquire/ratelimit"
)

// both is the release between: a call needs the permits of both.
func both(ctx context.Context, old *redis_rate.Limiter, now ratelimit.Limiter, key string) (bool, error) {
	res, err := old.Allow(ctx, key, redis_rate.PerMinute(10))
	if err != nil || res.Allowed == 0 {
		return false, err
	}
	result, err := now.TryAcquire(ctx, key)
	return result.Allowed, err
}
