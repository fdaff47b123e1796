package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/keyname"
	"github.com/tryacquire/ratelimit/internal/state"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

func TestTop(t *testing.T) {
	servers(t, func(t *testing.T, s *limitertest.Stage, addr string) {
		used(t, s)
		require.Equal(t, result{exitDone, "Redis at " + addr + `: 6 keys, 5 of limiters, 5 in use, 2 limited

  limiter  algorithm           key                          used  limit    share           free again in
  api      tokenbucket         user:42                        20     20  100.0 %  LIMITED             2m
  jobs     inflight            batch                           3      3  100.0 %  LIMITED             1m
  default  fixedwindow         \x1b[2J\u202eevil\n{user:7}   900  1,000   90.0 %                      1m
  api      tokenbucket         user:7                          5     20   25.0 %                    30 s
  login    slidingwindow-list  user:42                         2      ?                             1h1m
Limits that are not known: --limit name=permits
`, ""}, live(t, addr, "top", "--limit", "api=20,jobs=3", "--limit", "default=1000"))
		require.Equal(t, result{exitDone, "Redis at " + addr + `: 6 keys, 2 of limiters, 2 in use

  limiter  algorithm    key      used  limit  share    free again in
  api      tokenbucket  user:42    20      ?                      2m
and 1 more
Limits that are not known: --limit name=permits
`, ""}, live(t, addr, "top", "--name", "api", "--rows", "1"))
		require.Equal(t, result{exitDone, "Redis at " + addr + `: 6 keys, 2 of limiters, 2 in use

  limiter  algorithm           key      used  limit  share    free again in
  api      tokenbucket         user:42    20      ?                      2m
  login    slidingwindow-list  user:42     2      ?                    1h1m
Limits that are not known: --limit name=permits
`, ""}, live(t, addr, "top", "--key", "user:42"))
		require.Equal(t, result{exitDone, `{"server":"` + addr + `","masters":1,"keys_looked_at":6,"keys_of_limiters":1,"keys_in_use":1,"keys_limited":1,"keys_damaged":0,"cut_short":false,` +
			`"rows":[{"name":"ratelimit:jobs:inflight{batch}","limiter":"jobs","algorithm":"inflight","key":"batch","used":3,"limit":3,"share":1,"limited":true,"seconds_until_nothing_is_used":60}]}` + "\n", ""},
			live(t, addr, "top", "--algorithm", "inflight", "--limit", "jobs=3", "--json"))
		require.Equal(t, result{exitDone, "Redis at " + addr + ": 6 keys, 0 of limiters, 0 in use\nNobody uses a limiter now.\n", ""}, live(t, addr, "top", "--prefix", "other"))

		require.NoError(t, s.Admin.Set(t.Context(), "ratelimit:api:leakybucket{user:42}", "full", 0).Err())
		got := live(t, addr, "top", "--keys", "6")
		require.Contains(t, got.stdout, "1 key of limiters cannot be read as a state: ratelimit inspect says why\n")
		require.NotContains(t, got.stdout, "cut short")
		got = live(t, addr, "top", "--keys", "5")
		require.Contains(t, got.stdout, ": 5 keys of limiters, of at least 7, ")
		require.Contains(t, got.stdout, "The pass was cut short after 5 keys of limiters: --keys allows more\n")
	})
}

// TestAKeyThatComesTwiceIsListedOnce: SCAN may return a key twice.
func TestAKeyThatComesTwiceIsListedOnce(t *testing.T) {
	s := &standing{limits: map[string]int{"api": 5}}
	s.most = top[row]{n: 3, compare: row.compare}
	for _, key := range []string{"a", "b", "a"} {
		parts := keyname.Parts{Prefix: "ratelimit", Name: "api", Algorithm: algorithms.TokenBucket, Key: key}
		s.add(state.State{Name: "ratelimit:api:tokenbucket{" + key + "}", Parts: parts, Exists: true, Used: 5})
	}
	require.Equal(t, []int{2, 2, 0, 2}, []int{s.Using, s.Limited, s.most.beyond, len(s.most.items)})
}

// TestTopFindsACallerWithoutReadingAllKeys: from some keys it learns which limiters there are, and asks for the caller's in
// each.
func TestTopFindsACallerWithoutReadingAllKeys(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(t)
	const others = 3000
	for _, name := range []string{"api", "login"} {
		window := ratelimit.Must(ratelimit.NewFixedWindow(client, 5, time.Hour, ratelimit.WithName(name)))
		for i := range others {
			_, err := window.TryAcquire(t.Context(), fmt.Sprint(i))
			require.NoError(t, err)
		}
		_, err := window.TryAcquireN(t.Context(), "user:42", 3)
		require.NoError(t, err)
	}
	got := live(t, server.Addr(), "top", "--json", "--keys", "500", "--key", "user:42")
	require.Equal(t, exitDone, got.code, got.stderr)
	var found standing
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &found))
	require.True(t, found.Cut)
	require.Less(t, found.Looked, others, "it has looked at most of the keys")
	var rows []string
	for _, r := range found.Rows {
		rows = append(rows, fmt.Sprintf("%s %s %d", r.Limiter, r.Key, r.Used))
	}
	require.Equal(t, []string{"api user:42 3", "login user:42 3"}, rows)
	require.Equal(t, 2, found.Read)
	shown := live(t, server.Addr(), "top", "--keys", "500", "--key", "user:42", "--name", "api").stdout
	require.Regexp(t, `: 1 key of limiters, of at least [5-9]\d\d, 1 in use\n`, shown)
	require.Contains(t, shown, "The pass was cut short: limiters none of whose keys was looked at are left out. --keys allows more\n")
	require.Contains(t, live(t, server.Addr(), "top", "--keys", "500", "--key", "user:1x").stdout, "None of them is in use now.\n")
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
		require.Contains(t, live(t, addr, "top", "--key", key).stdout, fmt.Sprintf(": %d keys, 1 of limiters, 1 in use\n", 30-i))
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

// TestALongPassShowsHowFarItIs: and takes that away.
func TestALongPassShowsHowFarItIs(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	used(t, s)
	var stdout, stderr bytes.Buffer
	p := program{stdout: &stdout, stderr: &stderr, environ: func(string) string { return "" }, pause: pause, progress: newProgress(&stderr)}
	p.progress.quiet = time.Time{}
	require.Equal(t, exitDone, p.command(t.Context(), []string{"top", "--share", "100%", "--addr", s.Client.(*redis.Client).Options().Addr}))
	require.Equal(t, "\r\x1b[Klooked at 6 keys, 5 of limiters\r\x1b[K", stderr.String())
	require.Contains(t, stdout.String(), "6 keys, 5 of limiters")
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
