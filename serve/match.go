package serve

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// A match is the rule of a descriptor, and the key under which it is counted.
type match struct {
	*rule
	key  string
	stat string
	id   string // of the hold, if the rule is one for what is in flight
}

// find returns the rule of a descriptor, as GetLimit of envoyproxy/ratelimit does; nil if there is none.
func (c *config) find(domain string, d *common.RateLimitDescriptor) *match {
	n := c.domains[domain]
	if n == nil {
		return nil
	}
	if o := d.GetLimit(); o != nil {
		return override(domain, d)
	}
	var found *node
	var shared []string // the patterns of entries that share a threshold
	metric := domain
	for i, entry := range d.GetEntries() {
		name := entry.GetKey() + "_" + entry.GetValue()
		next, pattern, exact := n.children[name], "", true
		if next == nil {
			for _, w := range n.wildcards {
				if w.matches(name) {
					next, pattern = n.children[w.name], strings.TrimPrefix(w.name, entry.GetKey()+"_")
					break
				}
			}
		}
		if next == nil {
			next, exact = n.children[entry.GetKey()], false
		}
		if next == nil {
			return nil
		}
		if pattern != "" && next.share {
			if shared == nil {
				shared = make([]string, len(d.GetEntries()))
			}
			shared[i] = pattern
		}
		value := "" // in the metric
		switch {
		case pattern != "" && (next.share || !next.valueToMetric):
			value = pattern
		case exact || next.valueToMetric:
			value = entry.GetValue()
		}
		metric += "." + joined(entry.GetKey(), value)
		if i == len(d.GetEntries())-1 {
			found = next
		}
		n = next
	}
	if found == nil || found.rule == nil {
		return nil
	}
	m := &match{rule: found.rule, stat: metric}
	if found.detailed {
		m.stat = detailed(domain, d, shared)
	}
	switch {
	case found.rule.unlimited:
	case found.rule.algorithm == inFlight:
		m.key, m.id = holdOf(domain, d, shared)
	default:
		m.key = keyOf(domain, d, shared)
	}
	return m
}

// detailed is a metric's name with the values of a request, except for those that share a threshold. An empty value leaves
// its underscore, unless there are such, as envoyproxy/ratelimit has it.
func detailed(domain string, d *common.RateLimitDescriptor, shared []string) string {
	name := domain
	for i, entry := range d.GetEntries() {
		switch {
		case shared == nil:
			name += "." + entry.GetKey() + "_" + entry.GetValue()
		case shared[i] != "":
			name += "." + joined(entry.GetKey(), shared[i])
		default:
			name += "." + joined(entry.GetKey(), entry.GetValue())
		}
	}
	return name
}

func joined(key, value string) string {
	if value == "" {
		return key
	}
	return key + "_" + value
}

// override is the rule that comes with a descriptor.
func override(domain string, d *common.RateLimitDescriptor) *match {
	o := d.GetLimit()
	limit := &pb.RateLimitResponse_RateLimit{
		RequestsPerUnit: o.GetRequestsPerUnit(),
		Unit:            pb.RateLimitResponse_RateLimit_Unit(o.GetUnit()),
	}
	keys, stat := domain, domain
	for _, entry := range d.GetEntries() {
		keys += "." + entry.GetKey()
		stat += "." + joined(entry.GetKey(), entry.GetValue())
	}
	s := spec{algorithm: fixedWindow, limit: min(int(o.GetRequestsPerUnit()), mostLimit), unit: limit.Unit}
	return &match{rule: &rule{spec: s, limit: limit, stat: keys}, key: keyOf(domain, d, nil), stat: stat}
}

// matches reports whether the parts are in name, in their order, the first at its beginning and the last at its end.
func (w wildcard) matches(name string) bool {
	last := len(w.parts) - 1
	rest, ok := strings.CutPrefix(name, w.parts[0])
	if !ok {
		return false
	}
	if rest, ok = strings.CutSuffix(rest, w.parts[last]); !ok {
		return false
	}
	for _, part := range w.parts[1:last] {
		_, after, found := strings.Cut(rest, part)
		if !found {
			return false
		}
		rest = after
	}
	return true
}

const (
	longestKey = 1_000 // longer ones are hashed
	keySize    = 64    // of most keys at most
)

var escape = strings.NewReplacer(`\`, `\\`, `|`, `\|`, `=`, `\=`)

// keyOf is the key of a descriptor: no two descriptors have one, unless entries share a threshold.
func keyOf(domain string, d *common.RateLimitDescriptor, shared []string) string {
	var b strings.Builder
	b.Grow(keySize)
	b.WriteString(escape.Replace(domain))
	for i, entry := range d.GetEntries() {
		value := entry.GetValue()
		if shared != nil && shared[i] != "" {
			value = shared[i]
		}
		b.WriteByte('|')
		b.WriteString(escape.Replace(entry.GetKey()))
		b.WriteByte('=')
		b.WriteString(escape.Replace(value))
	}
	if b.Len() <= longestKey {
		return b.String()
	}
	sum := sha256.Sum256([]byte(b.String()))
	return "sha256|" + hex.EncodeToString(sum[:])
}
