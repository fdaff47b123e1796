package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/scripts"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// Every contestant gives its verdict to all calls and none fails, with a few
// callers on keys that they seldom share.
func TestContestantsGiveTheirVerdicts(t *testing.T) {
	b, err := startTestbed(t)
	require.NoError(t, err)
	keys := users(500)
	// Not go-zero, whose circuit breaker opens on a slow machine, nor throttled,
	// which gives up under contention.
	own := regexp.MustCompile("fixed|sliding|bucket|redis_rate|ulule|rueidis|EVALSHA|PING")
	entrants, err := enter(t.Context(), b, contestants(), options{only: own}, keys)
	require.NoError(t, err)
	for _, e := range entrants {
		l := load{contestant: e.contestant, decide: e.decide, verdict: e.verdict, callers: 2, keys: keys}
		s, err := l.measure(t.Context(), b, 20*time.Millisecond)
		require.NoError(t, err)
		require.Zero(t, s[surprises], "%s, %s", e.name, e.verdict)
		require.LessOrEqual(t, s[failures], 0.05, "%s, %s", e.name, e.verdict)
		require.Positive(t, s[perSecond], "%s, %s", e.name, e.verdict)
		if ownProcessor() > 0 { // where it is known
			require.Greater(t, s[processors], s[serverCPU], "%s, %s", e.name, e.verdict)
		}
	}
}

// What is replayed gets the verdict that it is named after: allowed calls write, and
// denials of this library do not.
func TestReplaysGetTheirVerdicts(t *testing.T) {
	b, err := startTestbed(t)
	require.NoError(t, err)
	o := options{rounds: 1, duration: 5 * time.Millisecond, only: regexp.MustCompile("bucket|fixed|redis_rate|Hash|List|100 entries")}
	c, replays, err := serverCost(t.Context(), b, contestants(), o)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(replays), 20, "only %d replays", len(replays))
	for _, r := range replays {
		writes := c.writes(r.name, r.verdict)
		switch r.verdict {
		case denied:
			require.Zero(t, writes, "%s: writes a decision", r.name)
		case allowed:
			require.GreaterOrEqual(t, writes*float64(r.decisions), 0.99, "%s: writes a command", r.name)
		}
	}
}

// An execution of merged calls takes a bounded time: of 1,024 calls for differing permits
// of a log of ten rules, it decides five.
func TestTheLargestExecutionIsBounded(t *testing.T) {
	b, err := startTestbed(t)
	require.NoError(t, err)
	for series, want := range map[string]int{"sliding log, 10 rules": 5, "sliding window, List": 50} {
		all := bursts(t.Context())
		u := all[slices.IndexFunc(all, func(u burst) bool { return u.series == series && u.axis == byEntries && u.size == 1000 })]
		l, err := u.open(b, "b"+series[8:11])
		require.NoError(t, err)
		require.NoError(t, u.call(t.Context(), l), "so that the scripts are known")
		largest, err := largestExecution(t.Context(), b, func() error { return u.call(t.Context(), l) })
		require.NoError(t, err)
		runs := 0
		for _, arg := range largest {
			if text := arg.(string); regexp.MustCompile(`^(\d+x\d+,?)+$`).MatchString(text) {
				runs += strings.Count(text, "x")
			}
		}
		require.Greater(t, runs, 1, "%s: %v", series, largest)
		require.LessOrEqual(t, runs, want, series)
	}
}

// A bucket is measured by the scripts that buckets of usual rules run.
func TestBucketsRunTheScriptsOfUsualRules(t *testing.T) {
	b, err := startTestbed(t)
	require.NoError(t, err)
	all := scripts.Index()
	usual := all[slices.IndexFunc(all, func(s scripts.Named) bool { return s.Name == "bucket, one" })].Digest()
	for _, v := range []verdict{allowed, denied} {
		l, err := tokenBucket(b.client, v, ratelimit.WithPrefix(string(v)))
		require.NoError(t, err)
		call := func() error { _, err := l.TryAcquire(t.Context(), "k"); return err }
		require.NoError(t, call(), "so that the script is known")
		command, err := largestExecution(t.Context(), b, call)
		require.NoError(t, err)
		require.Equal(t, usual, command[1], v)
	}
}

// The program runs from beginning to end, on the smallest scale.
func TestCompare(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	redistest.Require(t, "redis-server")
	out := t.TempDir()
	silence(t)
	require.NoError(t, run(options{rounds: 1, duration: 2 * time.Millisecond, only: regexp.MustCompile("^(token bucket|token bucket, plain|redis_rate)$"), out: out}))
	text, err := os.ReadFile(out + "/results.md")
	require.NoError(t, err)
	for _, want := range []string{"### Targets", "### 256 callers, 10,000 keys, allowed", "### Server cost", "### 1ms each way", "### Few and many callers"} {
		require.Contains(t, string(text), want)
	}
	svg, err := os.ReadFile(out + "/throughput.svg")
	require.NoError(t, err)
	require.Contains(t, string(svg), "redis_rate")
}

func startTestbed(t *testing.T) (*testbed, error) {
	h := &host{}
	t.Cleanup(h.cleanup)
	server := redistest.Start(t)
	return newTestbed(h, server, server.Addr())
}

// silence drops what is printed.
func silence(t *testing.T) {
	stdout := os.Stdout
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	require.NoError(t, err)
	os.Stdout = null
	t.Cleanup(func() { os.Stdout = stdout; _ = null.Close() })
}
