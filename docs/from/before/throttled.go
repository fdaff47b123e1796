package before

import (
	"net/http"

	"github.com/throttled/throttled/v2"
)

func throttle(store throttled.GCRAStoreCtx, next http.Handler) (http.Handler, error) {
	quota := throttled.RateQuota{MaxRate: throttled.PerMin(20), MaxBurst: 5}
	limiter, err := throttled.NewGCRARateLimiterCtx(store, quota)
	if err != nil {
		return nil, err
	}
	limit := throttled.HTTPRateLimiterCtx{RateLimiter: limiter, VaryBy: &throttled.VaryBy{Path: true}}
	return limit.RateLimit(next), nil
}
