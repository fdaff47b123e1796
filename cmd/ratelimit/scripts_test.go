package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func command(args ...string) (code int, stdout, stderr string) {
	var out, problems bytes.Buffer
	code = program{stdout: &out, stderr: &problems, environ: func(string) string { return "" }, pause: pause}.command(context.Background(), args)
	return code, out.String(), problems.String()
}

// TestTheExamplesOfTheHelpWork: the digest in them is one of this version.
func TestTheExamplesOfTheHelpWork(t *testing.T) {
	_, help, _ := command("scripts", "--help")
	_, examples, found := strings.Cut(help, "Examples:\n")
	require.True(t, found, help)
	ran := 0
	for line := range strings.Lines(examples) {
		line, ok := strings.CutPrefix(line, "  ratelimit ")
		if !ok {
			break
		}
		line, _, _ = strings.Cut(line, "    ")
		code, _, problems := command(strings.Fields(line)...)
		require.Equal(t, exitDone, code, "%s: %s", line, problems)
		ran++
	}
	require.Equal(t, 4, ran, help)
}

func TestScriptsAreListedAndFound(t *testing.T) {
	code, all, problems := command("scripts")
	require.Equal(t, exitDone, code)
	require.Empty(t, problems)
	digest := ""
	for line := range strings.Lines(all) {
		of, name, _ := strings.Cut(line, "  ")
		if name == "bucket, operations\n" {
			digest = of
		}
	}
	require.Len(t, digest, 40)

	code, one, _ := command("scripts", "--find", strings.ToUpper(digest[:12]))
	require.Equal(t, exitDone, code)
	require.Equal(t, digest+"  bucket, operations\n", one)

	_, text, _ := command("scripts", "--print", "--find", digest)
	text = strings.TrimPrefix(text, digest+"  bucket, operations\n")
	want, number := "", 0
	for i, line := range strings.Split(text, "\n") {
		if strings.Contains(line, "local cost, allowed, before = n * permit, times, missing") {
			want, number = line, i+1
			break
		}
	}
	require.Positive(t, number)
	code, shown, _ := command("scripts", "--find", digest, "--line", itoa(number))
	require.Equal(t, exitDone, code)
	require.Equal(t, digest+"  bucket, operations, line "+itoa(number)+", block fit", strings.Split(shown, "\n")[0])
	require.Contains(t, shown, ">"+strings.Repeat(" ", 5-len(itoa(number)))+itoa(number)+"  "+want+"\n")
	require.Len(t, strings.Split(shown, "\n"), 1+7+1)

	code, together, _ := command("scripts", "fixedwindow", "bucket,estimate")
	require.Equal(t, exitDone, code)
	var names []string
	for line := range strings.Lines(together) {
		names = append(names, strings.TrimSpace(line[40:]))
	}
	require.Equal(t, []string{
		"bucket,estimate+fixedwindow, one", "bucket,estimate+fixedwindow, one under an id", "bucket,estimate+fixedwindow, peek", "bucket,estimate+fixedwindow, many",
		"bucket,estimate+fixedwindow, many under ids", "bucket,estimate+fixedwindow, many of several under ids",
		"bucket,estimate+fixedwindow, finish", "bucket,estimate+fixedwindow, finish of several",
		"bucket,estimate+fixedwindow, many of one key of bucket,estimate", "bucket,estimate+fixedwindow, many of one key of fixedwindow",
		"bucket,estimate+fixedwindow, many of several", "bucket,estimate+fixedwindow, many of several of one key of bucket,estimate",
		"bucket,estimate+fixedwindow, many of several of one key of fixedwindow",
	}, names)
}

// TestScriptsOfOneLimiterAreItsOwn: listed all, printed the one that runs most or the one that is named.
func TestScriptsOfOneLimiterAreItsOwn(t *testing.T) {
	names := func(args ...string) (names []string) {
		code, out, problems := command(append([]string{"scripts"}, args...)...)
		require.Equal(t, exitDone, code, problems)
		for line := range strings.Lines(out) {
			if digest, name, is := strings.Cut(line, "  "); is && len(digest) == 40 {
				names = append(names, strings.TrimSpace(name))
			}
		}
		return names
	}
	require.Equal(t, []string{
		"inflight, one", "inflight, peek", "inflight, holds", "inflight, extend",
		"inflight by the caller's clock, one", "inflight by the caller's clock, peek",
		"inflight by the caller's clock, holds", "inflight by the caller's clock, extend",
		"NewAll of inflight, one", "NewAll of inflight, one under an id", "NewAll of inflight, peek", "NewAll of inflight, many",
		"NewAll of inflight, many under ids", "NewAll of inflight, many of several under ids",
		"NewAll of inflight, finish", "NewAll of inflight, finish of several",
		"NewAll of inflight, many of one key of inflight", "NewAll of inflight, many of several",
		"NewAll of inflight, many of several of one key of inflight",
	}, names("inflight"))
	require.Equal(t, []string{"bucket, many"}, names("--print", "bucket"))
	require.Equal(t, []string{"inflight, holds"}, names("--print", "inflight"))
	require.Equal(t, []string{"bucket, operations"}, names("bucket,operations"))
	require.Equal(t, []string{"bucket, an operation alone"}, names("--print", "bucket, an operation alone"))
	require.Equal(t, "slidinglog,2, one", names("slidinglog,2")[0])

	text, err := os.ReadFile("../../scripts/assembled/bucket_many.lua")
	require.NoError(t, err)
	_, out, _ := command("scripts", "--print", "bucket")
	_, printed, _ := strings.Cut(out, "\n")
	require.Equal(t, string(text)+"\n", printed)
	digest, _, _ := strings.Cut(out, "  ")
	require.Equal(t, []string{"bucket, many"}, names("--print", "--find", digest, "bucket"))
}

func itoa(n int) string { return strings.ReplaceAll(number(n), ",", "") }

func TestMistakesOfCommands(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, "ratelimit: name a command\n"},
		{[]string{"repaly"}, "ratelimit: unknown command \"repaly\" for \"ratelimit\"\n\nDid you mean this?\n\treplay\n"},
		{[]string{"scripts", "bukket"}, `"bukket" is no file of a limiter`},
		{[]string{"scripts", "bucket,man"}, `"man" is no script of bucket; those are one, peek, many, operations`},
		{[]string{"scripts", "bucket,2"}, `"2" of bucket is not known`},
		{[]string{"scripts", "--line", "3"}, "--line is for the script of --find"},
		{[]string{"scripts", "--find", "zz"}, `no script of these has a digest that begins with "zz"`},
		{[]string{"scripts", "--find", "bucket"}, `no script of these`},
		{[]string{"scripts", "--nonsense"}, "unknown flag: --nonsense"},
		{[]string{"scripts", "-find", "zz"}, "unknown shorthand flag: 'f' in -find; flags have two dashes"},
	} {
		code, out, problems := command(test.args...)
		require.Equal(t, exitUsage, code, "%q", test.args)
		require.Empty(t, out)
		require.Contains(t, problems, test.want, "%q", test.args)
	}
	for _, args := range [][]string{{"-h"}, {"replay", "-h"}, {"scripts", "-h"}} {
		code, out, problems := command(args...)
		require.Equal(t, exitDone, code)
		require.Contains(t, out, "Usage:\n")
		require.Empty(t, problems)
	}
}
