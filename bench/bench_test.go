package main

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tryacquire/ratelimit/bench/internal/chart"
)

func TestParseTally(t *testing.T) {
	const before = "# Commandstats\r\ncmdstat_evalsha:calls=10,usec=50,usec_per_call=5.00,rejected_calls=0,failed_calls=0\r\n" +
		"# CPU\r\nused_cpu_sys:1.500000\r\nused_cpu_user:2.250000\r\nused_cpu_sys_children:9.0\r\n" +
		"# Persistence\r\nrdb_changes_since_last_save:7\r\n# Memory\r\nused_memory:1000\r\nused_memory_human:1000B\r\n"
	const after = "cmdstat_evalsha:calls=30,usec=170,usec_per_call=5.67\r\ncmdstat_eval:calls=1,usec=30,usec_per_call=30.00\r\n" +
		"cmdstat_config|get:calls=1,usec=3\r\nused_cpu_sys:2.0\r\nused_cpu_user:3.0\r\n" +
		"rdb_changes_since_last_save:27\r\nused_memory:1500\r\n"
	start, err := parseTally(before)
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(start.cpu-3.75e6) > 1 {
		t.Errorf("cpu %v µs, want 3.75 s", start.cpu)
	}
	end, err := parseTally(after)
	if err != nil {
		t.Fatal(err)
	}
	got := end.since(start)
	if got.commands["evalsha"] != (commandStat{20, 120}) || got.scripts() != 150 {
		t.Errorf("evalsha %+v, scripts %v", got.commands["evalsha"], got.scripts())
	}
	if got.changes != 20 || got.memory != 500 || math.Abs(got.cpu-1.25e6) > 1 {
		t.Errorf("changes %d, memory %d, cpu %v", got.changes, got.memory, got.cpu)
	}
}

func TestParseTallyRefusesNonsense(t *testing.T) {
	if _, err := parseTally("cmdstat_get:calls=x\r\n"); err == nil {
		t.Error("no error")
	}
}

func TestProduct(t *testing.T) {
	for info, want := range map[string]string{
		"# Server\r\nredis_version:8.0.2\r\nos:Linux\r\n":                                   "Redis 8.0.2",
		"# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\n": "Valkey 9.1.2",
		"": "Redis ?",
	} {
		if got := product(info); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestThrottledCostCountsInnerGetsOnce(t *testing.T) {
	cost := throttledCost(tally{commands: map[string]commandStat{
		"eval": {100, 500}, "time": {100, 50}, "get": {200, 60},
	}})
	if cost != 500+50+30 {
		t.Errorf("got %v", cost)
	}
}

func TestParseMonitor(t *testing.T) {
	for _, c := range []struct {
		line string
		args []string
		sent bool
	}{
		{`+1700000000.1 [0 127.0.0.1:99] "evalsha" "ab\"c" "\x00\xff\n" ""` + "\r\n", []string{"evalsha", `ab"c`, "\x00\xff\n", ""}, true},
		{`+1700000000.1 [0 lua] "GET" "a [b] c"` + "\r\n", []string{"GET", "a [b] c"}, false},
	} {
		args, sent, err := parseMonitor(c.line)
		if err != nil || sent != c.sent || !reflect.DeepEqual(args, c.args) {
			t.Errorf("%s: %q, %v, %v", c.line, args, sent, err)
		}
	}
	if _, _, err := parseMonitor("+OK\r\n"); err == nil {
		t.Error("no error")
	}
}

func TestRecordingIsRepeatedForOtherUsers(t *testing.T) {
	r := newRecording([]string{"evalsha", "sha", "2", "p:user:0000000", "p:user:0000001", "1x60"})
	if err := r.setCalls(64); err != nil {
		t.Fatal(err)
	}
	want := []any{"evalsha", "sha", "2", "p:user:0000009", "p:user:0000000", "1x64"}
	if got := r.command(9, 10); !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := newRecording([]string{"evalsha", "sha", "1", "user:0000000", "1"}).setCalls(64); err == nil {
		t.Error("an execution of one call passes for a merged one")
	}
}

func TestResultsAreMediansAndTheirRatios(t *testing.T) {
	r, c := results{}, cell{1, hotKey, granted}
	for _, v := range []float64{30, 10, 20} {
		r.add("a", c, sample{perSecond: v})
		r.add("b", c, sample{perSecond: 2 * v})
	}
	if got := r.median("a", c)[perSecond]; got != 20 {
		t.Errorf("median %v", got)
	}
	if got := r.ratio(perSecond, c, "a", "b"); got != 0.5 {
		t.Errorf("ratio %v", got)
	}
	if got := r.ratio(perSecond, c, "a", "absent"); !math.IsNaN(got) {
		t.Errorf("ratio to what was not measured: %v", got)
	}
}

func TestTableMarkdown(t *testing.T) {
	tab := table{title: "T", note: "n", header: []string{"", "µs"}}
	tab.add("a", "1,000")
	want := "### T\n\nn\n\n|     |    µs |\n|-----|------:|\n| a   | 1,000 |\n"
	if got := tab.markdown(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestNumbers(t *testing.T) {
	for got, want := range map[string]string{
		number(math.NaN()): unknown, number(1234567): "1,234,567", number(0.126): "0.13", number(12.34): "12.3",
		number(999.4): "999", thousands(-1234): "-1,234", thousands(12): "12", latency(540): "540 ns",
		latency(2_500): "2.50 µs", latency(3.2e6): "3.20 ms", times(2): "2.00 ×", times(math.Inf(1)): unknown,
		percent(0.125): "12.5 %", bare(2): "2", bare(1.05): "1.05", fileName("Server time, 10,000 keys"): "server-time-10-000-keys.svg",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestTargetsOfNothingAreUnknown(t *testing.T) {
	tab := targetTable(findings{results: results{}, costs: costs{}, distance: &distance{}})
	if len(tab.rows) < 20 {
		t.Errorf("only %d targets", len(tab.rows))
	}
	for _, row := range tab.rows {
		if row[3] != unknown {
			t.Errorf("%s: %s", row[0], row[3])
		}
	}
}

func TestTargetsKnowReachedFromMissed(t *testing.T) {
	c := costs{
		{"token bucket", granted}: {{micros: 8}}, {reference, granted}: {{micros: 10}},
		{"token bucket", denied}: {{micros: 9, writes: 1}}, {reference, denied}: {{micros: 10}},
	}
	text := targetTable(findings{results: results{}, costs: c, distance: &distance{}}).markdown()
	for what, want := range map[string]string{
		"token bucket granted": "reached", "token bucket denied": "missed", "writes of any denial": "missed",
	} {
		for line := range strings.Lines(text) {
			if strings.Contains(line, what) && !strings.Contains(line, want) {
				t.Errorf("%s: want %s", line, want)
			}
		}
	}
}

func TestPlotTableHasAColumnForEachX(t *testing.T) {
	got := plotTable(chart.Plot{X: "x", Y: "y", Series: []chart.Series{
		{Name: "a", Points: []chart.Point{{X: 10, Y: 1}, {X: 1000, Y: 2}}},
		{Name: "b", Points: []chart.Point{{X: 100, Y: 3}}},
	}})
	want := [][]string{{"y, by x", "10", "100", "1,000"}, {"a", "1.00", unknown, "2.00"}, {"b", unknown, "3.00", unknown}}
	if !reflect.DeepEqual(append([][]string{got.header}, got.rows...), want) {
		t.Errorf("got %q %q", got.header, got.rows)
	}
}

func TestSteadyStepsFillAWindow(t *testing.T) {
	for _, s := range []steady{slidingWindowOf(0, 10), slidingLogOf(100_000, 1), slidingLogOf(1<<10, 8), zsetWindowOf(300)} {
		if covered := time.Duration(s.step()*s.calls) * time.Microsecond; covered < steadyWindow || covered > steadyWindow+time.Second {
			t.Errorf("%s: %d calls cover %v of %v", s.name, s.calls, covered, steadyWindow)
		}
	}
	if batch%steadyKeys != 0 {
		t.Errorf("a batch of %d does not end with the last of %d keys", batch, steadyKeys)
	}
}

func TestParseOptions(t *testing.T) {
	o, err := parseOptions([]string{"-rounds", "3", "-duration", "50ms", "-only", "bucket", "-out", "x"})
	if err != nil || o.rounds != 3 || o.duration != 50*time.Millisecond || o.out != "x" || !o.only.MatchString("token bucket") {
		t.Errorf("%+v, %v", o, err)
	}
	for _, args := range [][]string{{"-rounds", "0"}, {"-only", "("}, {"-growth", "-cluster"}, {"more"}} {
		if _, err := parseOptions(args); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
}

func TestContestantsHaveNamesOfTheirOwn(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range contestants() {
		if seen[c.name] {
			t.Errorf("%s is there twice", c.name)
		}
		seen[c.name] = true
	}
	for _, name := range []string{merged, plain, reference, "token bucket, deny cache", returnOne} {
		if !seen[name] {
			t.Errorf("no contestant is called %s", name)
		}
	}
}
