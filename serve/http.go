package serve

import (
	"io"
	"net/http"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
)

const longestBody = 1 << 20

// JSON answers POST with a RateLimitRequest in JSON, for clients without gRPC: 200 or 429 with the RateLimitResponse. A
// request that is none is 400, and one that cannot be decided 503.
func (s *Service) JSON() http.Handler {
	return s.traced(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			http.Error(w, "POST a RateLimitRequest in JSON", http.StatusMethodNotAllowed)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, longestBody))
		var request pb.RateLimitRequest
		if err == nil {
			err = protojson.Unmarshal(body, &request)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer, err := s.ShouldRateLimit(r.Context(), &request)
		if err != nil {
			http.Error(w, status.Convert(err).Message(), statusOf(err))
			return
		}
		text, err := protojson.Marshal(answer)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		addHeaders(w.Header(), answer)
		if answer.GetOverallCode() == pb.RateLimitResponse_OVER_LIMIT {
			w.WriteHeader(http.StatusTooManyRequests)
		}
		_, _ = w.Write(text)
	})
}

// Metrics writes the counters as Prometheus reads them.
func (s *Service) Metrics() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		s.stats.write(w, s.options.OriginalMetrics)
	})
}
