package serve

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const metricsFile = `
domain: shop
descriptors:
- key: user
  rate_limit: {unit: minute, requests_per_unit: 10}
  descriptors:
  - key: path
    rate_limit: {unit: minute, requests_per_unit: 2}
    descriptors:
    - {key: method, rate_limit: {unit: minute, requests_per_unit: 9}}
    - {key: host, rate_limit: {unit: minute, requests_per_unit: 9}}
- {key: remote_address, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 9}}
- {key: site, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 9}}
`

// The counters of rules and of a service_error that envoyproxy/ratelimit (f2fb157) wrote, with USE_PROMETHEUS, for the same
// files and requests.
const originals = `
rate_limit_total_hits{domain="shop",key1="remote_address_10_1_2_3"} 1
rate_limit_total_hits{domain="shop",key1="site_a",key2="b_80"} 1
rate_limit_total_hits{domain="shop",key1="site_a",key2="c"} 1
rate_limit_total_hits{domain="shop",key1="user"} 9
rate_limit_total_hits{domain="shop",key1="user",key2="path"} 5
rate_limit_over_limit{domain="shop",key1="user",key2="path"} 1
rate_limit_near_limit{domain="shop",key1="user"} 1
rate_limit_near_limit{domain="shop",key1="user",key2="path"} 1
rate_limit_within_limit{domain="shop",key1="remote_address_10_1_2_3"} 1
rate_limit_within_limit{domain="shop",key1="site_a",key2="b_80"} 1
rate_limit_within_limit{domain="shop",key1="site_a",key2="c"} 1
rate_limit_within_limit{domain="shop",key1="user"} 9
rate_limit_within_limit{domain="shop",key1="user",key2="path"} 2
should_rate_limit_error{err_type="redis_error"} 1
should_rate_limit_error{err_type="service_error"} 1
total_requests{grpc_method="ShouldRateLimit"} 3
response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.005"} 1
response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.01"} 2
response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.025"} 2
response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.05"} 2
response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.1"} 2
response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.25"} 2
response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.5"} 2
response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="1"} 2
response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="2.5"} 2
response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="5"} 2
response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="10"} 2
response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="+Inf"} 3
response_time_seconds_sum{grpc_method="ShouldRateLimit"} 60.011
response_time_seconds_count{grpc_method="ShouldRateLimit"} 3
config_load_success 1
`

func TestOriginalMetrics(t *testing.T) {
	files := func() ([]Source, error) { return []Source{{"f", []byte(metricsFile)}}, nil }
	onStage(t, Options{OriginalMetrics: true, CountDenied: true, Files: files}, func(t *testing.T, s stage) {
		s.ask(request(9, "user=42"))
		s.ask(request(3, "user=42,path=/a.b"))
		s.ask(request(1, "user=42,path=/a.b,method=GET", "user=42,path=/a.b,host=x"))
		s.ask(request(1, "remote_address=10.1.2.3", "site=a.b|80", "site=a.c.d"))
		_, err := s.ShouldRateLimit(t.Context(), request(1))
		require.Error(t, err)
		s.Down()
		_, err = s.ShouldRateLimit(t.Context(), request(1, "user=42"))
		require.Error(t, err)
		require.EqualValues(t, 6, s.stats.times.counts[0].Swap(0))
		s.stats.times.note(5 * time.Millisecond)
		s.stats.times.note(6 * time.Millisecond)
		s.stats.times.note(time.Minute)
		var all strings.Builder
		s.stats.write(&all, true)
		lines := "\n"
		for line := range strings.Lines(all.String()) {
			if !strings.HasPrefix(line, "#") && !strings.HasSuffix(line, " 0\n") {
				lines += strings.TrimPrefix(line, "ratelimit_service_")
			}
		}
		require.Equal(t, originals, lines)
	})
}
