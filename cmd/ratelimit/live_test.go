package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/scripts"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// live runs a command on the Redis at an address.
func live(t *testing.T, addr string, args ...string) result {
	t.Helper()
	return liveWith(t, map[string]string{"REDIS_URL": "redis://" + addr}, args...)
}

func liveWith(t *testing.T, environ map[string]string, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	p := program{
		stdout: &stdout, stderr: &stderr,
		environ: func(name string) string { return environ[name] },
		pause:   func(ctx context.Context, _ time.Duration) error { return ctx.Err() },
	}
	code := p.command(t.Context(), args)
	return result{code, stdout.String(), stderr.String()}
}

// servers are a miniredis and a real server, whose clocks stand still.
func servers(t *testing.T, test func(t *testing.T, s *limitertest.Stage, addr string)) {
	for name, stage := range map[string]func(testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnHeldRedis} {
		t.Run(name, func(t *testing.T) {
			s := stage(t)
			test(t, s, s.Client.(*redis.Client).Options().Addr)
		})
	}
}

// evil is a key that would clear a terminal, and turn what follows around.
const evil = "\x1b[2J\u202eevil\n{user:7}"

// used takes permits of four limiters: token bucket "api" (10 a minute, burst 20), sliding window "login",
// fixed window "default" and permits in flight.
func used(t *testing.T, s *limitertest.Stage) {
	t.Helper()
	take := func(l ratelimit.Limiter, key string, n int) {
		_, err := l.TryAcquireN(t.Context(), key, n)
		require.NoError(t, err)
	}
	api := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerMinute(10), 20, ratelimit.WithName("api")))
	login := ratelimit.Must(ratelimit.NewSlidingWindow(s.Client, 5, time.Hour, ratelimit.WithName("login")))
	window := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 1000, time.Minute))
	jobs := ratelimit.Must(ratelimit.NewInFlight(s.Client, 3, time.Minute, ratelimit.WithName("jobs")))
	take(api, "user:42", 20)
	take(api, "user:7", 5)
	take(login, "user:42", 2)
	take(window, evil, 900)
	_, _, err := jobs.TryAcquireN(t.Context(), "batch", 3)
	require.NoError(t, err)
	require.NoError(t, s.Admin.Set(t.Context(), "session:42", "x", 0).Err())
}

func TestInspect(t *testing.T) {
	servers(t, func(t *testing.T, s *limitertest.Stage, addr string) {
		used(t, s)
		require.Equal(t, result{exitDone, `ratelimit:api:tokenbucket{user:42}
  token bucket "api", key "user:42"
  20 permits are missing; the bucket is full in 2m. The rule that wrote it: 1 permit comes back every 6 s.
  Redis deletes it in 2m.
  As it stands (string): 1763670000000000/120000000/6000000/1
user:1: no limiter "api" with the prefix "ratelimit" has such a key: nothing is used
`, ""}, live(t, addr, "inspect", "--name", "api", "user:42", "user:1"))
		require.Equal(t, result{exitDone, `ratelimit:default:fixedwindow:\x1b[2J\u202eevil\n{user:7}
  fixed window "default", key "\x1b[2J\u202eevil\n{user:7}"
  900 permits are used in the window, which ends in 1m. The rule that wrote it: a window of 1m.
  Redis deletes it in 1m.
  As it stands (string): 900000064
`, ""}, live(t, addr, "inspect", evil))
		require.Equal(t, result{exitNo, "ratelimit:api:tokenbucket{user:1}: there is no such key: nothing is used\n", ""},
			live(t, addr, "inspect", "ratelimit:api:tokenbucket{user:1}"))
		require.Equal(t, result{exitDone, `[
  {
    "name": "ratelimit:login:slidingwindow-list{user:42}",
    "prefix": "ratelimit",
    "limiter": "login",
    "algorithm": "slidingwindow-list",
    "key": "user:42",
    "used": 2,
    "seconds_until_nothing_is_used": 3659.999999,
    "seconds_until_it_expires": 3660.899,
    "words": "2 permits are used in the window; all have left it in 1h1m. The rule that wrote it: a window of 1h, in parts of 1m30s.",
    "type": "list",
    "elements": [
      "3600000000/90000000",
      "0",
      "1763670059999999",
      "2"
    ]
  }
]
`, ""}, live(t, addr, "inspect", "--json", "--name", "login", "--algorithm", "slidingwindow-list", "user:42"))

		require.NoError(t, s.Admin.Set(t.Context(), "ratelimit:api:leakybucket{user:42}", "\x1b[2J", 0).Err())
		got := live(t, addr, "inspect", "--name", "api", "--algorithm", "leakybucket", "user:42")
		require.Equal(t, result{exitFailed, `ratelimit:api:leakybucket{user:42}
  leaky bucket "api", key "user:42"
  It cannot be read: it holds no state of a leaky bucket.
  As it stands (string): \x1b[2J
`, "ratelimit inspect: ratelimit:api:leakybucket{user:42} cannot be read as a state\n"}, got)
	})
}

func TestPeek(t *testing.T) {
	servers(t, func(t *testing.T, s *limitertest.Stage, addr string) {
		used(t, s)
		limit := []string{"peek", "--name", "api", "--rate", "10/m", "--burst", "20"}
		require.Equal(t, result{exitDone, "user:7: 15 of 20 permits left; all are back in 30 s.\n\\x1b[1m: Nothing is used: 20 of 20 permits left.\n", ""},
			live(t, addr, append(limit, "user:7", "\x1b[1m")...))
		require.Equal(t, result{exitNo, "user:42: 0 of 20 permits left; the next call is allowed in 6 s, all are back in 2m.\n", ""}, live(t, addr, append(limit, "user:42")...))
		require.Equal(t, result{exitNo, `[
  {
    "key": "user:42",
    "allowed": false,
    "limit": 20,
    "remaining": 0,
    "retry_after_seconds": 6,
    "reset_after_seconds": 120,
    "words": "0 of 20 permits left; the next call is allowed in 6 s, all are back in 2m."
  }
]
`, ""}, live(t, addr, append(limit, "--json", "user:42")...))
		require.Equal(t, result{exitDone, "user:42: 3 of 5 permits left; all are back in 1h1m.\n", ""},
			live(t, addr, "peek", "--name", "login", "--algorithm", "sliding-window", "--rate", "5/h", "user:42"))
		require.Equal(t, result{exitUsage, "", "ratelimit peek: say the limit as the service does, for example --algorithm token-bucket --rate 10/m --burst 20\n(ratelimit peek --help explains every flag)\n"},
			live(t, addr, "peek", "user:42"))
	})
}

// TestTheGuideShowsWhatIsWritten: the examples of docs/operating.md, but for a key that would need explaining.
func TestTheGuideShowsWhatIsWritten(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	used(t, s)
	require.NoError(t, s.Admin.Del(t.Context(), "ratelimit:default:fixedwindow:"+evil).Err())
	addr := s.Client.(*redis.Client).Options().Addr
	text, err := os.ReadFile("../../docs/operating.md")
	require.NoError(t, err)
	examples := 0
	for block := range strings.SplitSeq(string(text), "```\n") {
		commandLine, want, ok := strings.Cut(block, "\n")
		args, isExample := strings.CutPrefix(commandLine, "$ ratelimit ")
		if !ok || !isExample {
			continue
		}
		examples++
		got := live(t, addr, strings.Fields(args)...).stdout
		got, _, _ = strings.Cut(got, "Limits that are not known")
		require.Equal(t, want, strings.ReplaceAll(got, addr, "localhost:6379"), args)
	}
	require.Equal(t, 3, examples)
}

// TestPeekIsOfEveryAlgorithm: it takes nothing.
func TestPeekIsOfEveryAlgorithm(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	addr := s.Client.(*redis.Client).Options().Addr
	for _, args := range [][]string{
		{"--algorithm", "leaky-bucket", "--rate", "9/m"}, {"--algorithm", "fixed-window", "--rate", "9/m", "--align", "0"}, {"--every", "20s", "--rate", "9/m"},
		{"--algorithm", "sliding-log", "--rule", "9/m,90/h", "--resolution", "1s"}, {"--algorithm", "sliding-window", "--rate", "9/m", "--storage", "zset"},
	} {
		require.Equal(t, result{exitDone, "k: Nothing is used: 9 of 9 permits left.\n", ""}, live(t, addr, append([]string{"peek", "k"}, args...)...))
	}
	require.Empty(t, s.Admin.Keys(t.Context(), "*").Val())
}

func TestReset(t *testing.T) {
	servers(t, func(t *testing.T, s *limitertest.Stage, addr string) {
		used(t, s)
		line := "ratelimit:api:tokenbucket{user:42}: token bucket of \"user:42\" had 20 used\n"
		require.Equal(t, result{exitDone, "would delete " + line, ""}, live(t, addr, "reset", "--dry-run", "--name", "api", "user:42"))
		require.Equal(t, result{exitDone, "deleted " + line, ""}, live(t, addr, "reset", "--name", "api", "user:42"))
		require.Equal(t, result{exitNo, "user:42: no limiter \"api\" with the prefix \"ratelimit\" has such a key: nothing is used\n", ""}, live(t, addr, "reset", "--name", "api", "user:42"))
		got := live(t, addr, "reset", "--json", "--name", "jobs", "batch")
		require.Equal(t, exitDone, got.code)
		var deleted []deletion
		require.NoError(t, json.Unmarshal([]byte(got.stdout), &deleted))
		require.Len(t, deleted, 1)
		require.True(t, deleted[0].Deleted)
		require.EqualValues(t, 3, deleted[0].Used)

		left := s.Admin.Keys(t.Context(), "*").Val()
		slices.Sort(left)
		require.Equal(t, []string{"ratelimit:api:tokenbucket{user:7}", "ratelimit:default:fixedwindow:" + evil, "ratelimit:login:slidingwindow-list{user:42}", "session:42"}, left)
	})
}

func TestMistakesOfLiveCommands(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"top --share 0", `--share "0": it must be more than 0% and at most 100%`},
		{"top --share 101%", `--share "101%": it must be more than 0% and at most 100%`},
		{"top --share nan", `--share "nan": it must be more than 0% and at most 100%`},
		{"top --rows 0", "--rows 0: it must be 1 or more"},
		{"top --keys 0", "--keys 0: it must be 1 or more"},
		{"top --every -1s", "--every -1s: it must not be negative"},
		{"top --limit api=0", "--limit api=0: it must be 1 or more"},
		{"top --limit api", `invalid argument "api" for "--limit" flag: api must be formatted as key=value`},
		{"top --algorithm bucket", `--algorithm "bucket": choose one of fixedwindow, calendarwindow, `},
		{"top user:42", `unknown command "user:42" for "ratelimit top"`},
		{"inspect", "requires at least 1 arg(s), only received 0"},
		{"inspect --algorithm bucket k", `--algorithm "bucket": choose one of fixedwindow, `},
		{"inspect --name a:b k", `--prefix "ratelimit", --name "a:b": no limiter has these`},
		{"reset --prefix {x} k", `--prefix "{x}", --name "default": no limiter has these`},
		{"peek --rate x k", `--rate: ratelimit: invalid configuration: the rate "x" has no period`},
		{"peek --rate 1/m --algorithm token-bucket,leaky-bucket k", "peek asks one limiter: give one --algorithm"},
		{"peek --rate 1/m --name {x} k", "WithName"},
	} {
		s := limitertest.OnMiniredis(t)
		got := live(t, s.Client.(*redis.Client).Options().Addr, strings.Fields(tt.args)...)
		require.Equal(t, exitUsage, got.code, tt.args)
		require.Contains(t, got.stderr, tt.want, tt.args)
		require.Contains(t, got.stderr, "--help explains every flag)\n")
		require.Empty(t, got.stdout)
	}
	require.Equal(t, result{exitUsage, "", "ratelimit inspect: a key is empty\n(ratelimit inspect --help explains every flag)\n"}, live(t, "127.0.0.1:1", "inspect", ""))
}

func TestCompletion(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"replay", "--algorithm", ""}, "token-bucket\nleaky-bucket\nfixed-window\nsliding-window\nsliding-log\n"},
		{[]string{"replay", "--key", ""}, "ip\nip+path\npath\nuser-agent\n"},
		{[]string{"replay", "--storage", ""}, "list\nhash\nzset\n"},
		{[]string{"peek", "--algorithm", ""}, "token-bucket\nleaky-bucket\nfixed-window\nsliding-window\nsliding-log\n"},
		{[]string{"peek", "--storage", ""}, "list\nhash\nzset\n"},
		{[]string{"top", "--algorithm", ""}, strings.Join(algorithms.IDs(), "\n") + "\n"},
		{[]string{"inspect", "--algorithm", ""}, strings.Join(algorithms.IDs(), "\n") + "\n"},
		{[]string{"reset", "--algorithm", ""}, strings.Join(algorithms.IDs(), "\n") + "\n"},
		{[]string{"scripts", ""}, strings.Join(scripts.Names(), "\n") + "\n"},
	} {
		code, out, _ := command(append([]string{"__complete"}, tt.args...)...)
		require.Equal(t, exitDone, code)
		require.True(t, strings.HasPrefix(out, tt.want+":"), "%q: %q", tt.args, out)
	}
	code, out, _ := command("completion", "bash")
	require.Equal(t, exitDone, code)
	require.Contains(t, out, "ratelimit")
}

func TestAFailedWriteIsReported(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	used(t, s)
	for _, args := range [][]string{{"top"}, {"top", "--json"}, {"inspect", "--name", "api", "user:42"}, {"inspect", "--json", "--name", "api", "user:42"}} {
		var stderr bytes.Buffer
		p := program{stdout: brokenWriter{}, stderr: &stderr, environ: func(string) string { return "" }, pause: pause}
		require.Equal(t, exitFailed, p.command(t.Context(), append(args, "--addr", s.Client.(*redis.Client).Options().Addr)))
		require.Contains(t, stderr.String(), "broken")
	}
	require.ErrorIs(t, pause(canceled(), time.Hour), context.Canceled)
	require.NoError(t, pause(t.Context(), 0))
}

func canceled() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("over"))
	return ctx
}
