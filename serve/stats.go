package serve

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// stats are the counters of a service. Their names are those of envoyproxy/ratelimit.
type stats struct {
	rules    sync.Map              // of *counters by the name of the rule, or with values of requests
	values   atomic.Int64          // how many of the names have such values
	mistakes atomic.Int64          // requests that cannot be decided
	failures atomic.Int64          // requests that Redis did not decide
	failure  atomic.Pointer[error] // of the last one
	times    histogram
	shadowed atomic.Int64
	loaded   atomic.Int64
	broken   atomic.Int64
}

// fail counts a request that could not be decided, and returns its error.
func (s *stats) fail(err error) error {
	s.failure.Store(&err)
	s.failures.Add(1) // last: who sees it finds the error
	return err
}

// counters are those of a rule.
type counters struct {
	hits, over, near, within, shadow atomic.Int64
}

const nearLimit = 0.8 // of a limit: hits beyond are near it

// note counts the answer to a descriptor.
func (s *stats) note(d *descriptor) {
	if d.match == nil {
		return
	}
	c, ok := s.rules.Load(d.stat)
	if !ok {
		name := d.stat
		if name != d.rule.stat && (len(name) > longestValues || s.values.Add(1) > mostValues) {
			name = d.rule.stat
		}
		c, _ = s.rules.LoadOrStore(name, &counters{})
	}
	c.(*counters).note(d)
}

// Clients choose values: so many names with them have counters of their own, if they are no longer than so many bytes. All
// others are counted under the name of their rule.
const (
	mostValues    = 10_000
	longestValues = 1_000
)

func (c *counters) note(d *descriptor) {
	c.hits.Add(d.asked)
	if d.unlimited || !d.known {
		return
	}
	limit := int64(d.spec.limit)
	switch {
	case d.over && d.countDenied && d.used-d.asked < limit: // a part of the hits was within the limit
		c.over.Add(d.used - limit)
		c.near.Add(limit - max(near(limit), d.used-d.asked))
	case d.over:
		c.over.Add(d.asked)
	default:
		c.within.Add(d.asked)
		if beyond := d.used - near(limit); d.used >= 0 && beyond > 0 {
			c.near.Add(min(beyond, d.asked))
		}
	}
	if d.over && d.shadow {
		c.shadow.Add(d.asked)
	}
}

func near(limit int64) int64 { return int64(float32(limit) * nearLimit) }

// kinds are the counters of a rule, by their names.
var kinds = [...]struct {
	name, help string
	of         func(*counters) *atomic.Int64
}{
	{"total_hits", "Hits of requests that the limit applied to.", func(c *counters) *atomic.Int64 { return &c.hits }},
	{"over_limit", "Hits that were over the limit.", func(c *counters) *atomic.Int64 { return &c.over }},
	{"near_limit", "Hits beyond 80 % of a window's limit.", func(c *counters) *atomic.Int64 { return &c.near }},
	{"within_limit", "Hits that were within the limit.", func(c *counters) *atomic.Int64 { return &c.within }},
	{"shadow_mode", "Hits over the limit that shadow_mode let through.", func(c *counters) *atomic.Int64 { return &c.shadow }},
}

// write writes the counters as Prometheus reads them.
func (s *stats) write(w io.Writer, original bool) {
	labels := ownLabels
	if original {
		labels = originalLabels
	}
	sums := map[string]*[len(kinds)]int64{} // by their labels: those of the original are the same for some rules
	s.rules.Range(func(name, c any) bool {
		of := labels(name.(string))
		if of == "" {
			return true
		}
		if sums[of] == nil {
			sums[of] = &[len(kinds)]int64{}
		}
		for i, kind := range kinds {
			sums[of][i] += kind.of(c.(*counters)).Load()
		}
		return true
	})
	rows := slices.Sorted(maps.Keys(sums))
	for i, kind := range kinds {
		metric(w, "ratelimit_service_rate_limit_"+kind.name, kind.help)
		for _, of := range rows {
			fmt.Fprintf(w, "ratelimit_service_rate_limit_%s{%s} %d\n", kind.name, of, sums[of][i])
		}
	}
	mistakes, failures := s.mistakes.Load(), s.failures.Load()
	if original {
		const name = "ratelimit_service_should_rate_limit_error"
		metric(w, name, "Requests that could not be decided.")
		fmt.Fprintf(w, "%s{err_type=\"redis_error\"} %d\n%s{err_type=\"service_error\"} %d\n", name, failures, name, mistakes)
		s.times.write(w)
	} else {
		single(w, "ratelimit_service_call_should_rate_limit_error", "Requests that could not be decided.", mistakes+failures)
	}
	single(w, "ratelimit_service_global_shadow_mode", "Requests that were let through because the service enforces nothing.", s.shadowed.Load())
	single(w, "ratelimit_service_config_load_success", "Times that the config files were put in force.", s.loaded.Load())
	single(w, "ratelimit_service_config_load_error", "Times that the config files had a mistake.", s.broken.Load())
}

// ownLabels are those of a rule, by the name of its counters.
func ownLabels(name string) string {
	domain, descriptor, _ := strings.Cut(name, ".")
	return fmt.Sprintf(`domain="%s",descriptor="%s"`, label(domain), label(descriptor))
}

func single(w io.Writer, name, help string, value int64) {
	metric(w, name, help)
	fmt.Fprintf(w, "%s %d\n", name, value)
}

func metric(w io.Writer, name, help string) {
	fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s counter\n", name, help, name)
}

var escapeLabel = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

func label(text string) string { return escapeLabel.Replace(strings.ToValidUTF8(text, "\ufffd")) }
