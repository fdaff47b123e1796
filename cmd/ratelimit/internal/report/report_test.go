package report

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func written(t *testing.T, d Data) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, Write(&out, d))
	return out.String()
}

// TestPageLoadsNothing: all that it needs is in it, and its policy forbids the rest.
func TestPageLoadsNothing(t *testing.T) {
	html := written(t, sample(100_000, 1000, 3))
	require.NotRegexp(t, `(src|href)="?(https?:)?//`, html)
	require.NotRegexp(t, `@import|url\(`, html)
	require.Regexp(t, `default-src &#39;none&#39;|default-src 'none'`, html)
	require.Contains(t, html, "Copyright (c) 2022 Leon Sorokin", "the license of uPlot, which is in the page")
	require.Less(t, len(html), 250_000, "it is for mails and tickets too")
}

// TestNamesAreText: what stands in a log is neither an element nor a part of a script.
func TestNamesAreText(t *testing.T) {
	plain := written(t, sample(1000, 24, 7))
	html := written(t, withHostileNames(sample(1000, 24, 7)))
	elements := regexp.MustCompile(`<(script|img|b|iframe|svg|meta|style)[\s>]`)
	require.Equal(t, counted(elements.FindAllString(plain, -1)), counted(elements.FindAllString(html, -1)))
	require.NotContains(t, html, "\x00")
	require.NotContains(t, html, "\u202e")
	require.NotContains(t, html, "\xff")
	require.Contains(t, html, `\x00\x1b[31m\xff\u202egpj.exe\u2066 line\nbreak`)
}

func counted(all []string) map[string]int {
	n := map[string]int{}
	for _, one := range all {
		n[one]++
	}
	return n
}

func TestPageHasTheFigures(t *testing.T) {
	d := sample(100_000, 288, 1)
	d.KeysDenied[1].Key = "-"
	d.Truncated = []Truncated{{"access.log.1.gz", 1234}}
	html := written(t, d)
	cells := regexp.MustCompile(`<[^>]*>`).ReplaceAllString(html[strings.Index(html, "<main>"):strings.Index(html, "<footer")], " ")
	text := strings.Join(strings.Fields(cells), " ")
	require.Contains(t, text, "requests 100,000 ")
	require.Contains(t, text, "denied "+number(d.Limits[0].Denied)+" "+percent(d.Limits[0].Denied, 100_000))
	require.Contains(t, text, "lines not parsed 12 of 100,012")
	require.Contains(t, text, "203.0.113.0 2,000 1,500 75.00 %")
	require.Contains(t, text, "none in the log 1,930 1,440 74.61 %")
	require.Contains(t, text, "321 more were denied.")
	require.Contains(t, text, "2026-03-02 00:37 880 675", "minutes are in the log's time zone")
	require.Contains(t, text, "100,012 lines were read: 99,993 as combined, 7 as vhost combined. 12 could not be parsed and are in no figure above. The first of them:")
	require.Contains(t, text, "access.log , line 17: it has no time in brackets GET / HTTP/1.1")
	require.Contains(t, text, "access.log.1.gz ends in the middle: what its gzip held behind line 1,234 is missing.")
	require.Contains(t, html, "from 2026-03-02 00:00 to 2026-03-02 23:59:59 <span class=\"minute\">(UTC-05:00)</span>")
}

// TestBarsAreShares of all requests, also in a sweep.
func TestBarsAreShares(t *testing.T) {
	d := sample(100_000, 24, 3)
	d.Sweep = true
	html := written(t, d)
	for _, l := range d.Limits {
		require.Contains(t, html, fmt.Sprintf(`<div style="width: %.2f%%"></div>`, float64(l.Denied)/1000))
	}
}

func TestPageWithoutRequests(t *testing.T) {
	html := written(t, Data{
		Title: "Replay of an empty log", Sources: []string{"standard input"}, KeyName: "client IP", KeyNames: "client IPs",
		Limits: []Limit{{Label: "token-bucket", Text: "10 per minute, up to 20 at once", Flags: "--rate 10/m"}},
	})
	require.Contains(t, html, "No requests in")
	require.NotContains(t, html, `id="charts"`)
	require.NotContains(t, html, "NaN")
}

func TestCountsOfOtherLimitsAreRefused(t *testing.T) {
	d := sample(1000, 24, 2)
	d.Buckets[3].Denied = []int{1}
	var out bytes.Buffer
	require.EqualError(t, Write(&out, d), "report: a bucket has denials of 1 limits, and there are 2")
	d = sample(1000, 24, 2)
	d.KeysDenied[0].Denied = nil
	require.EqualError(t, Write(&out, d), "report: a tally has denials of 0 limits, and there are 2")
	require.Zero(t, out.Len(), "half a page")
}

var errFull = errors.New("no space left on device")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestErrorOfTheWriterIsReturned(t *testing.T) {
	require.ErrorIs(t, Write(full{}, sample(1000, 24, 1)), errFull)
}

func TestWords(t *testing.T) {
	require.Equal(t, "1,234,567", number(1_234_567))
	require.Equal(t, "999", number(999))
	require.Equal(t, "0", number(0))
	require.Equal(t, []string{"0 %", "< 0.01 %", "4.97 %", "> 99.99 %", "100 %", "0 %"},
		[]string{percent(0, 9), percent(1, 1_000_000), percent(497, 10_000), percent(999_999, 1_000_000), percent(7, 7), percent(0, 0)})
	require.Equal(t, []string{"one second", "5 seconds", "one minute", "15 minutes", "one hour", "one day", "2 days"},
		[]string{inWords(time.Second), inWords(5 * time.Second), inWords(time.Minute), inWords(15 * time.Minute), inWords(time.Hour), inWords(24 * time.Hour), inWords(48 * time.Hour)})
	require.Equal(t, "Grüße, 世界 😀 /path?a=b", shown("Grüße, 世界 😀 /path?a=b"))
	require.Equal(t, `\t\x7f\xe4\u00ad`+"�", shown("\t\x7f\xe4\u00ad�"))
}
