package main

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tryacquire/ratelimit/internal/chart"
)

func TestParseTally(t *testing.T) {
	const before = "# Commandstats\r\ncmdstat_evalsha:calls=10,usec=50,usec_per_call=5.00,rejected_calls=0,failed_calls=0\r\n" +
		"# CPU\r\nused_cpu_sys:1.500000\r\nused_cpu_user:2.250000\r\nused_cpu_sys_children:9.0\r\n" +
		"# Persistence\r\nrdb_changes_since_last_save:7\r\n# Memory\r\nused_memory:1000\r\nused_memory_human:1000B\r\n"
	const after = "cmdstat_evalsha:calls=30,usec=170,usec_per_call=5.67\r\ncmdstat_eval:calls=1,usec=30,usec_per_call=30.00\r\n" +
		"cmdstat_config|get:calls=1,usec=3\r\nused_cpu_sys:2.0\r\nused_cpu_user:3.0\r\n" +
		"rdb_changes_since_last_save:27\r\nused_memory:1500\r\n"
	start, err := parseTally(before)
	require.NoError(t, err)
	require.InDelta(t, 3.75e6, start.cpu, 1, "CPU time in µs")
	end, err := parseTally(after)
	require.NoError(t, err)
	got := end.since(start)
	require.Equal(t, commandStat{20, 120}, got.commands["evalsha"])
	require.Equal(t, 150.0, got.scripts())
	require.EqualValues(t, 20, got.changes)
	require.EqualValues(t, 500, got.memory)
	require.InDelta(t, 1.25e6, got.cpu, 1)
}

func TestParseTallyReturnsAnErrorForNonsense(t *testing.T) {
	_, err := parseTally("cmdstat_get:calls=x\r\n")
	require.Error(t, err)
}

func TestProduct(t *testing.T) {
	for info, want := range map[string]string{
		"# Server\r\nredis_version:8.0.2\r\nos:Linux\r\n":                                   "Redis 8.0.2",
		"# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\n": "Valkey 9.1.2",
		"": "Redis ?",
	} {
		require.Equal(t, want, product(info))
	}
}

func TestThrottledCostCountsInnerGetsOnce(t *testing.T) {
	cost := throttledCost(tally{commands: map[string]commandStat{
		"eval": {100, 500}, "time": {100, 50}, "get": {200, 60},
	}})
	require.Equal(t, 500.0+50+30, cost)
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
		require.NoError(t, err, c.line)
		require.Equal(t, c.sent, sent, c.line)
		require.Equal(t, c.args, args, c.line)
	}
	_, _, err := parseMonitor("+OK\r\n")
	require.Error(t, err)
}

func TestRecordingIsRepeatedForOtherUsers(t *testing.T) {
	r := newRecording([]string{"evalsha", "sha", "2", "p:user:0000000", "p:user:0000001", "1x60"})
	require.NoError(t, r.setCalls(64))
	want := []any{"evalsha", "sha", "2", "p:user:0000009", "p:user:0000000", "1x64"}
	require.Equal(t, want, r.command(9, 10))
	require.Error(t, newRecording([]string{"evalsha", "sha", "1", "user:0000000", "1"}).setCalls(64), "an execution of one call passes for a merged one")
}

func TestResultsAreMediansAndTheirRatios(t *testing.T) {
	r, c := results{}, cell{1, hotKey, allowed}
	for _, v := range []float64{30, 10, 20} {
		r.add("a", c, sample{perSecond: v})
		r.add("b", c, sample{perSecond: 2 * v})
	}
	require.Equal(t, 20.0, r.median("a", c)[perSecond])
	require.Equal(t, 0.5, r.ratio(perSecond, c, "a", "b"))
	require.True(t, math.IsNaN(r.ratio(perSecond, c, "a", "absent")), "ratio to what was not measured")
}

func TestTableMarkdown(t *testing.T) {
	tab := table{title: "T", note: "n", header: []string{"", "µs"}}
	tab.add("a", "1,000")
	want := "### T\n\nn\n\n|     |    µs |\n|-----|------:|\n| a   | 1,000 |\n"
	require.Equal(t, want, tab.markdown())
}

func TestNumbers(t *testing.T) {
	for got, want := range map[string]string{
		number(math.NaN()): unknown, number(1234567): "1,234,567", number(0.126): "0.13", number(12.34): "12.3",
		number(999.4): "999", thousands(-1234): "-1,234", thousands(12): "12", latency(540): "540 ns",
		latency(2_500): "2.50 µs", latency(3.2e6): "3.20 ms", times(2): "2.00 ×", times(math.Inf(1)): unknown,
		percent(0.125): "12.5 %", bare(2): "2", bare(1.05): "1.05", fileName("Server time, 10,000 keys"): "server-time-10-000-keys.svg",
	} {
		require.Equal(t, want, got)
	}
}

func TestTargetsOfNothingAreUnknown(t *testing.T) {
	tab := targetTable(findings{results: results{}, costs: costs{}, distance: &distance{}})
	require.GreaterOrEqual(t, len(tab.rows), 20, "only %d targets", len(tab.rows))
	for _, row := range tab.rows {
		require.Equal(t, unknown, row[3], "%s: %s", row[0], row[3])
	}
}

func TestTargetsAreReachedOrMissed(t *testing.T) {
	c := costs{
		{"token bucket", allowed}: {{micros: 8}}, {reference, allowed}: {{micros: 10}},
		{"token bucket", denied}: {{micros: 9, writes: 1}}, {reference, denied}: {{micros: 10}},
	}
	text := targetTable(findings{results: results{}, costs: c, distance: &distance{}}).markdown()
	for what, want := range map[string]string{
		"token bucket allowed": "reached", "token bucket denied": "missed", "writes of any denial": "missed",
	} {
		for line := range strings.Lines(text) {
			if strings.Contains(line, what) {
				require.Contains(t, line, want)
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
	require.Equal(t, want, append([][]string{got.header}, got.rows...))
}

func TestSteadyStepsFillAWindow(t *testing.T) {
	for _, s := range []steady{slidingWindowOf(0, 10), slidingLogOf(100_000, 1), slidingLogOf(1<<10, 8), zsetWindowOf(300)} {
		covered := time.Duration(s.step()*s.calls) * time.Microsecond
		require.GreaterOrEqual(t, covered, steadyWindow, "what %d calls of %s cover", s.calls, s.name)
		require.LessOrEqual(t, covered, steadyWindow+time.Second, "what %d calls of %s cover", s.calls, s.name)
	}
	require.Zero(t, batch%steadyKeys, "a batch of %d does not end with the last of %d keys", batch, steadyKeys)
}

func TestGridHasTheWorstCellFirst(t *testing.T) {
	six := func(v float64) []float64 { return []float64{v, v, v, v, v, v - 0.01} }
	good := &gridCell{0, hotKey, 2, six(9000), six(1.2), six(1.1), six(0.9), six(1)}
	bad := &gridCell{2 * time.Millisecond, manyKeys, 1, six(200), six(0.5), six(1), six(2), six(1.16)}
	unsure := &gridCell{0, manyKeys, 3, six(200), []float64{0.8, 0.8, 0.8, 0.8, 0.8, 0.97}, six(1), six(1), six(1)}
	require.Empty(t, good.missed())
	require.Equal(t, "× plain, p50", bad.missed())
	require.Empty(t, unsure.missed(), "its interval reaches what is to be reached")
	rows := gridTable([]*gridCell{good, unsure, bad}).rows
	require.Equal(t, []string{"2ms each way, one caller, 10,000 keys", "200", "0.50 (0.49–0.50)", "1.00 (0.99–1.00)", "2.00 (1.99–2.00)", "1.16 (1.15–1.16)", "× plain, p50"}, rows[0])
	require.Equal(t, "loopback, 3 callers, 10,000 keys", rows[1][0])
	require.Equal(t, "loopback, 2 callers, one hot key", rows[2][0])
}

func TestReplaceSection(t *testing.T) {
	for former, want := range map[string]string{
		"":                                  "## B\n\nnew\n",
		"# A\n":                             "# A\n\n## B\n\nnew\n",
		"# A\n\n## B\n\nold\n":              "# A\n\n## B\n\nnew\n",
		"# A\n\n## B\n\nold\n\n## C\n\nc\n": "# A\n\n## B\n\nnew\n\n## C\n\nc\n",
	} {
		require.Equal(t, want, replaceSection(former, "## B", "## B\n\nnew\n\n"))
	}
}

func TestSectionOf(t *testing.T) {
	require.Equal(t, "## B\n\nb", sectionOf("# A\n\n## B\n\nb\n\n## C\n\nc\n", "## B"))
	require.Equal(t, "## C\n\nc", sectionOf("# A\n\n## B\n\nb\n\n## C\n\nc\n", "## C"))
	require.Empty(t, sectionOf("# A\n", "## B"))
}

func TestParseOptions(t *testing.T) {
	o, err := parseOptions([]string{"-rounds", "3", "-duration", "50ms", "-only", "bucket", "-out", "x"})
	require.NoError(t, err)
	require.Equal(t, 3, o.rounds)
	require.Equal(t, 50*time.Millisecond, o.duration)
	require.Equal(t, "x", o.out)
	require.True(t, o.only.MatchString("token bucket"))
	for _, args := range [][]string{{"-rounds", "0"}, {"-only", "("}, {"-growth", "-cluster"}, {"-grid", "-growth"}, {"more"}} {
		_, err := parseOptions(args)
		require.Error(t, err, "%v is accepted", args)
	}
}

func TestContestantsHaveUniqueNames(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range contestants() {
		require.False(t, seen[c.name], "%s is there twice", c.name)
		seen[c.name] = true
	}
	for _, name := range []string{merged, plain, reference, "token bucket, deny cache", returnOne} {
		require.True(t, seen[name], "no contestant is called %s", name)
	}
}

// TestCostTable: a row for each cell, a column for each contestant, and the median of its rounds.
func TestCostTable(t *testing.T) {
	costs := byRound{}
	for i, c := range onClients() {
		for _, round := range []float64{3, 1, 2} {
			costs.add(cell{64, 1000, allowed}, c.name, float64(10*i)+round)
		}
	}
	tab := costTable("T", costs)
	require.Equal(t, []string{"", "on go-redis", "on rueidis", "rueidislimiter", "rueidis by hand", "on valkey-go", "valkeylimiter", "valkey-go by hand"}, tab.header)
	require.Len(t, tab.rows, len(clientCallers)*len(clientKeys))
	require.Equal(t, []string{"64 callers, 1,000 keys, allowed", "2.00", "12.0", "22.0", "32.0", "42.0", "52.0", "62.0"}, tab.rows[6])
	require.Equal(t, []string{"one caller, one hot key, allowed", unknown, unknown, unknown, unknown, unknown, unknown, unknown}, tab.rows[0])
}
