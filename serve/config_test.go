package serve

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
)

func TestMistakesInFiles(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"no domain":      {"descriptors: []", "f:1: domain is missing; name the domain of the requests"},
		"empty domain":   {"domain: \"\"", "f:1: domain is empty; write a text, or leave it out"},
		"no YAML":        {"domain: d\ndescriptors: [", "f:3: this is no YAML: did not find expected node content"},
		"unknown field":  {"domain: d\ndescriptors:\n- key: a\n  ratelimit: {}", "f:4: descriptor d.a: ratelimit is no field here; did you mean rate_limit?"},
		"no key":         {"domain: d\ndescriptors:\n- value: a", "f:3: element 1 of descriptors: key is missing; name the key of the entries"},
		"empty key":      {"domain: d\ndescriptors:\n- key: \"\"", "f:3: element 1 of descriptors: key is empty; write a text, or leave it out"},
		"twice":          {"domain: d\ndescriptors:\n- key: a\n  value: b\n- key: a\n  value: b", "f:5: descriptor d.a_b: the list has another one of this key and value; leave one out"},
		"no unit":        {"domain: d\ndescriptors:\n- key: a\n  rate_limit: {requests_per_unit: 5}", "f:4: descriptor d.a: rate_limit: unit is missing; write second, minute, hour, day, week, month or year"},
		"bad unit":       {"domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: minutes, requests_per_unit: 5}", "f:4: descriptor d.a: rate_limit: unit is \"minutes\"; did you mean minute?"},
		"unlimited unit": {"domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: day, unlimited: true}", "f:4: descriptor d.a: rate_limit: unit has no meaning beside unlimited; leave one of them out"},
		"no list":        {"domain: d\ndescriptors: a", "f:2: descriptors is no list; write [ … ] around its elements, or each in a line of its own after a dash"},
		"no map":         {"domain: d\ndescriptors: [a]", "f:2: element 1 of descriptors is no map; write fields, such as \"name: value\"\nf:2: element 1 of descriptors: key is missing; name the key of the entries"},
		"share":          {"domain: d\ndescriptors: [{key: a, value: b, share_threshold: true}]", "f:2: descriptor d.a_b: share_threshold is for values with a *; leave it out"},
		"replaces itself": {"domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, name: x, replaces: [{name: x}]}}]",
			"f:2: descriptor d.a: rate_limit: element 1 of replaces: name is that of this limit; name another one"},
		"replaces nothing": {"domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: \"\"}]}}]",
			"f:2: descriptor d.a: rate_limit: element 1 of replaces: name is empty; write a text, or leave it out"},
		"too many": {"domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 4294967296}}]",
			"f:2: descriptor d.a: rate_limit: requests_per_unit is 4294967296; write a whole number from 0 to 4294967295"},
		"burst": {"domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, burst: 5}}]",
			"f:2: descriptor d.a: rate_limit: burst is for token_bucket; leave it out"},
		"count_denied": {"domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, algorithm: token_bucket, count_denied: true}}]",
			"f:2: descriptor d.a: rate_limit: count_denied is for fixed_window; leave it out"},
		"zone": {"domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, algorithm: calendar_window, time_zone: Europe/Berln}}]",
			"f:2: descriptor d.a: rate_limit: time_zone is \"Europe/Berln\", which is no time zone here; write a name such as Europe/Berlin or UTC"},
		"no zone": {"domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, algorithm: calendar_window}}]",
			"f:2: descriptor d.a: rate_limit: time_zone is missing; write a name such as Europe/Berlin"},
		"calendar of an hour": {"domain: d\ndescriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: 1, algorithm: calendar_window, time_zone: UTC}}]",
			"f:2: descriptor d.a: rate_limit: unit of a calendar_window is day, week or month"},
		"in flight without a limit": {"domain: d\ndescriptors: [{key: a, rate_limit: {algorithm: in_flight, lease: 30s}}]",
			"f:2: descriptor d.a: rate_limit: limit is missing; write how many requests may be in flight at the same time"},
		"in flight without a lease": {"domain: d\ndescriptors: [{key: a, rate_limit: {algorithm: in_flight, limit: 3}}]",
			"f:2: descriptor d.a: rate_limit: lease is missing; write after which time a request that is never reported as done gives its place back, such as 5m"},
		"a lease too short": {"domain: d\ndescriptors: [{key: a, rate_limit: {algorithm: in_flight, limit: 3, lease: 3ns}}]",
			"f:2: descriptor d.a: rate_limit: cannot work: the lease is 3ns; it must be at least 1ms"},
		"in flight of a unit": {"domain: d\ndescriptors: [{key: a, value: b, rate_limit: {algorithm: in_flight, limit: 3, lease: 3s, unit: day}}]",
			"f:2: descriptor d.a_b: rate_limit: unit is not for in_flight, which has limit and lease; leave it out\n" +
				"f:2: descriptor d.a_b: value has no meaning beside in_flight: the value of the entry is the id of a request; leave it out"},
		"a limit of a window": {"domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, limit: 3, lease: 3s}}]",
			"f:2: descriptor d.a: rate_limit: limit is for in_flight; leave it out\nf:2: descriptor d.a: rate_limit: lease is for in_flight; leave it out"},
		"two mistakes": {"domain: d\ndescriptors:\n- key: a\n  x: 1\n- key: b\n  ky: 2",
			"f:4: descriptor d.a: x is no field here; write key, value, rate_limit, descriptors, shadow_mode, quota_mode, detailed_metric, value_to_metric, share_threshold or metadata\n" +
				"f:6: descriptor d.b: ky is no field here; did you mean key?"},
	} {
		err := Check(false, Source{"f", []byte(test.text)})
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig, name)
		require.Equal(t, "ratelimit: invalid configuration:\n"+test.want, err.Error(), name)
	}
}

func TestDomainsOfSeveralFiles(t *testing.T) {
	a := Source{"a", []byte("domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]")}
	b := Source{"b", []byte("domain: d\ndescriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 1}}]")}
	require.EqualError(t, Check(false, a, b), "ratelimit: invalid configuration:\nb:1: domain is \"d\", which is that of a too; write all its descriptors in one file, or merge domains")
	require.NoError(t, Check(true, a, b))
	require.EqualError(t, Check(true, a, b, a), "ratelimit: invalid configuration:\na:2: descriptor d.a: the list has another one of this key and value; leave one out")
}

// TestStats: the names of counters, as envoyproxy/ratelimit builds them.
func TestStats(t *testing.T) {
	text, err := os.ReadFile("testdata/shop.yaml")
	require.NoError(t, err)
	c, err := parse(false, []Source{{"shop.yaml", text}})
	require.NoError(t, err)
	for descriptor, want := range map[string]string{
		"user=42":               "shop.user",
		"user=42,path=/search":  "shop.user.path_/search",
		"user=42,path=/api/v1":  "shop.user.path_/api/v1",
		"user=staff":            "shop.user_staff",
		"files=files/a":         "shop.files_files/*",
		"route=svc-av1-end":     "shop.route_svc*v1*end",
		"detail=7":              "shop.detail_7",
		"detail=":               "shop.detail_",
		"quota=a":               "shop.quota_a",
		"user=staff,path=/none": "",
	} {
		m := c.find("shop", request(1, descriptor).Descriptors[0])
		if want == "" {
			require.Nil(t, m, descriptor)
			continue
		}
		require.NotNil(t, m, descriptor)
		require.Equal(t, want, m.stat, descriptor)
	}
}

// TestStatsAreBounded: clients choose values, those of a file's detailed_metric and of limits that come with requests.
func TestStatsAreBounded(t *testing.T) {
	c, err := parse(false, []Source{{"f", []byte("domain: shop\ndescriptors: [{key: detail, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 2}}]")}})
	require.NoError(t, err)
	var s stats
	note := func(value string, own bool) {
		r := request(1, "detail="+value).Descriptors[0]
		if own {
			r.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 3, Unit: typev3.RateLimitUnit_HOUR}
		}
		s.note(&descriptor{match: c.find("shop", r), asked: 1})
	}
	for i := range mostValues {
		note(strconv.Itoa(i), i%2 == 0)
	}
	for range 2 {
		for i := range 100 {
			note("more"+strconv.Itoa(i), i%2 == 0)
		}
		note(strconv.Itoa(mostValues-1), false)
	}
	note(strings.Repeat("x", longestValues), true)
	var text strings.Builder
	s.write(&text, false)
	require.Equal(t, (mostValues+1)*len(kinds), strings.Count(text.String(), "{domain="))
	require.Contains(t, text.String(), "total_hits{domain=\"shop\",descriptor=\"detail\"} 201\n")
	require.Contains(t, text.String(), "total_hits{domain=\"shop\",descriptor=\"detail_9999\"} 3\n")
}

func TestWildcards(t *testing.T) {
	for _, test := range []struct {
		pattern, name string
		want          bool
	}{
		{"k_a*", "k_a", true}, {"k_a*", "k_abc", true}, {"k_a*", "k_b", false},
		{"k_a*z", "k_az", true}, {"k_a*z", "k_abz", true}, {"k_a*z", "k_ab", false}, {"k_ab*ba", "k_aba", false},
		{"k_a*m*z", "k_amz", true}, {"k_a*m*z", "k_a-m-m-z", true}, {"k_a*m*z", "k_a-z", false}, {"k_a*bc*bcd", "k_abcd", false},
		{"k_*", "k_", true}, {"k_**", "k_x", true},
	} {
		c, err := parse(false, []Source{{"f", []byte("domain: shop\ndescriptors: [{key: k, value: \"" + test.pattern[2:] + "\", rate_limit: {unit: day, requests_per_unit: 1}}]")}})
		require.NoError(t, err)
		require.Equal(t, test.want, c.find("shop", request(1, "k="+test.name[2:]).Descriptors[0]) != nil, "%v", test)
	}
}

// TestKeysAreDistinct: no two descriptors share a key.
func TestKeysAreDistinct(t *testing.T) {
	long := make([]byte, 5000)
	for i := range long {
		long[i] = 'x'
	}
	seen := map[string]string{}
	for _, d := range []string{"a=b", "a=b,c=d", "a=b|c=d", `a=b\|c`, `a=b\,c=`, "a=b_c", "a_b=c", "a=", "a=,b=", "a=|b", `a=\|b`, "a=" + string(long), "a=" + string(long) + "y"} {
		key := keyOf("shop", request(1, d).Descriptors[0], nil)
		require.Empty(t, seen[key], "%s and %s", seen[key], d)
		require.LessOrEqual(t, len(key), longestKey)
		seen[key] = d
	}
	require.NotEqual(t, keyOf("a", request(1, "b=c").Descriptors[0], nil), keyOf("a|b=c", request(1, "b=c").Descriptors[0], nil))
	require.NotEqual(t, keyOf("a|b", request(1, "c=d").Descriptors[0], nil), keyOf("a", request(1, "b|c=d").Descriptors[0], nil))
}

// TestTheGuidesFiles: what docs/serve.md shows and the example has can be served, and the page names every field.
func TestTheGuidesFiles(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "docs", "serve.md"))
	require.NoError(t, err)
	files := regexp.MustCompile("(?s)```yaml\n(domain:.*?)```").FindAllSubmatch(page, -1)
	require.NotEmpty(t, files)
	for _, f := range files {
		require.NoError(t, Check(false, Source{"serve.md", f[1]}))
	}
	for _, field := range []string{"algorithm", "burst", "time_zone", "count_denied", "limit", "lease", fixedWindow, slidingWindow, tokenBucket, calendarWindow, inFlight} {
		require.Contains(t, string(page), "`"+field+"`")
	}
	example, err := Dir("example/config")()
	require.NoError(t, err)
	require.NotEmpty(t, example)
	require.NoError(t, Check(false, example...))
}
