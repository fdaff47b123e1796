package scripts

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/script"
)

var update = flag.Bool("update", false, "write the files of scripts/assembled")

// assembledDir holds what a reader needs of what is cut from the algorithms' files, as Redis runs it.
const assembledDir = "../../scripts/assembled"

// algorithmNames are the files of all algorithms, but of permits in flight, which differ.
func algorithmNames() []string {
	return slices.DeleteFunc(Names(), func(name string) bool { return name == "inflight" })
}

// documentedGroups are limiters that decide together in README, docs and examples.
var documentedGroups = [][]string{
	{"bucket", "bucket"}, {"bucket", "fixedwindow"}, {"fixedwindow", "fixedwindow"}, {"bucket", "slidingwindow_list"},
	{"bucket,estimate", "inflight"}, {"bucket", "bucket,estimate"}, {"bucket", "inflight"}, {"bucket", "bucket,estimate", "inflight"},
	{"bucket", "bucket", "inflight"}, {"bucket", "fixedwindow", "slidingwindow_list"},
}

// A change of a script shows in a review as what Redis runs: the script of each algorithm that decides
// operations, the one that decides many requests of a bucket, which runs most, an example of several
// limiters, and the digest of every script. Of an algorithm with two files, the second differs from the
// first in its own blocks only, so the first is enough. After a change:
//
//	go test -run TestAssembledScriptsAreCheckedIn ./internal/scripts -update
func TestAssembledScriptsAreCheckedIn(t *testing.T) {
	want := map[string]string{}
	for _, id := range algorithms.IDs() {
		a, _ := algorithms.Of(id)
		first, what := a.Files[0].Name, "_operations.lua"
		if id == algorithms.InFlight {
			what = "_holds.lua"
		}
		want[first+what] = Of(first).Get(false).Operations.Source()
	}
	want["datedwindow_tickets_operations.lua"] = WithTickets("datedwindow").Get(false).Operations.Source()
	want["bucket_many.lua"] = Of("bucket").Get(false).Many.Source()
	all := Together([]*script.File{Of("bucket").whole, Of("fixedwindow").whole}, []int{4, 2}, []bool{true, false})
	want["all_many.lua"] = all.Many.Source()
	var digests strings.Builder
	digests.WriteString("Every script of one limiter, and of the groups in README and docs, by the first digits of its digest.\n" +
		"`ratelimit scripts` prints them.\n")
	limiter := ""
	add := func(s Named, of, name string) {
		if of != limiter {
			fmt.Fprintf(&digests, "\n%s", of)
		}
		limiter = of
		fmt.Fprintf(&digests, ", %s %s", s.Digest()[:12], name)
	}
	for _, s := range Index() {
		of, name, _ := strings.Cut(s.Name, ", ")
		add(s, of, name)
	}
	for _, group := range documentedGroups {
		all, err := Group(group)
		require.NoError(t, err)
		of := strings.TrimSuffix(all[0].Name, ", one")
		for _, s := range all {
			add(s, of, strings.TrimPrefix(s.Name, of+", "))
		}
	}
	want["digests.txt"] = digests.String()
	if *update {
		require.NoError(t, os.RemoveAll(assembledDir))
		require.NoError(t, os.Mkdir(assembledDir, 0o755))
		for name, source := range want {
			require.NoError(t, os.WriteFile(filepath.Join(assembledDir, name), []byte(source), 0o644))
		}
	}
	files, err := os.ReadDir(assembledDir)
	require.NoError(t, err)
	got := map[string]string{}
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(assembledDir, f.Name()))
		require.NoError(t, err)
		got[f.Name()] = string(text)
	}
	for name := range want {
		require.Equal(t, want[name], got[name], "%s is stale: run this test with -update", name)
	}
	require.Len(t, got, len(want), "of another algorithm: run this test with -update")
}

// withIncludes returns the file of an algorithm, with the blocks of other files that it names.
func withIncludes(t *testing.T, name string) string {
	whole, err := os.ReadFile("../../scripts/" + name + ".lua")
	require.NoError(t, err)
	text := string(whole)
	for _, other := range common {
		text = script.Include(text, other)
	}
	return text
}

// The script for one request is the file itself, with what it includes.
func TestOneRequestRunsTheFile(t *testing.T) {
	for _, name := range algorithmNames() {
		require.Equal(t, withIncludes(t, name), Of(name).Get(false).One.Source(), name)
	}
}

// By the caller's clock the same runs, but for the lines that read the clock.
func TestCallersClockChangesOnlyTheClock(t *testing.T) {
	text := func(set Set) map[string]string {
		all := map[string]string{"one": set.One.Source(), "peek": set.Peek.Source(), "many": set.Many.Source()}
		return all
	}
	caller := callersClock.Blocks()
	for _, name := range algorithmNames() {
		s := Of(name)
		if name == "fixedwindow" { // by the caller's clock a fixed window is a dated one
			continue
		}
		byServer, byCaller := text(Assemble(s.byCaller)), text(s.Get(true))
		for of := range byServer {
			want := strings.Replace(byServer[of], s.whole.Blocks()["clock"], caller["clock"], 1)
			if of == "many" {
				want = strings.Replace(want, "for i = 1, #KEYS do", "-- <shift>\n"+caller["shift"]+"for i = 1, #KEYS do", 1)
			}
			require.Equal(t, want, byCaller[of], "%s of %s", of, name)
		}
	}
}

// So it is with permits in flight, which have a script of their own to extend them.
func TestCallersClockOfInFlightChangesOnlyTheClock(t *testing.T) {
	server, caller := Of("inflight").Get(false), Of("inflight").Get(true)
	require.Equal(t, withIncludes(t, "inflight"), server.One.Source())
	require.Equal(t, withIncludes(t, "inflight_extend"), server.Extend.Source())
	clock := Of("inflight").whole.Blocks()["clock"]
	for _, s := range []struct{ server, caller *script.Script }{
		{server.One, caller.One}, {server.Peek, caller.Peek}, {server.Extend, caller.Extend},
	} {
		require.Contains(t, s.server.Source(), clock)
		require.Equal(t, strings.Replace(s.server.Source(), clock, callersClock.Blocks()["clock"], 1), s.caller.Source())
	}
}

// The two ways in which a fixed window answers differ in that only.
func TestWideWindowsAnswerInWords(t *testing.T) {
	narrow, wide := Of("fixedwindow").Get(false), WideWindow.Get(false)
	require.Equal(t, narrow.Many.Source(), wide.Many.Source())
	blocks := Of("fixedwindow").whole.Blocks()
	require.Equal(t, strings.Replace(narrow.One.Source(), blocks["answer"],
		"local out, size = {}, 0\n"+blocks["words"]+"return out\n", 1), wide.One.Source())
}

func TestGroupsThatThereAreNot(t *testing.T) {
	for limiter, problem := range map[string]string{
		"bukket":       `"bukket" is no file of a limiter; those are ` + strings.Join(Names(), ", "),
		"bucket,2":     `"2" of bucket is not known; an estimate is bucket,estimate`,
		"slidinglog,x": `"x" is no number of rules that a sliding log's own script has; such as slidinglog,2. A log of one rule runs slidingwindow_list`,
		"slidinglog":   `"1" is no number of rules that a sliding log's own script has; such as slidinglog,2. A log of one rule runs slidingwindow_list`,
	} {
		_, err := Group([]string{limiter})
		require.EqualError(t, err, problem)
	}
	_, err := Group(nil)
	require.EqualError(t, err, "0 limiters do not decide together; give 1 to 8")
}
