package serve

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// originalLabels are those that envoyproxy/ratelimit gives a rule: the domain and its first two keys, as the parts of
// the name between dots. "" is a rule that it has no metrics of.
func originalLabels(name string) string {
	parts := strings.SplitN(sanitize(name), ".", 4)
	switch len(parts) {
	case 1:
		return ""
	case 2:
		return fmt.Sprintf(`domain="%s",key1="%s"`, label(parts[0]), label(parts[1]))
	}
	return fmt.Sprintf(`domain="%s",key1="%s",key2="%s"`, label(parts[0]), label(parts[1]), label(parts[2]))
}

var ipv4 = regexp.MustCompile(`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`)

// sanitize is what the original does to a name, so that addresses are one part.
func sanitize(name string) string {
	name = strings.NewReplacer(":", "_", "|", "_").Replace(name)
	return ipv4.ReplaceAllStringFunc(name, func(address string) string { return strings.ReplaceAll(address, ".", "_") })
}

// bounds are the buckets of response times, those of Prometheus's clients.
var bounds = [...]time.Duration{
	5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond,
	500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second,
}

// A histogram counts requests by how long they took.
type histogram struct {
	counts [len(bounds) + 1]atomic.Int64
	sum    atomic.Int64 // nanoseconds
}

func (h *histogram) note(took time.Duration) {
	i, _ := slices.BinarySearch(bounds[:], took) // a bound belongs to its own bucket
	h.counts[i].Add(1)
	h.sum.Add(int64(took))
}

func (h *histogram) write(w io.Writer) {
	const requests, name = "ratelimit_service_total_requests", "ratelimit_service_response_time_seconds"
	var all int64
	var buckets strings.Builder
	for i := range h.counts {
		all += h.counts[i].Load()
		bound := "+Inf"
		if i < len(bounds) {
			bound = fmt.Sprint(bounds[i].Seconds())
		}
		fmt.Fprintf(&buckets, "%s_bucket{grpc_method=\"ShouldRateLimit\",le=\"%s\"} %d\n", name, bound, all)
	}
	metric(w, requests, "Requests.")
	fmt.Fprintf(w, "%s{grpc_method=\"ShouldRateLimit\"} %d\n", requests, all)
	fmt.Fprintf(w, "# HELP %s How long requests took.\n# TYPE %s histogram\n%s", name, name, &buckets)
	fmt.Fprintf(w, "%s_sum{grpc_method=\"ShouldRateLimit\"} %g\n%s_count{grpc_method=\"ShouldRateLimit\"} %d\n", name, time.Duration(h.sum.Load()).Seconds(), name, all)
}
