package before

import (
	"net/http"

	"github.com/redis/go-redis/v9"
	"github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/middleware/stdlib"
	sredis "github.com/ulule/limiter/v3/drivers/store/redis"
)

func ulule(client *redis.Client, next http.Handler) (http.Handler, error) {
	rate, err := limiter.NewRateFromFormatted("5-M")
	if err != nil {
		return nil, err
	}
	store, err := sredis.NewStore(client)
	if err != nil {
		return nil, err
	}
	return stdlib.NewMiddleware(limiter.New(store, rate)).Handler(next), nil
}
