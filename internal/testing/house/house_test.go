package house_test

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/house"
)

const root = "../../.."

// A capability that came after the redesign may add to the root package, to its documentation and to the guides; each
// line says how much. All together add at most 35 names.
var capabilities = []struct {
	name                                               string
	files, lines, names, methods, doc, guides, scripts int
}{
	{name: "limits in a file", guides: 89},
	{name: "a service for Envoy", guides: 258}, // with metadata, and what its throughput consists of
	{name: "what users of other middlewares expect of httplimit", guides: 57},
	{name: "clients of other libraries", guides: 102, doc: 1}, // with the settings of rueidis and valkey-go, and what a user of their limiters looks for
	{name: "numbers of money", guides: 16, scripts: 5},
	{name: "one limit that tenants share", files: 1, lines: 120, names: 2, methods: 2, doc: 35, guides: 96, scripts: 371},
	{name: "the state as a spec", guides: 266}, // with tickets, ids, reservations, slices, callers' clocks, what comes back to each state, and how to run the vectors
	{name: "told once", lines: 12, doc: 1, guides: 8},
	{name: "pauses and bans", files: 2, lines: 425, names: 5, methods: 6, doc: 185, guides: 143, scripts: 304},
	{name: "leases", files: 3, lines: 506, names: 4, methods: 7, doc: 95, guides: 287, scripts: 543}, // with what others hold, the time that nothing in the background exceeds, hot keys of HTTP, figures of real processes and of a simulation, slices as long as costs nothing, and logs, whose scripts search and store once more
	{name: "a hold by an id", lines: 226, methods: 3, doc: 44, guides: 29},
	{name: "permits that come back without a ticket", methods: 5, doc: 21, guides: 4},
	{name: "tickets that free themselves", files: 1, lines: 464, names: 2, methods: 5, doc: 68, guides: 88, scripts: 687}, // with what a process knows of the end of its window, when the server's clock steps back; the eras of logs; and that too many of them are no outage
	{name: "a reservation of more than the burst", doc: 1, guides: 8},
	{name: "a wait for a place", lines: 120, names: 1, doc: 22, guides: 23},
	{name: "a gateway with budgets", guides: 10},                                       // what an estimate decides, and the mistakes of gateways
	{name: "aligned rules by clocks apart", scripts: 56},                               // a state read and written by its permits alone; one rule never opens again what the other has ended, twice in what is assembled
	{name: "one execution ends a call", files: 1},                                      // finish.go, in part from all.go
	{name: "tokens at times of the clock", lines: 17, doc: 6, guides: 24, scripts: 40}, // WithAlignment of buckets: its bound beside others, and steps that count once
	{name: "the same take twice", files: 1, lines: 133, names: 2, doc: 32, guides: 24},
}

// TestTheRootPackageStaysSmall: what these numbers bound is what a newcomer has to read, and what a maintainer has to keep in
// mind. A change that passes one of them is a reason to look for a simpler one.
func TestTheRootPackageStaysSmall(t *testing.T) {
	p, err := house.Measure(root)
	require.NoError(t, err)
	t.Logf("%d files, %d lines, %d exported names, %d methods, a knot of %d files: %s",
		p.Files, p.Lines, p.Names, p.Methods, len(p.Knot), strings.ReplaceAll(strings.Join(p.Knot, " "), root+"/", ""))
	files, lines, names, methods, docLines := 40, 9_000, 128, 115, 2_000
	for _, c := range capabilities {
		files, lines, names, methods, docLines = files+c.files, lines+c.lines, names+c.names, methods+c.methods, docLines+c.doc
	}
	require.LessOrEqual(t, names, 165, "names of all capabilities")
	require.LessOrEqual(t, p.Files, files, "files")
	require.LessOrEqual(t, p.Lines, lines, "lines")
	require.LessOrEqual(t, p.Names, names, "exported names")
	require.LessOrEqual(t, p.Methods, methods, "methods")
	require.LessOrEqual(t, len(p.Knot), 27, "files of which each needs all others: %v", p.Knot)

	doc := exec.Command("go", "doc", "-all", ".")
	doc.Dir = root
	text, err := doc.Output()
	require.NoError(t, err)
	got := bytes.Count(text, []byte("\n"))
	t.Logf("go doc -all: %d lines", got)
	require.LessOrEqual(t, got, docLines, "lines of go doc -all")
}

// TestTheDocsStayShort counts the guides, and the scripts that are checked in as Redis runs them.
func TestTheDocsStayShort(t *testing.T) {
	guides, scripts := 3_360, 5_000
	for _, c := range capabilities {
		guides, scripts = guides+c.guides, scripts+c.scripts
	}
	require.LessOrEqual(t, linesBelow(t, "docs", ".md"), guides)
	require.LessOrEqual(t, linesBelow(t, "scripts/assembled", ".lua"), scripts)
}

// linesBelow counts the lines of the files below a folder with this ending.
func linesBelow(t *testing.T, folder, ending string) (lines int) {
	require.NoError(t, filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ending) {
			return err
		}
		text, err := os.ReadFile(path)
		lines += bytes.Count(text, []byte("\n"))
		return err
	}))
	t.Logf("%s: %d lines", folder, lines)
	return lines
}
