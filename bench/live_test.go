package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tryacquire/ratelimit/internal/redistest"
)

// Every contestant gives its verdict to all calls and none fails, with a few
// callers on keys that they seldom share.
func TestContestantsGiveTheirVerdicts(t *testing.T) {
	b, err := newTestBed(t)
	if err != nil {
		t.Fatal(err)
	}
	keys := users(500)
	// Not go-zero, whose circuit breaker opens on a slow machine, nor throttled,
	// which gives up under contention.
	own := regexp.MustCompile("fixed|sliding|bucket|redis_rate|ulule|rueidis|EVALSHA|PING")
	entrants, err := enter(t.Context(), b, contestants(), options{only: own}, keys)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entrants {
		l := load{contestant: e.contestant, decide: e.decide, verdict: e.verdict, callers: 2, keys: keys}
		s, err := l.measure(t.Context(), b, 20*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		if s[surprises] > 0 || s[failures] > 0.05 || s[perSecond] <= 0 {
			t.Errorf("%s, %s: %+v", e.name, e.verdict, s)
		}
	}
}

// What is replayed gets the verdict that it is named after: grants write, and
// denials of this library do not.
func TestReplaysGetTheirVerdicts(t *testing.T) {
	b, err := newTestBed(t)
	if err != nil {
		t.Fatal(err)
	}
	o := options{rounds: 1, duration: 5 * time.Millisecond, only: regexp.MustCompile("bucket|fixed|redis_rate|Hash|List|100 entries")}
	c, replays, err := serverCost(t.Context(), b, contestants(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(replays) < 20 {
		t.Errorf("only %d replays", len(replays))
	}
	for _, r := range replays {
		writes := c.writes(r.name, r.verdict)
		if r.verdict == denied && writes != 0 || r.verdict == granted && writes*float64(r.decisions) < 0.99 {
			t.Errorf("%s, %s: %v writes a decision", r.name, r.verdict, writes)
		}
	}
}

// The program runs from beginning to end, on the smallest scale.
func TestCompare(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	redistest.Require(t, "redis-server")
	out := t.TempDir()
	silence(t)
	if err := run(options{rounds: 1, duration: 2 * time.Millisecond, only: regexp.MustCompile("^(token bucket|token bucket, plain|redis_rate)$"), out: out}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(out + "/results.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"### Targets", "### 256 callers, 10,000 keys, granted", "### Server cost", "### 1ms each way"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if svg, err := os.ReadFile(out + "/throughput.svg"); err != nil || !strings.Contains(string(svg), "redis_rate") {
		t.Errorf("throughput.svg: %v", err)
	}
}

func newTestBed(t *testing.T) (*bed, error) {
	h := &host{}
	t.Cleanup(h.cleanup)
	server := redistest.Start(t)
	return newBed(h, server, server.Addr())
}

// silence drops what is printed.
func silence(t *testing.T) {
	stdout := os.Stdout
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	os.Stdout = null
	t.Cleanup(func() { os.Stdout = stdout; _ = null.Close() })
}
