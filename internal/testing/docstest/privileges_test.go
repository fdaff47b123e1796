package docstest

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

var inCode = regexp.MustCompile("`([^`]*)`")

// TestPrivilegesAreTheTestedOnes: docs/privileges.md has the rule that the tests run under, as one
// line for ACL SETUSER and as a table by limiter.
func TestPrivilegesAreTheTestedOnes(t *testing.T) {
	commands, readsTime := map[string]string{}, map[string]bool{}
	for _, p := range limitertest.Privileges {
		commands[p.Limiter], readsTime[p.Limiter] = p.Commands, p.ReadsTime
	}
	for limiter, reads := range readsTime {
		require.Equal(t, limiter != "FixedWindow", reads, limiter)
	}
	require.Equal(t, commands["TokenBucket"], commands["LeakyBucket"])
	require.Equal(t, commands["SlidingWindow List"], commands["SlidingLog"])
	require.Equal(t, commands["TokenBucket"], commands["TokenBucket stepped"])

	rule := limitertest.LeastPrivilege() // on >secret resetchannels …
	line := "user limiter " + strings.Join(rule[:2], " ") + " ~ratelimit:* " + strings.Join(rule[2:], " ")
	rows := [][]string{
		{"every limiter", limitertest.EveryPrivilege, limitertest.ResetPrivilege},
		{"Preload", limitertest.PreloadPrivilege},
		{"the server's clock (every limiter except a FixedWindow without WithAlignment; none with WithClock)", limitertest.TimePrivilege},
		{"FixedWindow", commands["FixedWindow"], commands["FixedWindow aligned"], limitertest.TimePrivilege},
		{"CalendarWindow", commands["CalendarWindow"]},
		{"TokenBucket, LeakyBucket, FairTokenBucket", commands["TokenBucket"], strings.TrimPrefix(commands["FairTokenBucket"], commands["TokenBucket"]+" "), limitertest.RepairPrivilege},
		{"Cancel of a reservation, Wait whose context ends", limitertest.CancelPrivilege},
		{"limiters with WithTicketLease, in addition", limitertest.TicketsPrivilege},
		{"SlidingWindow, Hash", commands["SlidingWindow Hash"]},
		{"SlidingWindow List, SlidingLog", commands["SlidingWindow List"]},
		{"SlidingWindow ZSet", commands["SlidingWindow ZSet"]},
		{"InFlight", limitertest.InFlightPrivilege},
		{"Pause", commands["Pause"]},
		{"in addition on a ClusterClient", limitertest.ClusterPrivilege},
		{"in addition on a Ring", limitertest.RingPrivilege},
	}

	page := pages(t, "docs/privileges.md")[0]
	require.Contains(t, page.lines, line)
	var found [][]string // the first cell of each row, and the code in the second
	for _, l := range page.lines {
		l, ok := strings.CutPrefix(l, "| ")
		if !ok || strings.HasPrefix(l, "| commands") {
			continue
		}
		limiter, rest, _ := strings.Cut(l, " | ")
		row := []string{limiter}
		for _, span := range inCode.FindAllStringSubmatch(rest, -1) {
			row = append(row, strings.ReplaceAll(span[1], `\|`, "|"))
		}
		found = append(found, row)
	}
	require.Equal(t, rows, found)
}
