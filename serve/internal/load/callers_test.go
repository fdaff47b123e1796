package main

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A service denies odd values, and after so many requests, it answers something else.
type service struct {
	pb.UnimplementedRateLimitServiceServer
	good  int64
	other func() (*pb.RateLimitResponse, error)
	asked [4]atomic.Int64 // by value
}

func (s *service) ShouldRateLimit(_ context.Context, r *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	entry := r.GetDescriptors()[0].GetEntries()[0]
	value, err := strconv.Atoi(entry.GetValue())
	if err != nil || r.GetDomain() != domain || entry.GetKey() != "user" || len(r.GetDescriptors()) != 1 {
		return nil, status.Errorf(codes.InvalidArgument, "%v", r)
	}
	s.asked[value].Add(1)
	if s.good > 0 && s.all() > s.good {
		return s.other()
	}
	code := pb.RateLimitResponse_Code(1 + value%2)
	return &pb.RateLimitResponse{OverallCode: code, Statuses: []*pb.RateLimitResponse_DescriptorStatus{{Code: code}}, RawBody: make([]byte, 1_000)}, nil
}

// domain is so long that a connection takes 15 requests at first.
var domain = strings.Repeat("bench", 800)

func (s *service) all() (n int64) {
	for i := range s.asked {
		n += s.asked[i].Load()
	}
	return n
}

// asked lets callers ask a service until it was asked so many times.
func asked(t *testing.T, s *service, callers int, most int64, begin time.Time, opts ...grpc.ServerOption) (answers, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer(opts...)
	pb.RegisterRateLimitServiceServer(server, s)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	l := load{domain: domain, key: "user", callers: callers, conns: 2, values: len(s.asked)}
	requests, err := l.requests()
	require.NoError(t, err)
	return l.ask(listener.Addr().String(), requests, begin, time.Now().Add(time.Minute), func(time.Time) bool { return s.all() < most })
}

// TestEveryAnswerIsCounted: as often as the service was asked, with what it said, also when requests wait for the
// connection's window. The values come one after the other. Only what was asked after the beginning is measured.
func TestEveryAnswerIsCounted(t *testing.T) {
	for _, callers := range []int{1, 64} {
		for _, measured := range []bool{true, false} {
			begin := time.Now()
			if !measured {
				begin = begin.Add(time.Hour)
			}
			s := &service{}
			got, err := asked(t, s, callers, 1_000, begin)
			require.NoError(t, err)
			require.NoError(t, got.failure)
			require.Zero(t, got.failed)
			require.GreaterOrEqual(t, got.good, 1_000)
			require.EqualValues(t, s.all(), got.good)
			require.EqualValues(t, s.asked[1].Load()+s.asked[3].Load(), got.over)
			for i := range s.asked {
				require.Positive(t, s.asked[i].Load())
				if callers == 1 {
					require.EqualValues(t, 250, s.asked[i].Load())
				}
			}
			if !measured {
				require.Empty(t, got.took)
				continue
			}
			require.Len(t, got.took, got.good)
			require.Positive(t, got.took[0])
			require.IsNonDecreasing(t, got.took)
		}
	}
}

// TestWhatIsNoDecisionFails: it is not among the answers, and the first one is told.
func TestWhatIsNoDecisionFails(t *testing.T) {
	for _, c := range []struct {
		other func() (*pb.RateLimitResponse, error)
		want  string
	}{
		{func() (*pb.RateLimitResponse, error) { return nil, status.Error(codes.Unavailable, "no decision") }, "grpc-status 14: no decision"},
		{func() (*pb.RateLimitResponse, error) { return &pb.RateLimitResponse{}, nil }, "not an answer to one descriptor: 0000000000"},
		{func() (*pb.RateLimitResponse, error) {
			return &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OK}, nil
		}, "not an answer to one descriptor: 00000000020801"},
		{func() (*pb.RateLimitResponse, error) {
			return &pb.RateLimitResponse{Statuses: []*pb.RateLimitResponse_DescriptorStatus{{}}}, nil
		}, "not an answer to one descriptor: 00000000021200"},
	} {
		s := &service{good: 10, other: c.other}
		got, err := asked(t, s, 4, 20, time.Now())
		require.NoError(t, err)
		require.EqualError(t, got.failure, c.want)
		require.Equal(t, 10, got.good)
		require.EqualValues(t, s.all()-10, got.failed)
	}
}

// TestAServiceThatCannotTakeAllCallers: it is said which setting is too small.
func TestAServiceThatCannotTakeAllCallers(t *testing.T) {
	got, err := asked(t, &service{}, 8, 1, time.Now(), grpc.MaxConcurrentStreams(4))
	require.NoError(t, err)
	require.Equal(t, 8, got.good)
	_, err = asked(t, &service{}, 8, 1, time.Now(), grpc.MaxConcurrentStreams(3))
	require.EqualError(t, err, "the service has [MAX_CONCURRENT_STREAMS = 3]; the callers need 4")
}

// TestAStreamThatIsReset: without an answer it is a failure, and after the answer nothing.
func TestAStreamThatIsReset(t *testing.T) {
	c, one, reset := &conn{}, &caller{}, &http2.RSTStreamFrame{ErrCode: http2.ErrCodeRefusedStream}
	done, err := c.read(reset, nil)
	require.NoError(t, err)
	require.False(t, done)
	done, err = c.read(reset, one)
	require.NoError(t, err)
	require.True(t, done)
	_, err = one.code()
	require.EqualError(t, err, "grpc-status none: REFUSED_STREAM")
}
