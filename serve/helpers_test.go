package serve

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tryacquire/ratelimit/ratelimittest"
)

// A stage is a service of testdata/shop.yaml on a Redis in a bubble, where time passes at once. It begins at midnight.
type stage struct {
	*ratelimittest.Env
	*Service
	t testing.TB
}

func onStage(t *testing.T, o Options, test func(t *testing.T, s stage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		text, err := os.ReadFile("testdata/shop.yaml")
		require.NoError(t, err)
		if o.Files == nil {
			o.Files = func() ([]Source, error) { return []Source{{"shop.yaml", text}}, nil }
		}
		env := ratelimittest.New(t)
		s, err := New(env.Client(), o)
		require.NoError(t, err)
		test(t, stage{env, s, t})
	})
}

// request is one for descriptors such as "user=42,path=/search", with hits of their own behind a colon.
func request(hits uint32, descriptors ...string) *pb.RateLimitRequest {
	r := &pb.RateLimitRequest{Domain: "shop", HitsAddend: hits}
	for _, text := range descriptors {
		d := &common.RateLimitDescriptor{}
		if before, own, ok := strings.Cut(text, ":"); ok {
			var n uint64
			if _, err := fmt.Sscan(own, &n); err != nil {
				panic(err)
			}
			text, d.HitsAddend = before, wrapperspb.UInt64(n)
		}
		for entry := range strings.SplitSeq(text, ",") {
			key, value, _ := strings.Cut(entry, "=")
			d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: key, Value: value})
		}
		r.Descriptors = append(r.Descriptors, d)
	}
	return r
}

// ask returns the answer in short: the overall code, and of each descriptor its code, what is left of which limit, and
// when it is reset.
func (s stage) ask(r *pb.RateLimitRequest) string {
	s.t.Helper()
	answer, err := s.ShouldRateLimit(s.t.Context(), r)
	require.NoError(s.t, err)
	return short(answer)
}

func short(answer *pb.RateLimitResponse) string {
	text := code(answer.GetOverallCode())
	for _, d := range answer.GetStatuses() {
		text += " | " + code(d.GetCode())
		if l := d.GetCurrentLimit(); l != nil {
			text += fmt.Sprintf(" %d of %d/%s, %v", d.GetLimitRemaining(), l.GetRequestsPerUnit(), strings.ToLower(l.GetUnit().String()), d.GetDurationUntilReset().AsDuration())
		} else if d.GetLimitRemaining() > 0 {
			text += " unlimited"
		}
	}
	return text
}

func code(c pb.RateLimitResponse_Code) string {
	if c == pb.RateLimitResponse_OVER_LIMIT {
		return "OVER"
	}
	return c.String()
}

// expect asks, and asserts the answer.
func (s stage) expect(want string, r *pb.RateLimitRequest) {
	s.t.Helper()
	require.Equal(s.t, want, s.ask(r), "%v", time.Now().UTC())
}

// replaced is text with each key, which it must have, replaced.
func replaced(t *testing.T, text string, by map[string]string) string {
	t.Helper()
	for old, new := range by {
		require.Contains(t, text, old)
		text = strings.ReplaceAll(text, old, new)
	}
	return text
}
