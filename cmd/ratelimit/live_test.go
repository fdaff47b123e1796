package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/keyname"
	"github.com/tryacquire/ratelimit/internal/state"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
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
    "name": "ratelimit:login:slidingwindow-hash{user:42}",
    "prefix": "ratelimit",
    "limiter": "login",
    "algorithm": "slidingwindow-hash",
    "key": "user:42",
    "used": 2,
    "seconds_until_nothing_is_used": 3659.999999,
    "seconds_until_it_expires": 3660.899,
    "words": "2 permits are used in the window; all have left it in 1h1m. The rule that wrote it: a window of 1h, in parts of 1m30s.",
    "type": "hash",
    "elements": [
      "base=0",
      "first=0",
      "instant=1763670059999999",
      "last=1",
      "oldest=1763670059999999",
      "rule=3600000000/90000000",
      "total=2"
    ]
  }
]
`, ""}, live(t, addr, "inspect", "--json", "--name", "login", "--algorithm", "slidingwindow-hash", "user:42"))

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
		require.Equal(t, []string{"ratelimit:api:tokenbucket{user:7}", "ratelimit:default:fixedwindow:" + evil, "ratelimit:login:slidingwindow-hash{user:42}", "session:42"}, left)
	})
}

func TestTop(t *testing.T) {
	servers(t, func(t *testing.T, s *limitertest.Stage, addr string) {
		used(t, s)
		require.Equal(t, result{exitDone, "Redis at " + addr + `: 6 keys, 5 of limiters, 5 in use, 2 limited

  limiter  algorithm           key                          used  limit    share           free again in
  api      tokenbucket         user:42                        20     20  100.0 %  LIMITED             2m
  jobs     inflight            batch                           3      3  100.0 %  LIMITED             1m
  default  fixedwindow         \x1b[2J\u202eevil\n{user:7}   900  1,000   90.0 %                      1m
  api      tokenbucket         user:7                          5     20   25.0 %                    30 s
  login    slidingwindow-hash  user:42                         2      ?                             1h1m
Limits that are not known: --limit name=permits
`, ""}, live(t, addr, "top", "--limit", "api=20,jobs=3", "--limit", "default=1000"))
		require.Equal(t, result{exitDone, "Redis at " + addr + `: 6 keys, 2 of limiters, 2 in use

  limiter  algorithm    key      used  limit  share    free again in
  api      tokenbucket  user:42    20      ?                      2m
and 1 more
Limits that are not known: --limit name=permits
`, ""}, live(t, addr, "top", "--name", "api", "--rows", "1"))
		require.Equal(t, result{exitDone, `{"server":"` + addr + `","masters":1,"keys_looked_at":6,"keys_of_limiters":1,"keys_in_use":1,"keys_limited":1,"keys_damaged":0,"cut_short":false,` +
			`"rows":[{"name":"ratelimit:jobs:inflight{batch}","limiter":"jobs","algorithm":"inflight","key":"batch","used":3,"limit":3,"share":1,"limited":true,"seconds_until_nothing_is_used":60}]}` + "\n", ""},
			live(t, addr, "top", "--algorithm", "inflight", "--limit", "jobs=3", "--json"))
		require.Equal(t, result{exitDone, "Redis at " + addr + ": 6 keys, 0 of limiters, 0 in use\nNobody uses a limiter now.\n", ""}, live(t, addr, "top", "--prefix", "other"))

		require.NoError(t, s.Admin.Set(t.Context(), "ratelimit:api:leakybucket{user:42}", "full", 0).Err())
		got := live(t, addr, "top", "--keys", "6")
		require.Contains(t, got.stdout, "1 key of limiters cannot be read as a state: ratelimit inspect says why\n")
		require.NotContains(t, got.stdout, "cut short")
		got = live(t, addr, "top", "--keys", "5")
		require.Contains(t, got.stdout, "The pass was cut short after 5 keys of limiters: --keys allows more\n")
	})
}

// TestTopOnACluster: on every master.
func TestTopOnACluster(t *testing.T) {
	cluster := redistest.StartCluster(t, redistest.ACL("operator", append(lookersRules(t), "+cluster|slots", "+command")...))
	window := ratelimit.Must(ratelimit.NewFixedWindow(cluster.Client(t), 5, time.Hour))
	for i := range 30 {
		_, err := window.TryAcquireN(t.Context(), fmt.Sprintf("user:%02d", i), 1+i%5)
		require.NoError(t, err)
	}
	addr := cluster.Addrs()[0]
	got := live(t, addr, "top", "--json", "--limit", "default=5", "--rows", "7")
	require.Equal(t, exitDone, got.code, got.stderr)
	var found standing
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &found))
	require.Equal(t, []int{3, 30, 30, 30, 6}, []int{found.Masters, found.Looked, found.Read, found.Using, found.Limited})
	var keys []string
	for _, r := range found.Rows {
		keys = append(keys, fmt.Sprintf("%s %d", r.Key, r.Used))
	}
	require.Equal(t, []string{"user:04 5", "user:09 5", "user:14 5", "user:19 5", "user:24 5", "user:29 5", "user:03 4"}, keys)
	looked := liveWith(t, map[string]string{"REDIS_URL": "redis://operator:secret@" + addr}, "top", "--limit", "default=5")
	require.Contains(t, looked.stdout, "Redis at "+addr+" (3 masters): 30 keys, 30 of limiters, 30 in use, 6 limited\n")

	for i := range 5 { // in several slots
		key := fmt.Sprintf("user:%02d", i)
		require.Equal(t, exitDone, liveWith(t, map[string]string{"REDIS_URL": "redis://operator:secret@" + addr}, "inspect", key).code)
		require.Equal(t, i == 4, live(t, addr, "peek", "--algorithm", "fixed-window", "--rate", "5/h", key).code == exitNo)
		require.Equal(t, exitDone, live(t, addr, "reset", key).code)
		require.Equal(t, exitNo, live(t, addr, "inspect", key).code)
	}
	got = live(t, addr, "top", "--db", "1")
	require.Equal(t, exitFailed, got.code)
	require.Contains(t, got.stderr, "(a Cluster has database 0 only: leave --db out, and the number out of REDIS_URL)\n")
}

// TestLookingRunsOnlyWhatItSays: neither KEYS nor a script.
func TestLookingRunsOnlyWhatItSays(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	s := &limitertest.Stage{Client: client, Admin: client}
	used(t, s)
	require.NoError(t, client.ConfigResetStat(t.Context()).Err())
	require.Equal(t, exitDone, live(t, server.Addr(), "top").code)
	require.Equal(t, exitDone, live(t, server.Addr(), "inspect", "--name", "api", "user:42").code)
	var ran []string
	stats, err := client.InfoMap(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	for name := range stats["Commandstats"] {
		ran = append(ran, strings.TrimPrefix(name, "cmdstat_"))
	}
	slices.Sort(ran)
	ran = slices.DeleteFunc(ran, func(name string) bool {
		return name == "info" || name == "config|resetstat" || strings.HasPrefix(name, "client|") || name == "hello" || name == "ping"
	})
	require.Equal(t, []string{"get", "hmget", "lrange", "pttl", "scan", "time", "type", "zcount", "zrange"}, ran)
}

// TestAScanKeepsItsBounds: requests are so far apart that they take the share, and it ends at the most keys.
func TestAScanKeepsItsBounds(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	client := s.Client.(*redis.Client)
	window := ratelimit.Must(ratelimit.NewFixedWindow(client, 5, time.Hour))
	for i := range 700 {
		_, err := window.TryAcquire(t.Context(), fmt.Sprint(i))
		require.NoError(t, err)
	}
	for _, tt := range []struct {
		share    float64
		most     int
		read     int
		requests int
		cut      bool
	}{
		{0.05, 1000, 700, 1 + 3, false}, // SCAN of miniredis finds all at once
		{0.5, 700, 700, 1 + 3, false},
		{1, 300, 300, 1 + 2, true},
	} {
		clock, requests := time.Unix(0, 0), 0
		var idle time.Duration
		one := &scan{
			client: client, share: tt.share, most: tt.most, wants: (&topFlags{}).wants,
			now: func() time.Time { // each request takes 4 ms
				clock = clock.Add(4 * time.Millisecond)
				requests++
				return clock
			},
			pause: func(_ context.Context, d time.Duration) error {
				idle += d
				return nil
			},
		}
		seen := map[string]bool{}
		require.NoError(t, one.each(t.Context(), func(s state.State) { seen[s.Name] = true }, func() {}))
		requests /= 2
		busy := time.Duration(requests) * 4 * time.Millisecond
		require.Equal(t, tt.requests, requests)
		require.Len(t, seen, tt.read)
		require.Equal(t, tt.read, one.read)
		require.Equal(t, tt.cut, one.cut)
		require.Equal(t, (time.Duration(float64(busy)/tt.share) - busy).Round(time.Microsecond), idle.Round(time.Microsecond))
	}
}

// TestTopIsDrawnUntilItIsInterrupted: on the other screen of the terminal, as large as that is.
func TestTopIsDrawnUntilItIsInterrupted(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	used(t, s)
	long := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerMinute(10), 20, ratelimit.WithName("api")))
	_, err := long.TryAcquireN(t.Context(), "account:"+strings.Repeat("x", 60), 10)
	require.NoError(t, err)
	addr := s.Client.(*redis.Client).Options().Addr
	ctx, cancel := context.WithCancel(t.Context())
	var stdout, stderr bytes.Buffer
	draws := 0
	p := program{
		stdout: &stdout, stderr: &stderr,
		environ: func(string) string { return "" },
		screen:  func() (int, int) { return 84, 9 },
		pause: func(ctx context.Context, d time.Duration) error {
			if d == 3*time.Second {
				if draws++; draws == 2 {
					cancel()
				}
			}
			return ctx.Err()
		},
	}
	require.Equal(t, exitDone, p.command(ctx, []string{"top", "--addr", addr, "--every", "3s", "--limit", "api=20"}))
	require.Empty(t, stderr.String())
	drawn := strings.Split(strings.TrimSuffix(strings.TrimPrefix(stdout.String(), "\x1b[?1049h\x1b[?25l"), "\x1b[?25h\x1b[?1049l"), "\x1b[J")
	require.Len(t, drawn, 3) // two, and nothing behind the last
	require.Equal(t, drawn[0], drawn[1])
	require.Equal(t, "\x1b[H"+strings.Join([]string{
		printable("Redis at "+addr+": 7 keys, 6 of limiters, 6 in use, 1 limited", 84),
		"",
		"  limiter  algorithm    key             used  limit    share           free again in",
		"  api      tokenbucket  user:42           20     20  100.0 %  LIMITED             2m",
		"  api      tokenbucket  account:xxxxx…    10     20   50.0 %                      1m",
		"and 4 more",
		"",
		"Ctrl-C ends it.",
	}, "\x1b[K\r\n")+"\x1b[K", drawn[0])
}

// TestAnInterruptedPassIsNoAnswer: unlike a top that goes on.
func TestAnInterruptedPassIsNoAnswer(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	addr := s.Client.(*redis.Client).Options().Addr
	ctx, cancel := context.WithCancel(t.Context())
	var stdout, stderr bytes.Buffer
	p := program{
		stdout: &stdout, stderr: &stderr, environ: func(string) string { return "" },
		pause: func(ctx context.Context, _ time.Duration) error {
			cancel()
			return ctx.Err()
		},
	}
	require.Equal(t, exitInterrupted, p.command(ctx, []string{"top", "--addr", addr}))
	require.Equal(t, "ratelimit top: interrupted, nothing is left behind\n", stderr.String())
	require.Empty(t, stdout.String())
}

// TestPasswords are given by the environment or a file, and no error shows them.
func TestPasswords(t *testing.T) {
	const secret = "s3cr#t@/:"
	server := redistest.Start(t, redistest.Password(secret))
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte(secret+"\n"), 0o600))
	urlFile := filepath.Join(t.TempDir(), "url")
	require.NoError(t, os.WriteFile(urlFile, []byte("redis://:s3cr%23t%40%2F%3A@"+server.Addr()+"\n"), 0o600))
	at := "asking Redis at " + server.Addr() + ": "
	for _, tt := range []struct {
		environ map[string]string
		args    []string
		code    int
		stderr  string
	}{
		{map[string]string{"REDIS_PASSWORD": secret}, []string{"--addr", server.Addr()}, exitDone, ""},
		{nil, []string{"--addr", server.Addr(), "--password-file", file}, exitDone, ""},
		{nil, []string{"--url-file", urlFile}, exitDone, ""},
		{map[string]string{"REDIS_URL": "redis://:s3cr%23t%40%2F%3A@" + server.Addr()}, nil, exitDone, ""},
		{nil, []string{"--addr", server.Addr()}, exitFailed, at + "NOAUTH Authentication required. (it wants a password: give REDIS_PASSWORD or --password-file, and --user if it is not the default user's)"},
		{map[string]string{"REDIS_PASSWORD": "wrong"}, []string{"--addr", server.Addr()}, exitFailed, at + "WRONGPASS invalid username-password pair or user is disabled. (the password or --user is wrong: see REDIS_URL, REDIS_PASSWORD and --password-file)"},
		{map[string]string{"REDIS_URL": "redis://:" + secret + "@" + server.Addr()}, nil, exitUsage, "REDIS_URL is not like redis://user@host:6379/0: "},
		{map[string]string{"REDIS_URL": "http://:secret@" + server.Addr()}, nil, exitUsage, "REDIS_URL is not like redis://user@host:6379/0: redis: invalid URL scheme: http"},
		{nil, []string{"--addr", "redis://:secret@" + server.Addr()}, exitUsage, "--addr takes host:port; put a URL into REDIS_URL or --url-file, because every user of the machine can read arguments"},
		{nil, []string{"--password-file", filepath.Join("no", "such")}, exitFailed, "such"},
	} {
		got := liveWith(t, tt.environ, append([]string{"top"}, tt.args...)...)
		require.Equal(t, tt.code, got.code, "%q: %s", tt.args, got.stderr)
		require.Contains(t, got.stderr, tt.stderr)
		require.NotContains(t, got.stderr, "s3cr")
		require.NotContains(t, got.stderr, "secret")
	}
}

// lookersRules are the ACL rules of a user who only looks, as docs/operating.md has them.
func lookersRules(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../docs/operating.md")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(text), "\nuser operator ")
	require.True(t, ok)
	rules, _, _ := strings.Cut(rest, "\n")
	return strings.Fields(rules)
}

// TestWhoeverLooksNeedsFewPermissions: exactly those of docs/operating.md.
func TestWhoeverLooksNeedsFewPermissions(t *testing.T) {
	rules := lookersRules(t)
	server := redistest.Start(t, redistest.ACL("operator", rules...))
	client := server.Client(t)
	look := func() (codes []int) {
		for _, args := range [][]string{
			{"top"}, {"inspect", "--name", "api", "user:42"}, {"inspect", "--name", "login", "user:42"}, {"inspect", "--name", "jobs", "batch"},
			{"inspect", "--name", "list", "k"},
		} {
			got := liveWith(t, map[string]string{"REDIS_PASSWORD": "secret"}, append(args, "--addr", server.Addr(), "--user", "operator")...)
			codes = append(codes, got.code)
		}
		return codes
	}
	used(t, &limitertest.Stage{Client: client, Admin: client})
	list := ratelimit.Must(ratelimit.NewSlidingLog(client, []ratelimit.Rule{{Limit: 5, Window: time.Hour}}, ratelimit.WithName("list")))
	_, err := list.TryAcquire(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, make([]int, 5), look())
	for _, rule := range rules {
		if command, ok := strings.CutPrefix(rule, "+"); ok {
			require.NoError(t, client.Do(t.Context(), "ACL", "SETUSER", "operator", "-"+command).Err())
			require.Contains(t, look(), exitFailed, "without %s", command)
			require.NoError(t, client.Do(t.Context(), "ACL", "SETUSER", "operator", "+"+command).Err())
		}
	}
	require.Equal(t, make([]int, 5), look())
}

func TestARefusedConnectionNamesTheRemedy(t *testing.T) {
	got := liveWith(t, nil, "top", "--addr", "127.0.0.1:1")
	require.Equal(t, exitFailed, got.code)
	require.Contains(t, got.stderr, "asking Redis at 127.0.0.1:1: dial tcp 127.0.0.1:1: ")
	require.Contains(t, got.stderr, "(is it running, and does REDIS_URL or --addr name it?)\n")
}

// TestTLS: without it, the error names it.
func TestTLS(t *testing.T) {
	server := redistest.Start(t, redistest.TLS())
	got := liveWith(t, nil, "top", "--addr", server.Addr())
	require.Equal(t, exitFailed, got.code)
	require.Contains(t, got.stderr, "(does it want TLS (--tls, or rediss:// in REDIS_URL)?)\n")
	got = liveWith(t, nil, "top", "--addr", server.Addr(), "--tls")
	require.Equal(t, exitFailed, got.code)
	require.Contains(t, got.stderr, "certificate", "the server's certificate is its own")
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
		{"peek --rate x k", `--rate "x": it has no period`},
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
		{[]string{"replay", "--storage", ""}, "hash\nlist\nzset\n"},
		{[]string{"peek", "--algorithm", ""}, "token-bucket\nleaky-bucket\nfixed-window\nsliding-window\nsliding-log\n"},
		{[]string{"peek", "--storage", ""}, "hash\nlist\nzset\n"},
		{[]string{"top", "--algorithm", ""}, strings.Join(keyname.All(), "\n") + "\n"},
		{[]string{"inspect", "--algorithm", ""}, strings.Join(keyname.All(), "\n") + "\n"},
		{[]string{"reset", "--algorithm", ""}, strings.Join(keyname.All(), "\n") + "\n"},
		{[]string{"scripts", ""}, strings.Join(scriptNames, "\n") + "\n"},
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
