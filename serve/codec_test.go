package serve

import (
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// texts of requests: what the codec reads itself, what it leaves to gRPC's, and mistakes.
func requestTexts(t testing.TB) map[string][]byte {
	override := request(2, "user=1:3", "path=/a,method=GET,x=y")
	override.Descriptors[1].Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 7, Unit: 2}
	texts := map[string][]byte{}
	for name, r := range map[string]*pb.RateLimitRequest{
		"usual":    request(0, "user=42"),
		"two":      request(300, "user=42,path=/search", "tenant=7,user=42,path=/search"),
		"override": override,
		"empty":    {},
		"unnamed":  {Domain: "shop", Descriptors: []*common.RateLimitDescriptor{{}, {Entries: []*common.RateLimitDescriptor_Entry{{}}}}},
	} {
		text, err := proto.Marshal(r)
		require.NoError(t, err)
		texts[name] = text
	}
	texts["cut off"] = texts["two"][:len(texts["two"])-1]
	texts["twice"] = append(append([]byte{}, texts["usual"]...), texts["two"]...)
	texts["not UTF-8"] = []byte("\x0a\x02\xff\xff")
	texts["not UTF-8 in an entry"] = []byte("\x12\x06\x0a\x04\x0a\x02\xff\xff")
	texts["unknown"] = append([]byte("\x28\x05"), texts["usual"]...)
	texts["a longer number"] = []byte("\x18\x81\x80\x80\x80\x80\x00")
	texts["more than 32 bits"] = []byte("\x18\xff\xff\xff\xff\x7f")
	texts["a longer length"] = []byte("\x0a\x81\x00x")
	texts["another type"] = []byte("\x08\x01")
	texts["only a tag"] = []byte("\x0a")
	return texts
}

// checkRequest compares what the codec reads with what protobuf reads.
func checkRequest(t *testing.T, text []byte) {
	var want pb.RateLimitRequest
	wrong := proto.Unmarshal(text, &want)
	for _, cut := range []int{0, len(text) / 2} { // it comes in one buffer, or in two
		data := mem.BufferSlice{mem.SliceBuffer(text[cut:])}
		if cut > 0 {
			data = append(mem.BufferSlice{mem.SliceBuffer(text[:cut])}, data...)
		}
		var got pb.RateLimitRequest
		err := newCodec().Unmarshal(data, &got)
		require.Equal(t, wrong == nil, err == nil, "%v, %v", wrong, err)
		if wrong == nil {
			require.True(t, proto.Equal(&want, &got), "%v\n%v", &want, &got)
		}
	}
}

func FuzzRequestsAreReadAsByProtobuf(f *testing.F) {
	for _, text := range requestTexts(f) {
		f.Add(text)
	}
	f.Fuzz(checkRequest)
}

// TestUsualRequestsAreReadWithoutReflection says which.
func TestUsualRequestsAreReadWithoutReflection(t *testing.T) {
	read := map[string]bool{}
	for name, text := range requestTexts(t) {
		checkRequest(t, text)
		if readRequest(string(text), &pb.RateLimitRequest{}) {
			read[name] = true
		}
	}
	require.Equal(t, map[string]bool{"usual": true, "two": true, "empty": true, "unnamed": true, "twice": true, "a longer length": true, "more than 32 bits": true}, read)
}

// checkAnswer compares what the codec writes with what protobuf writes, byte by byte.
func checkAnswer(t *testing.T, a *pb.RateLimitResponse) {
	t.Helper()
	want, err := proto.Marshal(a)
	require.NoError(t, err)
	got, err := newCodec().Marshal(a)
	require.NoError(t, err)
	require.Equal(t, want, got.Materialize(), "%v", a)
}

func FuzzAnswersAreWrittenAsByProtobuf(f *testing.F) {
	f.Add(2, int32(1), int32(1), int32(2), uint32(10), uint32(9), int64(17), int32(0), true)
	f.Add(1, int32(-1), int32(1<<31-1), int32(-1<<31), uint32(1<<32-1), uint32(1<<32-1), int64(-1<<63), int32(-1<<31), true)
	f.Add(1, int32(0), int32(0), int32(0), uint32(0), uint32(0), int64(0), int32(0), true)
	f.Add(9, int32(2), int32(2), int32(7), uint32(128), uint32(127), int64(86400), int32(1), false)
	f.Fuzz(func(t *testing.T, n int, overall, code, unit int32, limit, left uint32, seconds int64, nanos int32, limited bool) {
		a := &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_Code(overall)}
		for i := range min(max(n, 0), 20) {
			s := &pb.RateLimitResponse_DescriptorStatus{Code: pb.RateLimitResponse_Code(code), LimitRemaining: left}
			if limited || i%2 == 1 {
				s.CurrentLimit = &pb.RateLimitResponse_RateLimit{RequestsPerUnit: limit, Unit: pb.RateLimitResponse_RateLimit_Unit(unit)}
				s.DurationUntilReset = &durationpb.Duration{Seconds: seconds, Nanos: nanos}
			}
			a.Statuses = append(a.Statuses, s)
		}
		checkAnswer(t, a)
	})
}

// TestAnswersWithMoreThanStatuses are written by gRPC's codec, and so are other messages.
func TestAnswersWithMoreThanStatuses(t *testing.T) {
	status := []*pb.RateLimitResponse_DescriptorStatus{{Code: pb.RateLimitResponse_OK, LimitRemaining: 5}}
	for _, a := range []*pb.RateLimitResponse{
		{Statuses: status, ResponseHeadersToAdd: []*core.HeaderValue{{Key: "Retry-After", Value: "1"}}},
		{Statuses: status, RequestHeadersToAdd: []*core.HeaderValue{{Key: "Retry-After", Value: "1"}}},
		{Statuses: status, RawBody: []byte("x")},
		{Statuses: status, DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{"x": structpb.NewBoolValue(true)}}},
		{Statuses: status, Quota: &pb.RateLimitResponse_Quota{Requests: 1}},
		{Statuses: []*pb.RateLimitResponse_DescriptorStatus{{Quota: &pb.RateLimitResponse_Quota{Requests: 1}}}},
		{Statuses: []*pb.RateLimitResponse_DescriptorStatus{{CurrentLimit: &pb.RateLimitResponse_RateLimit{Name: "x"}}}},
	} {
		checkAnswer(t, a)
	}
	text, err := newCodec().Marshal(durationpb.New(5))
	require.NoError(t, err)
	require.Equal(t, "\x10\x05", string(text.Materialize()))
}
