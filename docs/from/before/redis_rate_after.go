package before

import (
	"net/http"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
)

func redisRateAfter(client *redis.Client, handler http.Handler) http.Handler {
	limiter := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerMinute(10), 10, ratelimit.WithName("user")))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		result, err := limiter.TryAcquire(r.Context(), "user:"+r.Header.Get("X-User"))
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		if !result.Allowed {
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
		handler.ServeHTTP(w, r)
	})
}
