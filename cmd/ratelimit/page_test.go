package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/cmd/ratelimit/internal/report"
)

// TestDataOfAPage: two limits of 1 and 2 a minute, and requests of two clients over an hour.
func TestDataOfAPage(t *testing.T) {
	log := strings.Join([]string{
		`192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5`,
		`192.0.2.1 - - [17/May/2015:10:05:04 +0000] "GET / HTTP/1.1" 200 5`,
		`192.0.2.1 - - [17/May/2015:10:05:04 +0000] "GET / HTTP/1.1" 200 5`,
		`no request`,
		`192.0.2.2 - - [17/May/2015:11:05:03 +0000] "GET / HTTP/1.1" 200 5`,
	}, "\n")
	page := filepath.Join(t.TempDir(), "report.html")
	p := program{stdin: strings.NewReader(log), stdout: &strings.Builder{}, stderr: &strings.Builder{}, tempDir: t.TempDir(), chunkBytes: defaultChunkBytes}
	cfg, err := parseArgs([]string{"--algorithm", "fixed-window", "--rate", "1/m", "--vs", "--rate 2/m", "--html", page})
	require.NoError(t, err)
	found, err := p.replay(t.Context(), cfg)
	require.NoError(t, err)
	at := func(hour, minute, second int) time.Time {
		return time.Date(2015, 5, 17, hour, minute, second, 0, time.UTC)
	}
	d := found.data(time.Second)
	require.Equal(t, 721, len(d.Buckets)) // not Len, which would print them
	require.Equal(t, report.Bucket{Begin: at(10, 5, 0), Requests: 3, Denied: []int{2, 1}}, d.Buckets[0])
	require.Equal(t, report.Bucket{Begin: at(10, 5, 5), Denied: []int{0, 0}}, d.Buckets[1])
	require.Equal(t, report.Bucket{Begin: at(11, 5, 0), Requests: 1, Denied: []int{0, 0}}, d.Buckets[720])
	d.Buckets = nil
	require.Equal(t, report.Data{
		Title: "What the limits would have done", Sources: []string{"standard input"}, Formats: []report.Format{{Name: "common or combined", Lines: 4}},
		KeyName: "client", KeyNames: "clients", Lines: 5, Requests: 4, Skipped: 1,
		Samples: []report.Sample{{Source: "standard input", Line: 4, Reason: d.Samples[0].Reason, Text: "no request"}},
		First:   at(10, 5, 3), Last: at(11, 5, 3), Zone: time.UTC, Keys: 2, BucketWidth: 5 * time.Second,
		Limits: []report.Limit{
			{Label: "fixed-window A", Text: "at most 1 in a window of 1 minute that starts with the first request in it", Flags: "--algorithm fixed-window --rate 1/m", Allowed: 2, Denied: 2, KeysDenied: 1},
			{Label: "fixed-window B", Text: "at most 2 in a window of 1 minute that starts with the first request in it", Flags: "--algorithm fixed-window --rate 2/m", Allowed: 3, Denied: 1, KeysDenied: 1},
		},
		KeysDenied:     []report.Tally{{Key: "192.0.2.1", Requests: 3, Denied: []int{2, 1}}},
		MinutesDenied:  []report.Tally{{Minute: at(10, 5, 0), Requests: 3, Denied: []int{2, 1}}},
		MinutesBusiest: []report.Tally{{Minute: at(10, 5, 0), Requests: 3, Denied: []int{2, 1}}, {Minute: at(11, 5, 0), Requests: 1, Denied: []int{0, 0}}},
		Differ:         1, Took: time.Second,
	}, d)

	p.stdin = strings.NewReader(log)
	require.Equal(t, exitDone, p.command(t.Context(), []string{"replay", "--rate", "1/m", "--html", page, "-"}))
	html, err := os.ReadFile(page)
	require.NoError(t, err)
	require.True(t, strings.Contains(string(html), "192.0.2.1"), "not Contains, which would print the page")

	p.stdin = strings.NewReader("nothing\n")
	require.Equal(t, exitFailed, p.command(t.Context(), []string{"replay", "--html", page, "-"}))
}

// TestAReportHasAtMostSoManyParts of the time, however long a log is.
func TestAReportHasAtMostSoManyParts(t *testing.T) {
	for _, span := range []time.Duration{0, time.Second, 999 * time.Second, 1000 * time.Second, 24 * time.Hour, 30 * 365 * 24 * time.Hour} {
		r := newFindings(config{limits: make([]limit, 1)})
		r.first = time.Date(2015, 5, 17, 10, 5, 3, 7, time.UTC).UnixMicro()
		r.last = r.first + span.Microseconds()
		r.part(r.first).requests++
		r.part(r.last).requests++
		require.LessOrEqual(t, len(r.parts), report.MaxBuckets, "%v", span)
		require.NotZero(t, r.parts[0].requests)
		require.NotZero(t, r.parts[len(r.parts)-1].requests)
	}
}
