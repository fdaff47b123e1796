package serve

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/limits/yamlfile"
)

// A config is what the files say: the tree of each domain.
type config struct {
	domains map[string]*node
	rules   []*rule
}

// A node is a descriptor of a file, or a domain.
type node struct {
	children      map[string]*node // by key, or by key and value
	wildcards     []wildcard       // those of the children's names that hold a *
	rule          *rule            // nil: it has no rate_limit
	detailed      bool
	valueToMetric bool
	share         bool
}

// A wildcard is the name of a child, and its parts between the stars.
type wildcard struct {
	name  string
	parts []string
}

// A rule is a rate_limit.
type rule struct {
	spec
	limiter   ratelimit.Limiter
	hold      *holder                         // instead of limiter, of in_flight
	limit     *pb.RateLimitResponse_RateLimit // as answers have it
	stat      string                          // the name of its counters
	unlimited bool
	shadow    bool
	quota     bool
	name      string
	replaces  []string
	metadata  *structpb.Struct
}

// A spec is all that a limiter is made of.
type spec struct {
	algorithm   string
	limit       int // requests_per_unit, at most mostLimit
	unit        pb.RateLimitResponse_RateLimit_Unit
	burst       int
	zone        string
	countDenied bool
	lease       time.Duration // of in_flight
}

const (
	mostLimit = exact.Permits

	fixedWindow    = "fixed_window"
	slidingWindow  = "sliding_window"
	tokenBucket    = "token_bucket"
	calendarWindow = "calendar_window"
	inFlight       = "in_flight"
)

// units are the lengths of windows, which begin at the multiples since the Unix epoch, as envoyproxy/ratelimit has them.
var units = map[pb.RateLimitResponse_RateLimit_Unit]time.Duration{
	pb.RateLimitResponse_RateLimit_SECOND: time.Second,
	pb.RateLimitResponse_RateLimit_MINUTE: time.Minute,
	pb.RateLimitResponse_RateLimit_HOUR:   time.Hour,
	pb.RateLimitResponse_RateLimit_DAY:    24 * time.Hour,
	pb.RateLimitResponse_RateLimit_WEEK:   7 * 24 * time.Hour,
	pb.RateLimitResponse_RateLimit_MONTH:  30 * 24 * time.Hour,
	pb.RateLimitResponse_RateLimit_YEAR:   365 * 24 * time.Hour,
}

// unitNames are as files have them, the shortest first.
var unitNames = func() (all []string) {
	for _, u := range slices.Sorted(maps.Keys(units)) {
		all = append(all, strings.ToLower(u.String()))
	}
	slices.SortFunc(all, func(a, b string) int { return cmp.Compare(units[unitOf(a)], units[unitOf(b)]) })
	return all
}()

func unitOf(name string) pb.RateLimitResponse_RateLimit_Unit {
	return pb.RateLimitResponse_RateLimit_Unit(pb.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(name)])
}

// A Source is a config file.
type Source struct {
	Name string
	Text []byte
}

// Check returns nil if these files can be served, else an error that wraps ratelimit.ErrInvalidConfig and has a line for
// each mistake, such as "config.yaml:12: …". If merge is set, several files may have descriptors of one domain.
func Check(merge bool, files ...Source) error {
	_, err := parse(merge, files)
	return err
}

func parse(merge bool, files []Source) (*config, error) {
	c := &config{domains: map[string]*node{}}
	var mistakes []string
	from := map[string]string{}
	for _, source := range files {
		file, root := yamlfile.Parse(source.Name, source.Text)
		if file.Mistakes() == 0 {
			c.read(root, source.Name, merge, from)
		}
		if err := file.Err(); err != nil {
			mistakes = append(mistakes, err.Error())
		}
	}
	if mistakes != nil {
		return nil, fmt.Errorf("%w:\n%s", ratelimit.ErrInvalidConfig, strings.Join(mistakes, "\n"))
	}
	return c, nil
}

func (c *config) read(root yamlfile.Map, file string, merge bool, from map[string]string) {
	root.Only("domain", "descriptors")
	v := root.Must("domain", "name the domain of the requests")
	domain := v.Text()
	n, known := c.domains[domain]
	switch {
	case domain == "":
		n = newNode()
	case known && !merge:
		v.Errorf("is %q, which is that of %s too; write all its descriptors in one file, or merge domains", domain, from[domain])
	case !known:
		n = newNode()
		c.domains[domain], from[domain] = n, file
	}
	c.readNode(n, root.Get("descriptors").OrNone(), domain)
}

func newNode() *node { return &node{children: map[string]*node{}} }

// readNode adds the descriptors of a list to a node. Path names it in metrics.
func (c *config) readNode(n *node, list yamlfile.Value, path string) {
	for _, element := range list.List() {
		m := element.Map()
		if key := m.Get("key"); key.IsText() && key.MaybeEmpty() != "" {
			m = m.Called("descriptor " + yamlfile.Shown(joined(path+"."+key.MaybeEmpty(), m.Get("value").OrNone().MaybeEmpty())))
		}
		m.Only("key", "value", "rate_limit", "descriptors", "shadow_mode", "quota_mode", "detailed_metric", "value_to_metric", "share_threshold", "metadata")
		key := m.Must("key", "name the key of the entries").OrNone()
		name := key.Text()
		if name == "" {
			continue // it has been reported
		}
		if v := m.Get("value").OrNone(); v.Given() {
			if value := v.MaybeEmpty(); value != "" {
				name += "_" + value
			}
		}
		if n.children[name] != nil {
			m.Errorf("the list has another one of this key and value; leave one out")
			continue
		}
		child := newNode()
		child.detailed = truth(m.Get("detailed_metric"))
		child.valueToMetric = truth(m.Get("value_to_metric"))
		child.share = truth(m.Get("share_threshold"))
		if child.share && !strings.Contains(name, "*") {
			m.Get("share_threshold").Errorf("is for values with a *; leave it out")
		}
		if strings.Contains(name, "*") {
			n.wildcards = append(n.wildcards, wildcard{name, strings.Split(name, "*")})
		}
		metadata := readMetadata(m.Get("metadata"))
		if v := m.Get("rate_limit").OrNone(); v.Given() {
			child.rule = readRule(v.Map(), path+"."+name)
			child.rule.shadow = truth(m.Get("shadow_mode"))
			child.rule.quota = truth(m.Get("quota_mode"))
			child.rule.metadata = metadata
			c.rules = append(c.rules, child.rule)
			if child.rule.algorithm == inFlight {
				checkHold(m)
			}
		}
		n.children[name] = child
		c.readNode(child, m.Get("descriptors").OrNone(), path+"."+name)
	}
}

func readRule(m yamlfile.Map, stat string) *rule {
	m.Only("unit", "requests_per_unit", "unlimited", "name", "replaces", "algorithm", "burst", "time_zone", "count_denied", "limit", "lease")
	r := &rule{stat: stat, name: m.Get("name").OrNone().MaybeEmpty(), unlimited: truth(m.Get("unlimited"))}
	for _, element := range m.Get("replaces").OrNone().List() {
		other := element.Map()
		other.Only("name")
		v := other.Must("name", "name the limit that is replaced")
		name := v.OrNone().Text()
		if name != "" && name == r.name {
			v.Errorf("is that of this limit; name another one")
		}
		r.replaces = append(r.replaces, name)
	}
	unit := m.Get("unit").OrNone()
	if r.unlimited {
		if unit.Given() {
			unit.Errorf("has no meaning beside unlimited; leave one of them out")
		}
		return r
	}
	r.algorithm = fixedWindow
	if v := m.Get("algorithm"); v.Given() {
		r.algorithm = v.OneOf(fixedWindow, slidingWindow, tokenBucket, calendarWindow, inFlight)
	}
	if r.algorithm == inFlight {
		r.readHold(m)
		return r
	}
	for _, name := range []string{"limit", "lease"} {
		if v := m.Get(name); v.Given() {
			v.Errorf("is for in_flight; leave it out")
		}
	}
	word := m.Must("unit", "write "+yamlfile.Or(unitNames)).OrNone().Lower().OneOf(unitNames...)
	requests := m.Get("requests_per_unit").OrNone().Int(0, min(math.MaxUint32, math.MaxInt))
	r.limit = &pb.RateLimitResponse_RateLimit{RequestsPerUnit: uint32(requests), Unit: unitOf(word), Name: r.name}
	r.spec.limit, r.spec.unit = min(requests, mostLimit), r.limit.Unit
	if v := m.Get("burst"); v.Given() {
		if r.burst = v.Int(1, mostLimit); r.algorithm != tokenBucket {
			v.Errorf("is for token_bucket; leave it out")
		}
	} else if r.algorithm == tokenBucket {
		r.burst = r.spec.limit
	}
	if v := m.Get("count_denied"); v.Given() {
		if r.countDenied = truth(v); r.countDenied && r.algorithm != fixedWindow {
			v.Errorf("is for fixed_window; leave it out")
		}
	}
	r.readZone(m)
	if word != "" && requests > 0 && r.algorithm != "" && (r.zone != "" || r.algorithm != calendarWindow) {
		if _, err := r.build(noClient{}); err != nil {
			m.Errorf("cannot work: %s", yamlfile.Plain(err))
		}
	}
	return r
}

// truth is a truth value in the words of YAML 1.1, which envoyproxy/ratelimit reads.
func truth(v yamlfile.Value) bool {
	word := v.OrNone().Lower().OneOf("true", "false", "yes", "no", "on", "off")
	return word == "true" || word == "yes" || word == "on"
}

// readZone reads the time zone of a calendar.
func (r *rule) readZone(m yamlfile.Map) {
	v := m.Get("time_zone")
	switch {
	case v.Given() && r.algorithm != calendarWindow:
		v.Errorf("is for calendar_window; leave it out")
	case r.algorithm != calendarWindow:
	case !v.Given():
		v.Errorf("is missing; write a name such as Europe/Berlin")
	default:
		r.zone = v.Text()
		if _, err := time.LoadLocation(r.zone); r.zone == "Local" || err != nil {
			v.Errorf("is %q, which is no time zone here; write a name such as Europe/Berlin or UTC", r.zone)
			r.zone = ""
		}
	}
	if r.algorithm == calendarWindow && r.unit != pb.RateLimitResponse_RateLimit_DAY && r.unit != pb.RateLimitResponse_RateLimit_WEEK && r.unit != pb.RateLimitResponse_RateLimit_MONTH {
		m.Get("unit").Errorf("of a calendar_window is day, week or month")
		r.zone = ""
	}
}
