package before

import (
	"net/http"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
)

func redisRate(client *redis.Client, next http.Handler) http.Handler {
	limiter := redis_rate.NewLimiter(client)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		res, err := limiter.Allow(r.Context(), "user:"+r.Header.Get("X-User"), redis_rate.PerMinute(10))
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		if res.Allowed == 0 {
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
		next.ServeHTTP(w, r)
	})
}
