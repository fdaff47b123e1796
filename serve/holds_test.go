package serve

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tryacquire/ratelimit/ratelimittest"
)

// done is what Envoy sends of these descriptors when a stream is done, with apply_on_stream_done and is_negative_hits.
func done(descriptors ...string) *pb.RateLimitRequest {
	r := request(0, descriptors...)
	for _, d := range r.GetDescriptors() {
		d.IsNegativeHits = true
	}
	return r
}

// TestTheGuidesRoute: what docs/serve.md shows of Envoy's config has the same descriptor twice, and the second gives back.
func TestTheGuidesRoute(t *testing.T) {
	page, err := os.ReadFile("../docs/serve.md")
	require.NoError(t, err)
	_, text, _ := strings.Cut(string(page), "```yaml\nenvoy.filters.http.ratelimit:\n")
	text, _, _ = strings.Cut(text, "```")
	var route struct {
		RateLimits []struct {
			Actions    []map[string]map[string]string
			HitsAddend struct {
				Number   int
				Negative bool `yaml:"is_negative_hits"`
			} `yaml:"hits_addend"`
			Done bool `yaml:"apply_on_stream_done"`
		} `yaml:"rate_limits"`
	}
	require.NoError(t, yaml.Unmarshal([]byte(text), &route))
	require.Len(t, route.RateLimits, 2)
	begins, ends := route.RateLimits[0], route.RateLimits[1]
	require.Len(t, begins.Actions, 2)
	require.Equal(t, begins.Actions, ends.Actions)
	require.Equal(t, []any{1, false, false}, []any{begins.HitsAddend.Number, begins.HitsAddend.Negative, begins.Done})
	require.Equal(t, []any{1, true, true}, []any{ends.HitsAddend.Number, ends.HitsAddend.Negative, ends.Done})
}

func TestInFlight(t *testing.T) {
	onStage(t, Options{}, func(t *testing.T, s stage) {
		s.expect("OK | OK 2 of 3/unknown, 0s", request(1, "user=42,request=a"))
		s.expect("OK | OK 0 of 3/unknown, 0s", request(2, "user=42,request=b"))
		s.expect("OVER | OVER 0 of 3/unknown, 1s", request(1, "user=42,request=c"))
		s.expect("OK | OK 2 of 3/unknown, 0s", request(1, "user=43,request=c")) // another user
		s.expect("OK | OK 0 of 3/unknown, 0s", request(1, "user=42,request=a")) // the same request takes no second place
		s.expect("OVER | OVER 0 of 3/unknown, 1s", request(1, "user=42,request=d:0"))
		s.expect("OVER | OVER 0 of 3/unknown, 1s", request(4, "user=42,request=d")) // more than there are
		_, err := s.ShouldRateLimit(t.Context(), request(2, "user=42,request=a"))
		require.Equal(t, codes.InvalidArgument, status.Code(err), "it has one place")
		synctest.Wait() // and keeps it

		s.expect("OK | OK 0 of 3/unknown, 0s", done("user=42,request=c")) // which was denied, and never held
		s.expect("OK | OK 1 of 3/unknown, 0s", done("user=42,request=a"))
		s.expect("OK | OK 1 of 3/unknown, 0s", done("user=42,request=a"))
		s.expect("OK | OK 1 of 3/unknown, 0s", request(1, "user=42,request=e:0"))
		s.expect("OK | OK 0 of 3/unknown, 0s", request(1, "user=42,request=e"))
		s.expect("OK | OK 2 of 3/unknown, 0s", done("user=42,request=b:2"))
		s.Advance(30*time.Second - time.Microsecond)
		s.expect("OK | OK 2 of 3/unknown, 0s", request(1, "user=42,request=f:0"))
		s.Advance(time.Microsecond) // the lease of what is never done has ended
		s.expect("OK | OK 3 of 3/unknown, 0s", request(1, "user=42,request=f:0"))
		require.Equal(t, []int64{11, 5, 6, 0}, s.counters("shop.user.request"))

		s.expect("OK | OK 1999 of 2000/unknown, 0s", request(1, "files=files/a,request=a")) // files share a threshold
		s.expect("OK | OK 999 of 2000/unknown, 0s", request(1000, "files=files/b,request=b"))
		s.expect("OVER | OVER 0 of 2000/unknown, 1s", request(1001, "files=files/c,request=c")) // more than one request can hold

		for _, id := range []string{"", strings.Repeat("x", 4097)} {
			_, err = s.ShouldRateLimit(t.Context(), request(1, "user=42", "user=42,request="+id))
			require.Equal(t, status.Errorf(codes.InvalidArgument, "descriptor 2: the value of its last entry is the id of what is in flight; it has %d bytes, and must have 1 to 4096", len(id)), err)
		}
	})
}

// TestInFlightAllOrNothing: one script decides what is in flight together with other limits.
func TestInFlightAllOrNothing(t *testing.T) {
	onStage(t, Options{Headers: true}, func(t *testing.T, s stage) {
		both := func(hits uint32, id string) *pb.RateLimitRequest {
			return request(hits, "user=42", "user=42,request="+id+":1", "request="+id+":1")
		}
		s.expect("OK | OK 9 of 10/minute, 1m0s | OK 2 of 3/unknown, 0s | OK 1 of 2/unknown, 0s", both(1, "a"))
		s.expect("OVER | OVER 0 of 10/minute, 1m0s | OK 2 of 3/unknown, 0s | OK 1 of 2/unknown, 0s", both(10, "b"))
		s.expect("OK | OK 8 of 10/minute, 1m0s | OK 1 of 3/unknown, 0s | OK 0 of 2/unknown, 0s", both(1, "b"))
		answer, err := s.ShouldRateLimit(t.Context(), both(1, "c"))
		require.NoError(t, err)
		require.Equal(t, "OVER | OK 8 of 10/minute, 1m0s | OK 1 of 3/unknown, 0s | OVER 0 of 2/unknown, 1s", short(answer))
		require.Equal(t, "running", answer.GetStatuses()[2].GetCurrentLimit().GetName())
		require.Equal(t, "Retry-After", answer.GetResponseHeadersToAdd()[3].GetKey())
		require.Equal(t, "1", answer.GetResponseHeadersToAdd()[3].GetValue())
		s.expect("OK | OK 2 of 3/unknown, 0s | OK 1 of 2/unknown, 0s", done("user=42,request=a", "request=a"))
		s.expect("OK | OK 7 of 10/minute, 1m0s | OK 1 of 3/unknown, 0s | OK 0 of 2/unknown, 0s", both(1, "c"))

		tokens := done("user=42,request=b:9", "counts=1") // with what the stream has used, which is more than is left
		tokens.Descriptors[1].IsNegativeHits, tokens.HitsAddend = false, 5
		s.expect("OVER | OK 2 of 3/unknown, 0s | OVER 0 of 4/minute, 1m0s", tokens)
	})
}

// TestInFlightIsGivenBack where a later script denies the request, but not what was in flight before it.
func TestInFlightIsGivenBack(t *testing.T) {
	var more []string
	for i := range 8 {
		more = append(more, fmt.Sprintf("user=%d", i))
	}
	onStage(t, Options{}, func(t *testing.T, s stage) {
		s.expect("OK | OK 0 of 10/minute, 1m0s", request(10, "user=7"))
		many := request(1, append([]string{"user=42,request=a"}, more...)...)
		s.expect("OVER | OK 3 of 3/unknown, 0s"+strings.Repeat(" | OK 10 of 10/minute, 1m0s", 7)+" | OVER 0 of 10/minute, 1m0s", many)
		s.expect("OK | OK 3 of 3/unknown, 0s", request(1, "user=42,request=b:0"))
		s.expect("OK | OK 2 of 3/unknown, 0s", request(1, "user=42,request=a"))
		s.expect("OVER | OK 2 of 3/unknown, 0s"+strings.Repeat(" | OK 10 of 10/minute, 1m0s", 7)+" | OVER 0 of 10/minute, 1m0s", many)
		s.expect("OK | OK 2 of 3/unknown, 0s", request(1, "user=42,request=b:0"))
	})
}

// TestInFlightOfOtherModes: in shadow_mode it denies nothing; in quota_mode one of several pools is enough.
func TestInFlightOfOtherModes(t *testing.T) {
	onStage(t, Options{}, func(t *testing.T, s stage) {
		s.expect("OK | OK 0 of 1/unknown, 0s", request(1, "watched=a"))
		s.expect("OK | OK 0 of 1/unknown, 1s", request(1, "watched=b"))
		require.Equal(t, []int64{2, 1, 1, 1}, s.counters("shop.watched"))
		s.expect("OK | OK 0 of 1/unknown, 0s", done("watched=b"))
		s.expect("OK | OK 1 of 1/unknown, 0s", done("watched=a"))
		s.expect("OVER | OVER 0 of 10/minute, 1m0s | OK 1 of 1/unknown, 0s", request(11, "user=42", "watched=a:1"))

		pools := func(id string) *pb.RateLimitRequest {
			return request(1, "user=42", "pool=one,request="+id, "pool=two,request="+id)
		}
		s.expect("OK | OK 9 of 10/minute, 1m0s | OK 0 of 1/unknown, 0s | OK 0 of 1/unknown, 0s", pools("a"))
		s.expect("OK | OK 1 of 1/unknown, 0s", done("pool=two,request=a"))
		s.expect("OK | OK 8 of 10/minute, 1m0s | OVER 0 of 1/unknown, 1s | OK 0 of 1/unknown, 0s", pools("b"))
		s.expect("OVER | OK 8 of 10/minute, 1m0s | OVER 0 of 1/unknown, 1s | OVER 0 of 1/unknown, 1s", pools("c"))
	})
}

// TestInFlightOfACallerWhoLeaves: Envoy cancels a call whose stream has ended, and does not report it as done.
func TestInFlightOfACallerWhoLeaves(t *testing.T) {
	onStage(t, Options{}, func(t *testing.T, s stage) {
		left := func() {
			t.Helper()
			time.Sleep(2 * time.Second)
			s.expect("OK | OK 3 of 3/unknown, 0s", request(1, "user=42,request=b:0"))
		}
		s.Slow(100 * time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := s.ShouldRateLimit(ctx, request(1, "user=42,request=a"))
		require.Equal(t, codes.DeadlineExceeded, status.Code(err))
		left()
		s.Up()
		s.LoseReplies(1)
		_, err = s.ShouldRateLimit(t.Context(), request(1, "user=42,request=a"))
		require.Equal(t, codes.Unavailable, status.Code(err))
		left()

		s.expect("OK | OK 2 of 3/unknown, 0s", request(1, "user=42,request=a"))
		ctx, cancel = context.WithCancel(t.Context())
		cancel()
		_, err = s.ShouldRateLimit(ctx, done("user=42,request=a"))
		require.Error(t, err)
		s.expect("OK | OK 3 of 3/unknown, 0s", request(1, "user=42,request=b:0")) // what is done is done
	})
}

// TestInFlightAcrossSlots: where no one script can decide, the holds come first, and are given back.
func TestInFlightAcrossSlots(t *testing.T) {
	one, two := ratelimittest.New(t), ratelimittest.New(t)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": one.Client().Options().Addr, "two": two.Client().Options().Addr}, NewClient: func(o *redis.Options) *redis.Client {
		if o.Addr == one.Client().Options().Addr {
			o.Dialer = one.Dial
		} else {
			o.Dialer = two.Dial
		}
		return redis.NewClient(o)
	}})
	defer ring.Close()
	service, err := New(ring, Options{Files: Dir("testdata")})
	require.NoError(t, err)
	s := stage{nil, service, t}
	for i := range 20 { // of which some have their keys in two places
		user := fmt.Sprintf("banned=1:0|all=%d|user=%d,request=", i, i)
		of := func(id string, hits int) *pb.RateLimitRequest {
			return request(1, strings.Split(fmt.Sprintf("%s%s|request=%s%d|user=%d:%d", user, id, id, i, i, hits), "|")...)
		}
		first, second := s.codes(of("a", 9)), s.codes(of("b", 2))
		require.Equal(t, "OK | OK 0 | OK 14 | OK 2 | OK 1 | OK 1", first)
		require.Equal(t, "OVER | OK 0 | OK 14 | OK 2 | OK 1 | OVER 0", second)
		require.Equal(t, "OK | OK 0 | OK 13 | OK 1 | OK 0 | OK 0", s.codes(of("b", 1)))
		require.Equal(t, "OK | OK 2 | OK 1", s.codes(done(fmt.Sprintf("user=%d,request=a", i), fmt.Sprintf("request=a%d", i))))
		require.Equal(t, "OK | OK 3 | OK 2", s.codes(done(fmt.Sprintf("user=%d,request=b", i), fmt.Sprintf("request=b%d", i))))
	}
}

// codes is the answer without limits and times.
func (s stage) codes(r *pb.RateLimitRequest) string {
	s.t.Helper()
	answer, err := s.ShouldRateLimit(s.t.Context(), r)
	require.NoError(s.t, err)
	text := code(answer.GetOverallCode())
	for _, d := range answer.GetStatuses() {
		text += fmt.Sprintf(" | %s %d", code(d.GetCode()), d.GetLimitRemaining())
	}
	return text
}

func TestInFlightInAnOutage(t *testing.T) {
	for fallback, want := range map[string]string{
		"allow": "OK | OK 10 of 10/minute, 1m0s | OK 3 of 3/unknown, 0s",
		"deny":  "OVER | OVER 0 of 10/minute, 1s | OVER 0 of 3/unknown, 1s",
		"local": "OK | OK 9 of 10/minute, 6s | OK 3 of 3/unknown, 0s",
	} {
		onStage(t, Options{Outage: Outage{Fallback: fallback}}, func(t *testing.T, s stage) {
			s.expect("OK | OK 2 of 3/unknown, 0s", request(1, "user=42,request=a"))
			s.Down()
			s.expect(want, request(1, "user=42", "user=42,request=b"))
			_, err := s.ShouldRateLimit(t.Context(), done("user=42,request=a"))
			require.NoError(t, err)
			s.Up()
			s.Advance(time.Second)
			s.expect("OK | OK 2 of 3/unknown, 0s", done("user=42,request=b")) // and a is free after its lease
		})
	}
	onStage(t, Options{}, func(t *testing.T, s stage) {
		s.Down()
		_, err := s.ShouldRateLimit(t.Context(), done("user=42,request=a"))
		require.Equal(t, codes.Unavailable, status.Code(err))
	})
}

// TestStreamsInFlight: streams begin and end at random, some denied, and each is reported as done, as Envoy does.
func TestStreamsInFlight(t *testing.T) {
	onStage(t, Options{}, func(t *testing.T, s stage) {
		var mu sync.Mutex // guards what follows
		running, most, denied := 0, 0, 0
		begins := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			running += n
			most = max(most, running)
		}
		for i := range 60 {
			go func() {
				time.Sleep(time.Duration(i) * 3 * time.Millisecond)
				id := fmt.Sprint("user=42,request=", i)
				answer, err := s.ShouldRateLimit(t.Context(), request(1, id))
				require.NoError(t, err)
				if answer.GetOverallCode() == pb.RateLimitResponse_OK {
					begins(1)
					time.Sleep(time.Duration(i*7919%17) * time.Millisecond)
					begins(-1)
				} else {
					mu.Lock()
					denied++
					mu.Unlock()
				}
				_, err = s.ShouldRateLimit(t.Context(), done(id))
				require.NoError(t, err)
			}()
		}
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, 3, most)
		require.Positive(t, denied)
		require.Less(t, denied, 40)
		s.expect("OK | OK 3 of 3/unknown, 0s", request(1, "user=42,request=x:0"))
	})
}
