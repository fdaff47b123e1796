package ratelimit

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/script"
)

var update = flag.Bool("update", false, "write the files of scripts/assembled")

// assembledDir holds what a reader needs of what is cut from the algorithms' files, as Redis runs it.
const assembledDir = "scripts/assembled"

// documentedGroups are limiters that decide together in README, docs and examples.
var documentedGroups = [][]string{
	{"bucket", "bucket"}, {"bucket", "fixedwindow"}, {"fixedwindow", "fixedwindow"}, {"bucket", "slidingwindow_hash"},
	{"bucket,estimate", "inflight"}, {"bucket", "bucket,estimate"}, {"bucket", "inflight"}, {"bucket", "bucket,estimate", "inflight"},
	{"bucket", "bucket", "inflight"}, {"bucket", "fixedwindow", "slidingwindow_hash"},
}

// A change of a script shows in a review as what Redis runs: the script of each algorithm that decides
// operations, the one that decides many requests of a bucket, which runs most, an example of several
// limiters, and the digest of every script. After one:
//
//	go test -run TestAssembledScriptsAreCheckedIn -update .
func TestAssembledScriptsAreCheckedIn(t *testing.T) {
	want := map[string]string{}
	for _, s := range allScripts() {
		want[strings.TrimSuffix(s.file.Name(), ".lua")+"_operations.lua"] = s.get(false).operations.Source
	}
	want["bucket_many.lua"] = bucketScripts.get(false).many.Source
	want["inflight_holds.lua"] = inFlightScripts.get(false).operations.Source
	all := assembleAll([]*script.File{bucketFile, fixedWindowFile}, []int{4, 2}, []bool{true, false})
	want["all_many.lua"] = all.many.Source
	var digests strings.Builder
	digests.WriteString("Every script of one limiter, and of the groups in README and docs, by the first digits of its digest.\n" +
		"`ratelimit scripts` prints them.\n")
	limiter := ""
	add := func(s script.Named, of, name string) {
		if of != limiter {
			fmt.Fprintf(&digests, "\n%s", of)
		}
		limiter = of
		fmt.Fprintf(&digests, ", %s %s", s.Digest()[:12], name)
	}
	for _, s := range script.Index() {
		of, name, _ := strings.Cut(s.Name, ", ")
		add(s, of, name)
	}
	for _, group := range documentedGroups {
		scripts, err := script.Together(group)
		require.NoError(t, err)
		of := strings.TrimSuffix(scripts[0].Name, ", one")
		for _, s := range scripts {
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
	text, err := os.ReadFile(filepath.Join("scripts", name))
	require.NoError(t, err)
	return script.Include(script.Include(string(text), bucketRules), slidingCommon)
}

// The script for one request is the file itself, with what it includes.
func TestOneRequestRunsTheFile(t *testing.T) {
	for _, s := range allScripts() {
		require.Equal(t, withIncludes(t, s.file.Name()), s.get(false).one.Source, s.file.Name())
	}
}

// By the caller's clock the same runs, but for the lines that read the clock.
func TestCallersClockChangesOnlyTheClock(t *testing.T) {
	text := func(set scriptSet) map[string]string {
		all := map[string]string{"one": set.one.Source, "peek": set.peek.Source, "many": set.many.Source}
		return all
	}
	caller := callersClock.Blocks()
	for _, s := range allScripts() {
		if s == fixedWindowScripts { // by the caller's clock a fixed window is a dated one
			continue
		}
		byServer, byCaller := text(assemble(s.byCaller)), text(s.get(true))
		for name := range byServer {
			want := strings.Replace(byServer[name], s.file.Blocks()["clock"], caller["clock"], 1)
			if name == "many" {
				want = strings.Replace(want, "for i = 1, #KEYS do", "-- <shift>\n"+caller["shift"]+"for i = 1, #KEYS do", 1)
			}
			require.Equal(t, want, byCaller[name], "%s of %s", name, s.file.Name())
		}
	}
}

// So it is with permits in flight, which have a script of their own to extend them.
func TestCallersClockOfInFlightChangesOnlyTheClock(t *testing.T) {
	server, caller := inFlightScripts.get(false), inFlightScripts.get(true)
	require.Equal(t, inFlightText, server.one.Source)
	require.Equal(t, inFlightExtendText, server.extend.Source)
	clock := inFlightScripts.file.Blocks()["clock"]
	for _, s := range []struct{ server, caller *script.Script }{
		{server.one, caller.one}, {server.peek, caller.peek}, {server.extend, caller.extend},
	} {
		require.Contains(t, s.server.Source, clock)
		require.Equal(t, strings.Replace(s.server.Source, clock, callersClock.Blocks()["clock"], 1), s.caller.Source)
	}
}

// The two ways in which a fixed window answers differ in that only.
func TestWideWindowsAnswerInWords(t *testing.T) {
	narrow, wide := fixedWindowScripts.get(false), wideWindowScripts.get(false)
	require.Equal(t, narrow.many, wide.many)
	blocks := fixedWindowFile.Blocks()
	require.Equal(t, script.New(strings.Replace(narrow.one.Source, blocks["answer"],
		"local out, size = {}, 0\n"+blocks["words"]+"return out\n", 1)), wide.one)
}
