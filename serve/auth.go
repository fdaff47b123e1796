package serve

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Auth answers the subrequests of nginx's auth_request and of forward_auth in Traefik and Caddy: 200, or 429 with the
// reason in its headers, or 503 if there is no decision. The query names what is limited; clients have no part in it:
//
//	/auth?domain=shop&descriptor=user:X-User&descriptor=path:X-Forwarded-Uri,method=GET
//
// An entry such as user:X-User has the value of that header, method=GET has a value of its own. A descriptor whose header
// is missing is left out, as Envoy does, and a request without descriptors is allowed. status=403 answers denials with
// 403: nginx knows no others than 401 and 403. Its errors name no key and no server: Traefik and Caddy pass them on to clients.
func (s *Service) Auth() http.Handler {
	return s.traced(func(w http.ResponseWriter, r *http.Request) {
		query, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		denied := http.StatusTooManyRequests
		if text := query.Get("status"); text != "" {
			if denied, err = strconv.Atoi(text); err != nil || denied < 400 || denied > 499 {
				http.Error(w, "status is from 400 to 499", http.StatusBadRequest)
				return
			}
		}
		request := &pb.RateLimitRequest{Domain: query.Get("domain")}
		if request.Domain == "" || len(query["descriptor"]) == 0 {
			http.Error(w, "write domain and descriptor, such as ?domain=shop&descriptor=user:X-User", http.StatusBadRequest)
			return
		}
		for _, text := range query["descriptor"] {
			d, ok := described(text, r.Header)
			if !ok {
				http.Error(w, "a descriptor is like user:X-User,method=GET; Host is that of this service, so the proxy's is in a header such as X-Forwarded-Host", http.StatusBadRequest)
				return
			}
			if d != nil {
				request.Descriptors = append(request.Descriptors, d)
			}
		}
		if request.Descriptors == nil {
			return // 200
		}
		answer, err := s.ShouldRateLimit(r.Context(), request)
		if err != nil {
			http.Error(w, "no decision", statusOf(err))
			return
		}
		addHeaders(w.Header(), answer)
		if answer.GetOverallCode() == pb.RateLimitResponse_OVER_LIMIT {
			http.Error(w, http.StatusText(http.StatusTooManyRequests), denied)
		}
	})
}

// described is the descriptor of a text such as user:X-User,method=GET; nil if a header is missing.
func described(text string, header http.Header) (d *common.RateLimitDescriptor, ok bool) {
	d = &common.RateLimitDescriptor{}
	for entry := range strings.SplitSeq(text, ",") {
		i := strings.IndexAny(entry, ":=")
		if i < 1 || i == len(entry)-1 {
			return nil, false
		}
		value := entry[i+1:]
		if entry[i] == ':' && strings.EqualFold(value, "Host") {
			return nil, false // Go has it elsewhere, and it is the same for all clients
		}
		if entry[i] == ':' {
			value = header.Get(value)
		}
		if value == "" {
			d = nil
		}
		if d != nil {
			d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: entry[:i], Value: value})
		}
	}
	return d, true
}

// statusOf is the status of a request that could not be decided.
func statusOf(err error) int {
	if c := status.Code(err); c == codes.InvalidArgument || c == codes.Unimplemented {
		return http.StatusBadRequest
	}
	return http.StatusServiceUnavailable
}

func addHeaders(to http.Header, answer *pb.RateLimitResponse) {
	for _, h := range answer.GetResponseHeadersToAdd() {
		to.Set(h.GetKey(), h.GetValue())
	}
}
