package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// goldenLog holds two clients over three minutes, and a line that is none.
func goldenLog() string {
	var b strings.Builder
	for _, at := range handLog {
		b.WriteString(logLine("192.0.2.1", at))
	}
	b.WriteString("# rotated\n")
	for range 5 {
		b.WriteString(logLine("2001:db8::7", 90))
	}
	b.WriteString(logLine("192.0.2.9", 31))
	return b.String()
}

func TestReport(t *testing.T) {
	got := runOn(t, goldenLog(), "--rate", "3/m")
	require.Equal(t, result{exitDone, `Replayed standard input: 19 requests from 3 clients
made from 2015-05-17 12:00:30 +0000 to 2015-05-17 12:03:00 +0000 (2 minutes 30 seconds)
Left out 1 line that cannot be read:
  line 14: no [time] followed by a "request": # rotated

The limit, for each client:
  token-bucket: 3 per minute, up to 3 at once

                requests  allowed  denied  share denied  clients denied
  token-bucket        19       14       5        26.3 %          2 of 3

The clients denied most:
                 requests  allowed  denied  share denied
  192.0.2.1            13       10       3        23.1 %
  2001:db8::/64         5        3       2        40.0 %

The minutes with the most denials:
                    requests  allowed  denied  share denied
  2015-05-17 12:02         9        6       3        33.3 %
  2015-05-17 12:00         5        4       1        20.0 %
  2015-05-17 12:01         4        3       1        25.0 %

The busiest minutes:
                    requests  allowed  denied  share denied
  2015-05-17 12:02         9        6       3        33.3 %
  2015-05-17 12:00         5        4       1        20.0 %
  2015-05-17 12:01         4        3       1        25.0 %
  2015-05-17 12:03         1        1       0         0.0 %
`, ""}, got)
}

func TestReportOfTwoLimits(t *testing.T) {
	got := runOn(t, goldenLog(), "--rate", "3/m", "--vs", "fixed-window --align 0", "--top", "1")
	require.Equal(t, result{exitDone, `Replayed standard input: 19 requests from 3 clients
made from 2015-05-17 12:00:30 +0000 to 2015-05-17 12:03:00 +0000 (2 minutes 30 seconds)
Left out 1 line that cannot be read:
  line 14: no [time] followed by a "request": # rotated

The limits compared, for each client:
  token-bucket: 3 per minute, up to 3 at once
  fixed-window: at most 3 in each minute of the clock (UTC)

                requests  allowed  denied  share denied  clients denied
  token-bucket        19       14       5        26.3 %          2 of 3
  fixed-window        19       14       5        26.3 %          2 of 3

Decided differently: 2 of 19 requests (10.5 %): 1 allowed by token-bucket alone, 1 allowed by fixed-window alone

The clients denied most (1 of 2; --top shows more):
             requests  denied by token-bucket   share  denied by fixed-window   share
  192.0.2.1        13                       3  23.1 %                       3  23.1 %

The minutes with the most denials (1 of 3; --top shows more):
                    requests  denied by token-bucket   share  denied by fixed-window   share
  2015-05-17 12:02         9                       3  33.3 %                       3  33.3 %

The busiest minutes (1 of 4; --top shows more):
                    requests  denied by token-bucket   share  denied by fixed-window   share
  2015-05-17 12:02         9                       3  33.3 %                       3  33.3 %
`, ""}, got)
}

func TestReportOfOneAlgorithmTwice(t *testing.T) {
	got := runOn(t, goldenLog(), "--rate", "3/m", "--vs", "--burst 3")
	require.Contains(t, got.stdout, `
  token-bucket A: 3 per minute, up to 3 at once
  token-bucket B: 3 per minute, up to 3 at once
`)
	require.Contains(t, got.stdout, "Decided differently: 0 of 19 requests (0.0 %)\n")
}

func TestReportWithoutDenials(t *testing.T) {
	got := runOn(t, logLine("192.0.2.1", 0))
	require.Equal(t, `Replayed standard input: 1 request from 1 client
made from 2015-05-17 12:00:30 +0000 to 2015-05-17 12:00:30 +0000 (within one second)

The limit, for each client:
  token-bucket: 20 per minute, up to 20 at once
  (the default; --algorithm, --rate, --burst and others choose another: see --help)

                requests  allowed  denied  share denied  clients denied
  token-bucket         1        1       0         0.0 %          0 of 1

Nobody was denied. A lower --rate shows where the limit begins to bite.

The busiest minutes:
                    requests  allowed  denied  share denied
  2015-05-17 12:00         1        1       0         0.0 %
`, got.stdout)
}

func TestReportShowsTheLogsOwnTimes(t *testing.T) {
	east := `192.0.2.1 - - [17/May/2015:10:05:03 +0530] "GET / HTTP/1.1" 200 1` + "\n"
	west := `192.0.2.1 - - [17/May/2015:10:05:03 -0700] "GET / HTTP/1.1" 200 1` + "\n"
	require.Contains(t, runOn(t, east).stdout, "from 2015-05-17 10:05:03 +0530 to 2015-05-17 10:05:03 +0530")
	mixed := "from 2015-05-17 04:35:03 +0000 to 2015-05-17 17:05:03 +0000 (12 hours 30 minutes)"
	require.Contains(t, runOn(t, east+west).stdout, mixed)
	require.Contains(t, runOn(t, west+east).stdout, mixed)
}

func TestTopKeepsTheFirst(t *testing.T) {
	top := top[int]{n: 3, compare: func(a, b int) int { return a - b }}
	for _, n := range []int{5, 1, 9, 7, 3, 3, 8} {
		top.add(n)
	}
	require.Equal(t, []int{1, 3, 3}, top.items)
	require.Equal(t, 4, top.beyond)
}

func TestPrintable(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"plain", "plain"},
		{"exactly 10", "exactly 10"},
		{"more than 10", "more than…"},
		{"ünïcödé ñ!", "ünïcödé ñ!"},
		{"\x1b[31m", `\x1b[31m`},
		{"a\tb\xffc\u202e", `a\tb\xffc…`},
		{"", ""},
	} {
		require.Equal(t, tt.want, printable(tt.in, 10))
	}
}

func TestNumbersInWords(t *testing.T) {
	require.Equal(t, []string{"0", "999", "1,000", "1,234,567"}, []string{number(0), number(999), number(1000), number(1234567)})
	require.Equal(t, []string{"0.0 %", "<0.1 %", "0.1 %", "50.0 %", ">99.9 %", "100.0 %", "0.0 %"},
		[]string{percent(0, 9), percent(1, 10_000), percent(1, 1000), percent(1, 2), percent(9999, 10_000), percent(9, 9), percent(0, 0)})
	for d, want := range map[time.Duration]string{
		0:                            "within one second",
		999 * time.Millisecond:       "within one second",
		time.Second:                  "1 second",
		time.Hour + 3*time.Second:    "1 hour",
		83*time.Hour + 5*time.Minute: "3 days 11 hours",
	} {
		require.Equal(t, want, span(d.Microseconds()))
	}
}
