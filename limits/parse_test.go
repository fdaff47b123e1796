package limits

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/exact"
)

func TestEveryField(t *testing.T) {
	tests := []struct {
		name, text string
		want       limit
	}{
		{"token_bucket", "{algorithm: token_bucket, rate: 100/m, burst: 20, refill_every: 30s, headroom: 5, name: api}",
			limit{rule: rule{algorithm: "token_bucket", name: "api", rates: []ratelimit.Rate{ratelimit.PerMinute(100)}, size: 20, refillEvery: 30 * time.Second, headroom: 5}}},
		{"token_bucket of the clock", "{algorithm: token_bucket, rate: 100/h, burst: 500, refill_every: 1h, align: -30m}",
			limit{rule: rule{algorithm: "token_bucket", name: "x", rates: []ratelimit.Rate{ratelimit.PerHour(100)}, size: 500, refillEvery: time.Hour, aligned: true, align: -30 * time.Minute}}},
		{"leaky_bucket", "{algorithm: leaky_bucket, rate: 10/90s, capacity: 2_000, headroom: 1}",
			limit{rule: rule{algorithm: "leaky_bucket", name: "x", rates: []ratelimit.Rate{ratelimit.Per(10, 90*time.Second)}, size: 2000, headroom: 1}}},
		{"fixed_window", "{algorithm: fixed_window, rate: 100/d, align: -2h, headroom: 1}",
			limit{rule: rule{algorithm: "fixed_window", name: "x", rates: []ratelimit.Rate{ratelimit.Per(100, 24*time.Hour)}, aligned: true, align: -2 * time.Hour, headroom: 1}}},
		{"sliding_window", "{algorithm: sliding_window, rate: 5/15m, storage: list, sub_windows: 10, headroom: 1}",
			limit{rule: rule{algorithm: "sliding_window", name: "x", rates: []ratelimit.Rate{ratelimit.Per(5, 15*time.Minute)}, storage: "list", subWindows: 10, headroom: 1}}},
		{"sliding_log", "{algorithm: sliding_log, rates: [20/s, 100/m], resolution: 5us, headroom: 1}",
			limit{rule: rule{algorithm: "sliding_log", name: "x", rates: []ratelimit.Rate{ratelimit.PerSecond(20), ratelimit.PerMinute(100)}, resolution: 5 * time.Microsecond, headroom: 1}}},
		{"by day", "{algorithm: calendar_window, limit: 10, every: day, time_zone: Europe/Berlin, headroom: 1}",
			limit{rule: rule{algorithm: "calendar_window", name: "x", size: 10, every: "day", firstDay: "monday", day: 1, zone: "Europe/Berlin", headroom: 1}}},
		{"by week", "{algorithm: calendar_window, limit: 10, every: week, first_day: sunday, time_zone: UTC}",
			limit{rule: rule{algorithm: "calendar_window", name: "x", size: 10, every: "week", firstDay: "sunday", day: 1, zone: "UTC"}}},
		{"by month", "{algorithm: calendar_window, limit: 10, every: month, day: 31, time_zone: UTC}",
			limit{rule: rule{algorithm: "calendar_window", name: "x", size: 10, every: "month", firstDay: "monday", day: 31, zone: "UTC"}}},
		{"in_flight", "{algorithm: in_flight, limit: 20, lease: 30s}",
			limit{rule: rule{algorithm: "in_flight", name: "x", size: 20, lease: 30 * time.Second}}},
		{"plans", "{algorithm: fixed_window, rate: 1/s, align: 0s, plans: {pro: {rate: 5/s}, staff: unlimited, banned: denied}}",
			limit{rule: rule{algorithm: "fixed_window", name: "x", rates: []ratelimit.Rate{ratelimit.PerSecond(1)}, aligned: true}, plans: map[string]rule{
				"pro":    {algorithm: "fixed_window", name: "x", rates: []ratelimit.Rate{ratelimit.PerSecond(5)}, aligned: true},
				"staff":  {constant: "unlimited"},
				"banned": {constant: "denied"},
			}}},
		{"a cache", "{algorithm: fixed_window, rate: 1/s, deny_cache: true}",
			limit{rule: rule{algorithm: "fixed_window", name: "x", rates: []ratelimit.Rate{ratelimit.PerSecond(1)}}, cache: &cache{}}},
		{"no cache", "{algorithm: fixed_window, rate: 1/s, deny_cache: false}",
			limit{rule: rule{algorithm: "fixed_window", name: "x", rates: []ratelimit.Rate{ratelimit.PerSecond(1)}}}},
		{"a cache with bounds", "{algorithm: fixed_window, rate: 1/s, deny_cache: {max_keys: 1000, max_denial: 5s}}",
			limit{rule: rule{algorithm: "fixed_window", name: "x", rates: []ratelimit.Rate{ratelimit.PerSecond(1)}}, cache: &cache{1000, 5 * time.Second}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := parse("limits.yaml", []byte("limits:\n  x: "+test.text))
			require.NoError(t, err)
			require.Equal(t, test.want, got.limits["x"])
		})
	}
}

func TestTheFieldsOfAFile(t *testing.T) {
	const text = `
prefix: shop
breaker: {failures: 3, probe_every: 1s}
outages:
  default: {fallback: local, budget: 20ms, instances: 4, begin: last_answers}
  open: {fallback: allow, budget: 5ms}
  closed: {fallback: deny, budget: 5ms}
limits:
  a: {algorithm: fixed_window, rate: 1/s}
  b: {algorithm: fixed_window, rate: 1/s, outage: none}
  c: {algorithm: fixed_window, rate: 1/s, outage: open}
  both: {all: [b, c], outage: closed, deny_cache: true}
`
	got, err := parse("limits.yaml", []byte(text))
	require.NoError(t, err)
	probing := breaker{3, time.Second}
	fixed := func(name string) rule {
		return rule{algorithm: "fixed_window", name: name, rates: []ratelimit.Rate{ratelimit.PerSecond(1)}}
	}
	b := limit{prefix: "shop", rule: fixed("b")}
	c := limit{prefix: "shop", rule: fixed("c"), outage: &outage{fallback: "allow", budget: 5 * time.Millisecond}, probing: probing}
	require.Equal(t, map[string]limit{
		"a": {prefix: "shop", rule: fixed("a"), outage: &outage{"local", 4, "last_answers", 20 * time.Millisecond}, probing: probing},
		"b": b, "c": c,
		"both": {prefix: "shop", all: []string{"b", "c"}, parts: []limit{b, c}, cache: &cache{},
			outage: &outage{fallback: "deny", budget: 5 * time.Millisecond}, probing: probing},
	}, got.limits)
}

func TestMistakes(t *testing.T) {
	text, err := os.ReadFile("testdata/mistakes.yaml")
	require.NoError(t, err)
	want, err := os.ReadFile("testdata/mistakes.txt")
	require.NoError(t, err)
	err = Check("limits.yaml", text)
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	require.Equal(t, strings.TrimSpace(string(want)), err.Error())
}

// TestTheLargestLimits are those of the library.
func TestTheLargestLimits(t *testing.T) {
	file := func(text string, size int) []byte {
		return []byte("limits:\n  a: " + strings.NewReplacer("RATE", fmt.Sprint(exact.Permits), "SIZE", fmt.Sprint(size)).Replace(text))
	}
	for _, text := range []string{
		"{algorithm: token_bucket, rate: RATE/d, burst: SIZE}",
		"{algorithm: leaky_bucket, rate: RATE/d, capacity: SIZE}",
		"{algorithm: calendar_window, limit: SIZE, every: month, time_zone: UTC}",
		"{algorithm: fixed_window, rate: RATE/d, headroom: SIZE}",
	} {
		most := exact.Permits
		if strings.Contains(text, "headroom") {
			most--
		}
		require.NoError(t, Check("x", file(text, most)))
		require.Error(t, Check("x", file(text, most+1)), text)
	}
	slow, fast := ratelimit.Rate{Count: exact.Permits, Period: 1<<61 + 1}, ratelimit.Rate{Count: exact.Permits, Period: 1 << 61}
	require.True(t, slower(slow, fast))
	require.False(t, slower(fast, slow))
	require.False(t, slower(slow, slow))
}

func TestFilesThatAreNoLimits(t *testing.T) {
	for text, want := range map[string]string{
		"":                            "x:1: the file is empty",
		"# only a comment\n":          "x:1: the file is empty",
		"- a\n":                       "x:1: the file is no map; write fields, such as \"name: value\"",
		"limits: {}\n---\nlimits: {}": "x:2: the file has a second document; write all in one",
		"a: b\n":                      "x:1: a is no field here; write prefix, breaker, outages or limits\nx:1: limits is missing; name the limits, such as \"limits: {api: {algorithm: token_bucket, rate: 100/m, burst: 20}}\"",
		"limits:\n  a: &a {<<: *a}\n": "x:2: *a is a part of what it stands for; write it out",
		"limits:\n  ? [a]\n  : b\n":   "x:2: limits: a field's name is a text",
		"limits:\n  a: {<<: 5}\n":     "x:2: limits: a: << is no map",
	} {
		err := Check("x", []byte(text))
		require.Error(t, err, "%q", text)
		require.Equal(t, want, err.Error(), "%q", text)
	}
	err := Check("x", []byte("limits:\n  a: [1\n  b: 2\n"))
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	require.Regexp(t, `^x:[123]: this is no YAML: `, err.Error())
}

// TestJSON: JSON is read too, with tabs and escapes.
func TestJSON(t *testing.T) {
	got, err := parse("limits.json", []byte("{\n\t\"limits\": {\n\t\t\"x\": {\"algorithm\": \"fixed_window\", \"rate\": \"5\\/m\", \"headroom\": 2, \"deny_cache\": true}\n\t}\n}\n"))
	require.NoError(t, err)
	require.Equal(t, limit{rule: rule{algorithm: "fixed_window", name: "x", rates: []ratelimit.Rate{ratelimit.PerMinute(5)}, headroom: 2}, cache: &cache{}}, got.limits["x"])
	require.EqualError(t, Check("limits.json", []byte("{\n\t\"limits\": {\n\t\t\"x\": {\"algorithm\": \"fixed_window\",\n\"rates\": \"5\\/m\"}}}")),
		"limits.json:3: limit x: rate is missing; write one, such as \"rate: 100/m\"\nlimits.json:4: limit x: rates is no field here; did you mean rate?")
}

// TestAnchors: what several limits share is written once.
func TestAnchors(t *testing.T) {
	got, err := parse("x", []byte(`
limits:
  a: &usual {algorithm: fixed_window, rate: 1/s, headroom: 0}
  b: {<<: *usual, rate: 2/s}
  c: *usual
  d: {<<: [{rate: 3/s}, *usual]}
`))
	require.NoError(t, err)
	for name, n := range map[string]int{"a": 1, "b": 2, "c": 1, "d": 3} {
		require.Equal(t, limit{rule: rule{algorithm: "fixed_window", name: name, rates: []ratelimit.Rate{ratelimit.PerSecond(n)}}}, got.limits[name])
	}
}

// TestTheGuidesFile: the file that docs/limits.md shows can be put in force.
func TestTheGuidesFile(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "docs", "limits.md"))
	require.NoError(t, err)
	files := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	require.NotEmpty(t, files)
	for _, f := range files {
		require.NoError(t, Check("limits.yaml", []byte(f[1])), f[1])
	}
	for name, a := range algorithms {
		require.Contains(t, string(page), "`"+name+"`")
		for _, field := range append(a.fields, common...) {
			require.Contains(t, string(page), "`"+field+"`")
		}
	}
}

func FuzzCheck(f *testing.F) {
	for _, name := range []string{"mistakes.yaml", "all.yaml"} {
		text, err := os.ReadFile("testdata/" + name)
		require.NoError(f, err)
		f.Add(text)
	}
	f.Add([]byte("limits:\n  a: &a {<<: *a}\n"))
	f.Add([]byte("a: &a [*a]\nlimits: *a"))
	f.Add([]byte("{\"limits\":{\"x\":{\"all\":[\"x\"]}}}"))
	line := regexp.MustCompile(`^x:[1-9]\d*: \S`)
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := Check("x", text); err != nil {
			require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
			for l := range strings.SplitSeq(err.Error(), "\n") {
				require.Regexp(t, line, l)
			}
			return
		}
		if bytes.Contains(text, []byte("deny_cache")) {
			return // a large one takes a gigabyte
		}
		file := filepath.Join(t.TempDir(), "x")
		require.NoError(t, os.WriteFile(file, text, 0o600))
		s, err := Load(noClient{}, file, Options{})
		require.NoError(t, err, "what Check accepts can be put in force")
		for name, l := range s.current.Load().limits {
			if l.from.holds() {
				_, err = s.Holder(name)
			} else {
				_, err = s.Limiter(name)
			}
			require.NoError(t, err)
		}
	})
}
