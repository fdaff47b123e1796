package docstest

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// quoted are the figures of the bench that stand in sentences and in small tables: in each
// page, what is in the groups of text is what figures returns.
var quoted = []struct {
	page, text string
	figures    func(b bench) []string
}{
	{"docs/choosing.md", `fixed window, any limit \| (\S+) \|`, func(b bench) []string { return b.bytes("Memory by limit", "fixed window", "10") }},
	{"docs/choosing.md", `any rate and burst \| (\S+) \|`, func(b bench) []string { return b.bytes("Memory by limit", "token bucket", "10") }},
	{"docs/choosing.md", `Hash, 40 sub-windows in use \| (\S+) \|`, func(b bench) []string { return b.bytes("Memory by sub-windows", "Hash", "40") }},
	{"docs/choosing.md", `List, 40 sub-windows in use \| (\S+) \|`, func(b bench) []string { return b.bytes("Memory by sub-windows", "List", "40") }},
	{"docs/choosing.md", `log, 100 permits in the window \| (\S+) \|`, func(b bench) []string { return b.bytes("Memory by entries", "sliding log", "100") }},
	{"docs/choosing.md", `log, 1,000 permits in the window \| (\S+) \|`, func(b bench) []string { return b.bytes("Memory by entries", "sliding log", "1,000") }},
	{"docs/choosing.md", `ZSet, 1,000 permits in the window \| (\S+) \|`, func(b bench) []string { return b.bytes("Memory by entries", "sliding window, ZSet", "1,000") }},
	{"docs/choosing.md", `A million token buckets\stake (\S+) MB`, func(b bench) []string { return b.million("token bucket") }},
	{"docs/scaling.md", `A million token buckets in use take (\S+) MB of the server, a million fixed windows (\S+) MB, and a million sliding windows\swith the storage Hash and one sub-window in use (\S+) MB`, func(b bench) []string {
		return slices.Concat(b.million("token bucket"), b.million("fixed window"), b.million("sliding window, Hash"))
	}},
	{"docs/scaling.md", `each call on its own \| (\S+) µs \| (\S+) \|`, func(b bench) []string { return b.oneCore(manyKeys, "token bucket, plain") }},
	{"docs/scaling.md", `256 callers over 10,000 keys \| (\S+) µs \| (\S+) \|`, func(b bench) []string { return b.oneCore(manyKeys, "token bucket") }},
	{"docs/scaling.md", `256 callers on one key \| (\S+) µs \| (\S+) \|`, func(b bench) []string { return b.oneCore(hotKey, "token bucket") }},
	{"docs/cluster.md", `\[(\S+) to (\S+) calls a second\]`, func(b bench) []string {
		return []string{b.oneCore(manyKeys, "token bucket, plain")[1], b.oneCore(manyKeys, "token bucket")[1]}
	}},
	{"docs/scaling.md", `bookkeeping, (\S+) to (\S+) × on three`, bench.ofACluster},
	{"docs/performance.md", `\((\S+) × allowed, (\S+) × denied\)`, func(b bench) []string {
		return []string{
			fmt.Sprintf("%.2f", b.script("fixed window", "allowed µs")/b.script("ulule/limiter", "allowed µs")),
			fmt.Sprintf("%.2f", b.script("fixed window", "denied µs")/b.script("ulule/limiter", "denied µs")),
		}
	}},
	{"docs/performance.md", `take (\S+) × of it`, func(b bench) []string {
		return []string{fmt.Sprintf("%.2f", b.script("GET, PTTL and INCRBY alone", "allowed µs")/b.script("ulule/limiter", "allowed µs"))}
	}},
	{"docs/performance.md", `\(128 token buckets: (\S+) ms\)`, func(b bench) []string {
		return []string{fmt.Sprintf("%.1f", 128*b.script("token bucket, 128 keys merged", "allowed µs")/1000)}
	}},
}

const (
	hotKey   = "256 callers, one hot key, allowed"
	manyKeys = "256 callers, 10,000 keys, allowed"
	oneByOne = "One caller, 10,000 keys, allowed: the time of single calls"
)

// TestQuotedFiguresAreThoseOfTheBench: -update brings these figures up to date, too.
func TestQuotedFiguresAreThoseOfTheBench(t *testing.T) {
	b := bench{t}
	for _, q := range quoted {
		p := pages(t, q.page)[0]
		text := strings.Join(p.lines, "\n")
		// A line may end anywhere.
		found := regexp.MustCompile(strings.ReplaceAll(q.text, " ", `\s`)).FindAllStringSubmatchIndex(text, -1)
		require.Len(t, found, 1, "%s: %s", q.page, q.text)
		want := q.figures(b)
		for i, figure := range slices.Backward(want) { // from the right, so that the places on the left stay
			from, to := found[0][2*i+2], found[0][2*i+3]
			if !*update {
				require.Equal(t, figure, text[from:to], "%s: %q; go test ./internal/testing/docstest -run Figures -update writes it", q.page, text[found[0][0]:found[0][1]])
			}
			text = text[:from] + figure + text[to:]
		}
		if *update {
			require.NoError(t, os.WriteFile(p.path, []byte(text), 0o644))
		}
	}
}

// A bench looks into the tables in the folder bench.
type bench struct{ t *testing.T }

// cell is what the table under a heading has in that row and column.
func (b bench) cell(page, heading, row, column string) string {
	b.t.Helper()
	under, at := false, -1
	for _, line := range pages(b.t, "bench/"+page)[0].lines {
		if title, ok := strings.CutPrefix(line, "### "); ok {
			under = title == heading
		}
		if !under || !strings.HasPrefix(line, "|") {
			continue
		}
		row0 := cells(line)
		if at < 0 {
			at = slices.Index(row0, column)
		} else if row0[0] == row {
			return row0[at]
		}
	}
	b.t.Fatalf("bench/%s has no row %q and column %q under %q", page, row, column, heading)
	return ""
}

func (b bench) number(page, heading, row, column string) float64 {
	b.t.Helper()
	text, _, _ := strings.Cut(b.cell(page, heading, row, column), " ")
	n, err := strconv.ParseFloat(strings.ReplaceAll(text, ",", ""), 64)
	require.NoError(b.t, err)
	return n
}

// bytes is the memory of a key.
func (b bench) bytes(heading, row, column string) []string {
	b.t.Helper()
	return []string{strings.TrimSuffix(b.cell("growth.md", heading, row, column), ".0")}
}

// million is the memory of a million keys in MB, which is that of a key in bytes.
func (b bench) million(limiter string) []string {
	b.t.Helper()
	return b.bytes("Memory by keys", limiter, "1,000,000")
}

// script is the script time of a decision.
func (b bench) script(limiter, column string) float64 {
	b.t.Helper()
	return b.number("results.md", "Server cost of one decision", limiter, column)
}

// oneCore is the server CPU of a decision, and how many decisions a second one core makes: of
// these, the first digits, as many as leave out less than a hundredth.
func (b bench) oneCore(heading, limiter string) []string {
	b.t.Helper()
	cost := b.cell("results.md", heading, limiter, "server CPU µs")
	exact := 1e6 / b.number("results.md", heading, limiter, "server CPU µs")
	unit := math.Pow(10, math.Ceil(math.Log10(exact))-1)
	for math.Mod(exact, unit) > exact/100 {
		unit /= 10
	}
	whole := strconv.Itoa(int(exact - math.Mod(exact, unit)))
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	return []string{cost, whole}
}

// ofACluster is what a decision costs a master, the least and the most.
func (b bench) ofACluster() []string {
	b.t.Helper()
	var all []string
	for _, master := range []string{"master 1", "master 2", "master 3"} {
		text, _, _ := strings.Cut(b.cell("cluster.md", "Server cost of a decision, by node", master, "× alone"), " ")
		all = append(all, text)
	}
	return []string{slices.Min(all), slices.Max(all)}
}
