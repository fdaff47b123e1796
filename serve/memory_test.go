package serve

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/ratelimittest"
)

// A commands is a hook of a client that counts its commands.
type commands struct{ atomic.Int64 }

func (c *commands) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		return next(ctx, network, address)
	}
}

func (c *commands) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.Add(1)
		return next(ctx, cmd)
	}
}

func (c *commands) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// onCountedStage is onStage, and counts what Redis is asked.
func onCountedStage(t *testing.T, o Options, test func(t *testing.T, s stage, asked *commands)) {
	t.Helper()
	onStage(t, o, func(t *testing.T, s stage) {
		s.ask(request(1, "user=0")) // sends the script
		var asked commands
		s.Client().AddHook(&asked)
		test(t, s, &asked)
	})
}

func TestDenialsFromMemory(t *testing.T) {
	onCountedStage(t, Options{Denials: 10 * time.Second}, func(t *testing.T, s stage, asked *commands) {
		s.expect("OK | OK 0 of 10/minute, 1m0s", request(10, "user=42"))
		s.expect("OVER | OVER 0 of 10/minute, 1m0s", request(1, "user=42"))
		require.EqualValues(t, 2, asked.Swap(0))
		s.Advance(4 * time.Second)
		s.expect("OVER | OVER 0 of 10/minute, 56s", request(1, "user=42"))
		s.expect("OVER | OVER 0 of 10/minute, 56s", request(3, "user=42"))
		require.EqualValues(t, 0, asked.Swap(0))
		s.Advance(6 * time.Second)
		s.expect("OVER | OVER 0 of 10/minute, 50s", request(1, "user=42"))
		require.EqualValues(t, 1, asked.Swap(0))
		require.NoError(t, s.Reload()) // of the same rules
		s.expect("OVER | OVER 0 of 10/minute, 50s", request(1, "user=42"))
		require.EqualValues(t, 0, asked.Swap(0))
		s.expect("OK | OK 9 of 10/minute, 50s", request(1, "user=43"))
		require.EqualValues(t, 1, asked.Swap(0))

		credit := request(0, "user=42:4")
		credit.Descriptors[0].IsNegativeHits = true
		s.expect("OK | OK 4 of 10/minute, 50s", credit)
		require.EqualValues(t, 4, asked.Swap(0))
		s.expect("OK | OK 1 of 10/minute, 50s", request(3, "user=42"))
		require.EqualValues(t, 1, asked.Swap(0))
	})
	onCountedStage(t, Options{Denials: time.Hour, CountDenied: true}, func(t *testing.T, s stage, asked *commands) {
		s.expect("OVER | OVER 0 of 10/minute, 1m0s", request(11, "user=42"))
		require.EqualValues(t, 1, asked.Swap(0))
		s.expect("OVER | OVER 0 of 10/minute, 1m0s", request(1, "user=42")) // it is counted
		require.EqualValues(t, 1, asked.Swap(0))
	})
	_, err := New(nil, Options{Denials: -1})
	require.ErrorContains(t, err, "denials cannot be kept for -1ns")
	_, err = New(ratelimittest.New(t).Client(), Options{Denials: 1, Files: func() ([]Source, error) {
		return []Source{{"f", []byte("domain: shop\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1}}]")}}, nil
	}})
	require.ErrorContains(t, err, "WithMaxDenial: 1ns is below 1ms")
}

const hot = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 1000}}]"

// TestLeases: a hot descriptor is decided by slices, two services together allow what the limit says and what they gave
// back when they ended, and not one more.
func TestLeases(t *testing.T) {
	files := func() ([]Source, error) { return []Source{{"f", []byte(hot)}}, nil }
	onCountedStage(t, Options{Leases: true, Files: files}, func(t *testing.T, s stage, asked *commands) {
		other, err := New(s.Client(), Options{Leases: true, Files: files})
		require.NoError(t, err)
		plain, err := New(s.Client(), Options{Files: files})
		require.NoError(t, err)
		allowed := 0
		ask := func(s *Service) {
			answer, err := s.ShouldRateLimit(t.Context(), request(1, "user=42"))
			require.NoError(t, err)
			if answer.GetOverallCode() == pb.RateLimitResponse_OK {
				allowed++
			}
		}
		for range 250 {
			ask(s.Service)
			ask(other)
			s.Advance(40 * time.Millisecond)
		}
		require.Equal(t, 500, allowed)
		require.Less(t, asked.Swap(0), int64(150))
		require.NoError(t, s.Close(t.Context()))
		require.NoError(t, other.Close(t.Context()))
		for range 600 {
			ask(plain)
		}
		require.Equal(t, 1000, allowed)
	})
}
