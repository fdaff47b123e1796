package otellimit_test

import (
	"log"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/otellimit"
)

// Metrics for Prometheus on /metrics, of a limiter and its decorators.
func Example_prometheus() {
	reader, err := exporter.New() // go.opentelemetry.io/otel/exporters/prometheus
	if err != nil {
		log.Fatal(err)
	}
	metrics, err := otellimit.New(otellimit.WithMeterProvider(sdk.NewMeterProvider(sdk.WithReader(reader))))
	if err != nil {
		log.Fatal(err)
	}
	watched := ratelimit.WithObserver(metrics.Observe)
	http.Handle("/metrics", promhttp.Handler())

	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(10), 20, ratelimit.WithName("api"), watched))
	cached := ratelimit.Must(ratelimit.NewDenyCache(bucket, watched))
	limiter := ratelimit.Must(ratelimit.NewFallback(cached, ratelimit.AllowAll(),
		ratelimit.WithBudget(20*time.Millisecond), ratelimit.WithBreaker(&ratelimit.Breaker{}), watched))
	_ = limiter // limiter.TryAcquire(ctx, "user:42")
}
