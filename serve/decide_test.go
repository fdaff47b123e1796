package serve

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

func TestOneDescriptor(t *testing.T) {
	onStage(t, Options{}, func(t *testing.T, s stage) {
		s.Advance(15 * time.Second)
		s.expect("OK | OK 9 of 10/minute, 45s", request(0, "user=42"))
		s.Advance(500 * time.Millisecond)
		s.expect("OK | OK 0 of 10/minute, 45s", request(9, "user=42"))
		s.expect("OVER | OVER 0 of 10/minute, 45s", request(1, "user=42"))
		s.expect("OK | OK 9 of 10/minute, 45s", request(1, "user=43"))
		s.Advance(44*time.Second + 500*time.Millisecond)
		s.expect("OK | OK 9 of 10/minute, 1m0s", request(1, "user=42"))
		s.expect("OVER | OVER 0 of 10/minute, 1m0s", request(10, "user=42")) // only 9 are left
		s.expect("OK | OK 0 of 10/minute, 1m0s", request(9, "user=42"))      // and they still are
		s.expect("OVER | OVER 0 of 10/minute, 1m0s", request(11, "user=44")) // more than the limit is a denial
		s.expect("OVER | OVER 0 of 10/minute, 1m0s", request(1<<32-1, "user=44"))
		s.expect("OVER | OVER 0 of 10/minute, 1m0s", request(0, "user=44:18446744073709551615"))
		s.expect("OK | OK 9 of 10/minute, 1m0s", request(1, "user=44"))
	})
}

func TestWithoutALimit(t *testing.T) {
	onStage(t, Options{}, func(t *testing.T, s stage) {
		s.expect("OK | OK unlimited", request(1, "user=staff"))
		s.expect("OK | OK", request(1, "user=nobody"))
		s.expect("OK | OK", request(1, "unknown=1"))
		s.expect("OK | OK", request(1, "user=42,path=/other"))
		s.expect("OK | OK", request(1, "user=42,path=/search,more=1"))
		other := request(1, "user=42")
		other.Domain = "other"
		s.expect("OK | OK", other)
		s.expect("OVER | OVER 0 of 0/day, 24h0m0s", request(1, "banned=1"))
		s.expect("OK | OK 0 of 0/day, 24h0m0s", request(0, "banned=1:0"))
		s.expect("OVER | OVER 0 of 0/day, 24h0m0s | OK 10 of 10/minute, 1m0s", request(1, "banned=1", "user=42"))
	})
}

func TestWrongRequests(t *testing.T) {
	onStage(t, Options{}, func(t *testing.T, s stage) {
		unit := request(1, "user=42")
		unit.Descriptors[0].Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 5}
		for _, test := range []struct {
			request *pb.RateLimitRequest
			code    codes.Code
			message string
		}{
			{&pb.RateLimitRequest{}, codes.InvalidArgument, "rate limit domain must not be empty"},
			{&pb.RateLimitRequest{Domain: "shop"}, codes.InvalidArgument, "rate limit descriptor list must not be empty"},
			{back(request(1, "sliding=1")), codes.Unimplemented, "descriptor 1: is_negative_hits: a sliding_window takes no hits back"},
			{unit, codes.InvalidArgument, "descriptor 1: the limit's unit 0 is not known"},
		} {
			_, err := s.ShouldRateLimit(t.Context(), test.request)
			require.Equal(t, test.code, status.Code(err))
			require.Equal(t, test.message, status.Convert(err).Message())
		}
	})
}

// TestAllOrNothing: a denied request counts nowhere.
func TestAllOrNothing(t *testing.T) {
	onStage(t, Options{}, func(t *testing.T, s stage) {
		s.expect("OK | OK 9 of 10/minute, 1m0s | OK 1 of 2/second, 1s", request(1, "user=42", "user=42,path=/search"))
		s.expect("OK | OK 8 of 10/minute, 1m0s | OK 0 of 2/second, 1s", request(1, "user=42", "user=42,path=/search"))
		for range 3 {
			s.expect("OVER | OK 8 of 10/minute, 1m0s | OVER 0 of 2/second, 1s", request(1, "user=42", "user=42,path=/search"))
		}
		s.expect("OVER | OVER 0 of 10/minute, 1m0s | OK 3 of 3/hour, 1h0m0s", request(11, "user=42", "files=files/a:1"))
	})
}

// back makes the hits of the first descriptor negative.
func back(r *pb.RateLimitRequest) *pb.RateLimitRequest {
	r.Descriptors[0].IsNegativeHits = true
	return r
}

// TestNegativeHits are given back, at most what is taken, if the request is allowed. They count in no metric.
func TestNegativeHits(t *testing.T) {
	onStage(t, Options{}, func(t *testing.T, s stage) {
		s.expect("OK | OK 10 of 10/minute, 1m0s", back(request(3, "user=42")))
		s.expect("OK | OK 0 of 10/minute, 1m0s", request(10, "user=42"))
		s.expect("OK | OK 3 of 10/minute, 1m0s", back(request(3, "user=42")))
		s.expect("OK | OK 4 of 10/minute, 1m0s", back(request(0, "user=42:1")))
		s.expect("OK | OK 4 of 10/minute, 1m0s", back(request(0, "user=42:0")))
		s.expect("OVER | OK 4 of 10/minute, 1m0s | OVER 0 of 0/day, 24h0m0s", back(request(1, "user=42", "banned=1")))
		s.expect("OK | OK 10 of 10/minute, 1m0s", back(request(0, "user=42:99999999999")))
		s.expect("OK | OK 0 of 0/day, 24h0m0s", back(request(1, "banned=1")))
		s.expect("OVER | OVER 0 of 4/minute, 1m0s", request(0, "counts=1:6"))
		s.expect("OK | OK 0 of 4/minute, 1m0s", back(request(1, "counts=1")))
		s.expect("OK | OK 1 of 4/minute, 1m0s", back(request(2, "counts=1")))
		var metrics strings.Builder
		s.stats.write(&metrics, false)
		require.Contains(t, metrics.String(), `total_hits{domain="shop",descriptor="user"} 10`)
	})
	onStage(t, Options{CountDenied: true}, func(t *testing.T, s stage) {
		s.expect("OVER | OVER 0 of 10/minute, 1m0s", request(12, "user=42"))
		s.expect("OK | OK 1 of 10/minute, 1m0s", back(request(3, "user=42")))
	})
}

// TestCountDenied: in the manner of envoyproxy/ratelimit, everything counts.
func TestCountDenied(t *testing.T) {
	onStage(t, Options{CountDenied: true}, func(t *testing.T, s stage) {
		for i := range 2 {
			s.expect(fmt.Sprintf("OK | OK %d of 10/minute, 1m0s | OK %d of 2/second, 1s", 9-i, 1-i), request(1, "user=42", "user=42,path=/search"))
		}
		for i := range 3 {
			s.expect(fmt.Sprintf("OVER | OK %d of 10/minute, 1m0s | OVER 0 of 2/second, 1s", 7-i), request(1, "user=42", "user=42,path=/search"))
		}
		s.expect("OVER | OVER 0 of 10/minute, 1m0s", request(6, "user=42"))
		s.expect("OVER | OVER 0 of 10/minute, 1m0s", request(1, "user=42")) // 5 were left, and 6 have been counted
		s.expect("OK | OK 0 of 10/minute, 1m0s", request(10, "user=7"))
		s.expect("OK | OK 0 of 10/minute, 1m0s", request(0, "user=7:0")) // not over the limit, as envoyproxy/ratelimit has it
		s.expect("OVER | OVER 0 of 10/minute, 1m0s", request(0, "user=42:0"))
		s.expect("OVER | OVER 0 of 10/minute, 1m0s", request(0, "user=8:99999999999"))
	})
}

// TestCountDeniedOfOneLimit: hits that are reported when a stream is done count, whatever is left.
func TestCountDeniedOfOneLimit(t *testing.T) {
	onStage(t, Options{}, func(t *testing.T, s stage) {
		s.expect("OK | OK 4 of 4/minute, 1m0s | OK 10 of 10/minute, 1m0s", request(0, "counts=1:0", "user=42:0"))
		s.expect("OVER | OVER 0 of 4/minute, 1m0s", request(0, "counts=1:700"))
		s.expect("OVER | OVER 0 of 4/minute, 1m0s | OK 10 of 10/minute, 1m0s", request(0, "counts=1:0", "user=42:1"))
		s.expect("OK | OK 10 of 10/minute, 1m0s", request(0, "user=42:0"))
	})
}

// TestLooking: 0 hits of a descriptor look.
func TestLooking(t *testing.T) {
	onStage(t, Options{}, func(t *testing.T, s stage) {
		s.expect("OK | OK 10 of 10/minute, 1m0s", request(5, "user=42:0"))
		s.expect("OK | OK 0 of 10/minute, 1m0s", request(0, "user=42:10"))
		s.expect("OVER | OVER 0 of 10/minute, 1m0s", request(0, "user=42:0"))
		s.expect("OVER | OVER 0 of 10/minute, 1m0s | OK 15 of 15/hour, 1h0m0s", request(1, "user=42:0", "all=1"))
		s.expect("OK | OK 14 of 15/hour, 1h0m0s", request(1, "all=1"))
	})
}

func TestReplaces(t *testing.T) {
	onStage(t, Options{}, func(t *testing.T, s stage) {
		s.expect("OK | OK | OK 49 of 50/hour, 1h0m0s", request(1, "all=1", "partner=9"))
		s.expect("OK | OK 14 of 15/hour, 1h0m0s | OK 9 of 10/minute, 1m0s", request(1, "all=1", "user=9"))
	})
}

func TestShadowMode(t *testing.T) {
	onStage(t, Options{}, func(t *testing.T, s stage) {
		s.expect("OK | OK 0 of 1/minute, 1m0s", request(1, "trial=1"))
		for range 3 {
			s.expect("OK | OK 0 of 1/minute, 1m0s", request(1, "trial=1"))
		}
		s.expect("OVER | OVER 0 of 10/minute, 1m0s | OK 1 of 1/minute, 1m0s", request(11, "user=42", "trial=2:1"))
		s.expect("OK | OK 0 of 1/minute, 1m0s", request(1, "trial=2")) // it was not counted for the denied request
		require.Equal(t, []int64{6, 3, 3, 3}, s.counters("shop.trial"))
	})
}

// counters are total_hits, over_limit, within_limit and shadow_mode of a rule.
func (s stage) counters(name string) []int64 {
	c, ok := s.stats.rules.Load(name)
	require.True(s.t, ok)
	of := c.(*counters)
	return []int64{of.hits.Load(), of.over.Load(), of.within.Load(), of.shadow.Load()}
}

// TestQuotaMode: a quota alone denies nothing; when all quotas of a request are used up, there is nothing to draw from.
func TestQuotaMode(t *testing.T) {
	onStage(t, Options{}, func(t *testing.T, s stage) {
		both := func() *pb.RateLimitRequest { return request(1, "user=42", "quota=a", "quota=b") }
		s.expect("OK | OK 9 of 10/minute, 1m0s | OK 0 of 1/day, 24h0m0s | OK 1 of 2/day, 24h0m0s", both())
		s.expect("OK | OK 8 of 10/minute, 1m0s | OVER 0 of 1/day, 24h0m0s | OK 0 of 2/day, 24h0m0s", both())
		s.expect("OVER | OK 8 of 10/minute, 1m0s | OVER 0 of 1/day, 24h0m0s | OVER 0 of 2/day, 24h0m0s", both())
		s.expect("OK | OK 7 of 10/minute, 1m0s", request(1, "user=42")) // what the denied request took was given back
		s.expect("OVER | OVER 0 of 10/minute, 1m0s | OVER 0 of 2/day, 24h0m0s", request(9, "user=42", "quota=b:1"))
		s.expect("OVER | OK 3 of 3/minute, 0s | OVER 0 of 2/day, 24h0m0s", request(1, "sliding=1", "quota=b")) // as if it had taken nothing
	})
	const counts = `domain: shop
descriptors:
- {key: user, rate_limit: {unit: minute, requests_per_unit: 10}}
- {key: quota, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1, count_denied: true}}`
	files := func() ([]Source, error) { return []Source{{"f", []byte(counts)}}, nil }
	onStage(t, Options{Files: files}, func(t *testing.T, s stage) {
		s.expect("OK | OK 9 of 10/minute, 1m0s | OK 0 of 1/day, 24h0m0s", request(1, "user=42", "quota=a"))
		s.expect("OVER | OK 9 of 10/minute, 1m0s | OVER 0 of 1/day, 24h0m0s", request(1, "user=42", "quota=a"))
	})
}

func TestShareThreshold(t *testing.T) {
	onStage(t, Options{}, func(t *testing.T, s stage) {
		s.expect("OK | OK 2 of 3/hour, 1h0m0s", request(1, "files=files/a"))
		s.expect("OK | OK 1 of 3/hour, 1h0m0s", request(1, "files=files/b"))
		s.expect("OK | OK 4 of 5/minute, 1m0s", request(1, "route=svc-av1-end"))
		s.expect("OK | OK 4 of 5/minute, 1m0s", request(1, "route=svc-bv1-end")) // each value for itself
		s.expect("OK | OK", request(1, "route=svc-v1"))
	})
}

func TestOverride(t *testing.T) {
	onStage(t, Options{}, func(t *testing.T, s stage) {
		own := func(n uint32, unit typev3.RateLimitUnit) *pb.RateLimitRequest {
			r := request(1, "user=42")
			r.Descriptors[0].Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: n, Unit: unit}
			return r
		}
		s.expect("OK | OK 2 of 3/hour, 1h0m0s", own(3, typev3.RateLimitUnit_HOUR))
		s.expect("OK | OK 0 of 2/hour, 1h0m0s", own(2, typev3.RateLimitUnit_HOUR)) // what was used counts
		s.expect("OVER | OVER 0 of 0/hour, 1h0m0s", own(0, typev3.RateLimitUnit_HOUR))
		s.expect("OK | OK 4294967294 of 4294967295/year, 8592h0m0s", own(1<<32-1, typev3.RateLimitUnit_YEAR)) // 365 days since 1970
		more := own(1<<32-1, typev3.RateLimitUnit_YEAR)
		more.HitsAddend = 3_000_000_000
		s.expect("OK | OK 1294967294 of 4294967295/year, 8592h0m0s", more)
		s.expect("OVER | OVER 0 of 4294967295/year, 8592h0m0s", more)
	})
}

func TestOtherAlgorithms(t *testing.T) {
	onStage(t, Options{}, func(t *testing.T, s stage) {
		s.expect("OK | OK 0 of 10/second, 2s", request(20, "burst=1"))
		s.expect("OVER | OVER 0 of 10/second, 1s", request(1, "burst=1"))
		s.Advance(99 * time.Millisecond)
		s.expect("OVER | OVER 0 of 10/second, 1s", request(1, "burst=1"))
		s.Advance(time.Millisecond)
		s.expect("OK | OK 0 of 10/second, 2s", request(1, "burst=1"))
		s.expect("OVER | OVER 0 of 10/second, 1s", request(21, "burst=2"))
		s.expect("OK | OK 0 of 10/second, 1s", request(10, "even=1"))
		s.expect("OVER | OVER 0 of 10/second, 1s", request(11, "even=2"))

		s.Advance(time.Minute - 100*time.Millisecond - time.Second) // the last second of a minute
		s.expect("OK | OK 0 of 3/minute, 1m1s", request(3, "sliding=1"))
		s.Advance(2 * time.Second) // where a fixed window would allow three more
		s.expect("OVER | OVER 0 of 3/minute, 59s", request(1, "sliding=1"))

		s.expect("OK | OK 4 of 5/day, 22h58m59s", request(1, "berlin=1")) // it is an hour later there
	})
}

// TestMoreThanEight: more descriptors than one script holds are decided in several steps; a denial gives everything back.
func TestMoreThanEight(t *testing.T) {
	onStage(t, Options{}, func(t *testing.T, s stage) {
		var all []string
		for i := range 12 {
			all = append(all, fmt.Sprintf("user=%d", i))
		}
		s.expect("OK"+strings.Repeat(" | OK 9 of 10/minute, 1m0s", 12), request(1, all...))
		s.expect("OK | OK 0 of 10/minute, 1m0s", request(9, "user=11"))
		s.expect("OVER"+strings.Repeat(" | OK 9 of 10/minute, 1m0s", 11)+" | OVER 0 of 10/minute, 1m0s", request(1, all...))
		s.expect("OK | OK 8 of 10/minute, 1m0s", request(1, "user=0"))
	})
}

// TestMoreThanEightDenied: a descriptor that no script has decided, because one before it denied the request, says when its own
// hits are allowed.
func TestMoreThanEightDenied(t *testing.T) {
	const text = `domain: shop
descriptors:
- {key: user, rate_limit: {unit: minute, requests_per_unit: 10}}
- {key: bucket, rate_limit: {unit: hour, requests_per_unit: 10, algorithm: token_bucket}}`
	files := func() ([]Source, error) { return []Source{{"f", []byte(text)}}, nil }
	onStage(t, Options{Files: files}, func(t *testing.T, s stage) {
		s.expect("OK | OK 0 of 10/minute, 1m0s | OK 4 of 10/hour, 36m0s", request(0, "user=0:10", "bucket=1:6"))
		var all []string
		for i := range 12 {
			all = append(all, fmt.Sprintf("user=%d", i))
		}
		s.expect("OVER | OVER 0 of 10/minute, 1m0s"+strings.Repeat(" | OK 10 of 10/minute, 1m0s", 11)+" | OVER 0 of 10/hour, 12m0s", request(1, append(all, "bucket=1:6")...))
	})
}

// TestRequestsAtTheSameTime for nothing at all, which the race detector watches: a rule is what the files say, and no request
// changes it.
func TestRequestsAtTheSameTime(t *testing.T) {
	onStage(t, Options{CountDenied: true}, func(t *testing.T, s stage) {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				answer, err := s.ShouldRateLimit(t.Context(), request(1, "banned=1"))
				if err != nil || answer.GetOverallCode() != pb.RateLimitResponse_OVER_LIMIT {
					t.Error(answer, err)
				}
			})
		}
		all.Wait()
	})
}

// TestOneDescriptorTwice counts twice.
func TestOneDescriptorTwice(t *testing.T) {
	onStage(t, Options{}, func(t *testing.T, s stage) {
		s.expect("OK | OK 7 of 10/minute, 1m0s | OK 4 of 10/minute, 1m0s", request(3, "user=42", "user=42"))
		s.expect("OVER | OK 4 of 10/minute, 1m0s | OVER 0 of 10/minute, 1m0s", request(3, "user=42", "user=42"))
		s.expect("OK | OK 0 of 10/minute, 1m0s", request(4, "user=42"))
		s.expect("OVER | OK 10 of 10/minute, 1m0s | OK 10 of 10/minute, 1m0s | OVER 0 of 10/minute, 1m0s", request(4, "user=43", "user=43", "user=43"))
	})
	onStage(t, Options{CountDenied: true}, func(t *testing.T, s stage) {
		s.expect("OK | OK 7 of 10/minute, 1m0s | OK 4 of 10/minute, 1m0s", request(3, "user=42", "user=42"))
		s.expect("OVER | OK 1 of 10/minute, 1m0s | OVER 0 of 10/minute, 1m0s", request(3, "user=42", "user=42"))
	})
}

func TestHeaders(t *testing.T) {
	onStage(t, Options{Headers: true}, func(t *testing.T, s stage) {
		ask := func(r *pb.RateLimitRequest) string {
			answer, err := s.ShouldRateLimit(t.Context(), r)
			require.NoError(t, err)
			var all []string
			for _, h := range answer.GetResponseHeadersToAdd() {
				all = append(all, h.GetKey()+"="+h.GetValue())
			}
			return strings.Join(all, " ")
		}
		s.Advance(20 * time.Second)
		require.Equal(t, "RateLimit-Limit=10 RateLimit-Remaining=9 RateLimit-Reset=40", ask(request(1, "user=42", "all=1")))
		require.Equal(t, "RateLimit-Limit=15 RateLimit-Remaining=0 RateLimit-Reset=3580 Retry-After=3580", ask(request(15, "user=42:1", "all=1")))
		require.Equal(t, "RateLimit-Limit=15 RateLimit-Remaining=0 RateLimit-Reset=3580 Retry-After=3580", ask(request(15, "user=42", "all=1")))
		require.Equal(t, "", ask(request(1, "unknown=1", "user=staff")))
	})
	files := func() ([]Source, error) {
		return []Source{{"f", []byte(`domain: shop
descriptors:
  - {key: month, quota_mode: true, rate_limit: {unit: month, requests_per_unit: 1}}
  - {key: day, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: other, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 9}}
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: all, rate_limit: {unit: hour, requests_per_unit: 1}}`)}}, nil
	}
	onStage(t, Options{Headers: true, Files: files}, func(t *testing.T, s stage) {
		reset := func(descriptors ...string) string {
			answer, err := s.ShouldRateLimit(t.Context(), request(1, descriptors...))
			require.NoError(t, err)
			for _, h := range answer.GetResponseHeadersToAdd() {
				if h.GetKey() == "Retry-After" {
					return h.GetValue()
				}
			}
			return ""
		}
		require.Empty(t, reset("month=1", "other=1"))
		require.Empty(t, reset("user=1"))
		require.Equal(t, "60", reset("month=1", "other=1", "user=1"), "a quota that is used up denies nothing on its own")
		require.Equal(t, "60", reset("user=1", "month=1", "other=1"))
		require.Empty(t, reset("day=1"))
		require.Equal(t, "86400", reset("month=1", "day=1"), "all quotas deny together, and the first one to come back allows")
		require.Empty(t, reset("all=1"))
		require.Equal(t, "3600", reset("user=1", "all=1"), "of those that deny the last one to come back")
		require.Equal(t, "3600", reset("all=1", "month=1", "user=1", "other=1"))
	})
}

func TestGlobalShadowMode(t *testing.T) {
	onStage(t, Options{Shadow: true, Headers: true}, func(t *testing.T, s stage) {
		s.expect("OK | OVER 0 of 10/minute, 1m0s", request(11, "user=42"))
		require.EqualValues(t, 1, s.stats.shadowed.Load())
		answer, err := s.ShouldRateLimit(t.Context(), request(11, "user=42"))
		require.NoError(t, err)
		require.Len(t, answer.GetResponseHeadersToAdd(), 3, "a client that is not denied has no Retry-After")
	})
}

func TestOutage(t *testing.T) {
	for _, test := range []struct {
		outage Outage
		want   string
	}{
		{Outage{Fallback: "allow"}, "OK | OK 10 of 10/minute, 1m0s | OK 15 of 15/hour, 1h0m0s"},
		{Outage{Fallback: "deny"}, "OVER | OVER 0 of 10/minute, 1s | OVER 0 of 15/hour, 1s"},
		{Outage{Fallback: "local", Instances: 2}, "OK | OK 4 of 10/minute, 12s | OK 6 of 15/hour, 8m0s"},
	} {
		t.Run(test.outage.Fallback, func(t *testing.T) {
			onStage(t, Options{Outage: test.outage}, func(t *testing.T, s stage) {
				s.Down()
				s.expect(test.want, request(1, "user=42", "all=1"))
				s.Up()
				s.Advance(time.Second)
				s.expect("OK | OK 9 of 10/minute, 59s | OK 14 of 15/hour, 59m59s", request(1, "user=42", "all=1"))
			})
		})
	}
	onStage(t, Options{}, func(t *testing.T, s stage) {
		s.Down()
		_, err := s.ShouldRateLimit(t.Context(), request(1, "user=42"))
		require.Equal(t, codes.Unavailable, status.Code(err))
		s.expect("OK | OK unlimited", request(1, "user=staff")) // needs no Redis
	})
	files := func() ([]Source, error) {
		return []Source{{"f", []byte("domain: shop\ndescriptors: [{key: a, rate_limit: {unit: year, requests_per_unit: 1000}}, {key: b, rate_limit: {unit: year, requests_per_unit: 1}}]")}}, nil
	}
	const day = 24 * time.Hour
	for instances, want := range map[int]time.Duration{ // the time in which one hit comes back
		71: 71 * 365 * day / 1000, 72: 71 * 365 * day / 986, 200: 71 * 365 * day / 355, 1000: 365 * day,
		584: 71 * 365 * day / 121, 1 << 20: 71 * 365 * day, // these overflow
	} {
		onStage(t, Options{Files: files, Outage: Outage{Fallback: "local", Instances: instances}}, func(t *testing.T, s stage) {
			s.Down()
			for _, key := range []string{"a=1", "b=1"} {
				if key == "b=1" {
					want = 71 * 365 * day
				}
				answer, err := s.ShouldRateLimit(t.Context(), request(1, key))
				require.NoError(t, err)
				require.Equal(t, pb.RateLimitResponse_OK, answer.GetOverallCode())
				require.Equal(t, (want + time.Second - 1).Truncate(time.Second), answer.GetStatuses()[0].GetDurationUntilReset().AsDuration(), "%s of %d", key, instances)
			}
		})
	}
	_, err := New(nil, Options{Outage: Outage{Fallback: "open"}})
	require.ErrorContains(t, err, `the fallback "open" is not known; write allow, deny or local`)
	_, err = New(nil, Options{Outage: Outage{Fallback: "local", Instances: -1}})
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	require.ErrorContains(t, err, "limits cannot be divided by -1 instances")
}

// TestConcurrentRequests: of many requests at the same time, of which a user's limit allows one, the limit of all takes one.
func TestConcurrentRequests(t *testing.T) {
	s, err := New(ratelimittest.New(t).Client(), Options{Files: Dir("testdata")})
	require.NoError(t, err)
	var allowed atomic.Int64
	var callers sync.WaitGroup
	for range 200 {
		callers.Go(func() {
			answer, err := s.ShouldRateLimit(t.Context(), request(1, "user=42:10", "all=1"))
			if err == nil && answer.GetOverallCode() == pb.RateLimitResponse_OK {
				allowed.Add(1)
			}
		})
	}
	callers.Wait()
	answer, err := s.ShouldRateLimit(t.Context(), request(0, "all=1:0"))
	require.NoError(t, err)
	require.EqualValues(t, 15-allowed.Load(), answer.GetStatuses()[0].GetLimitRemaining())
	require.LessOrEqual(t, allowed.Load(), int64(2), "two if a minute began")
	require.Positive(t, allowed.Load())
}
