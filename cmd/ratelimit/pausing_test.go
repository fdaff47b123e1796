package main

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// TestAnOperatorPausesAndLifts what a service's pause and its Bans have.
func TestAnOperatorPausesAndLifts(t *testing.T) {
	servers(t, func(t *testing.T, s *limitertest.Stage, addr string) {
		banned := ratelimit.Must(ratelimit.NewPause(s.Client, ratelimit.WithName("banned")))
		limit := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 1, time.Minute, ratelimit.WithName("api")))
		bans := ratelimit.Must(ratelimit.NewBans(limit, banned, []time.Duration{2 * time.Minute}, time.Hour))
		require.Equal(t, result{exitDone, "user:42 is paused for 24h\nevil\\n is paused for 24h\n", ""},
			live(t, addr, "pause", "--name", "banned", "--for", "24h", "user:42", "evil\n"))
		require.Equal(t, result{exitDone, "user:42 is paused for 24h\n", ""}, live(t, addr, "pause", "--name", "banned", "--for", "1h", "user:42"))
		r, err := bans.TryAcquire(t.Context(), "user:42")
		require.NoError(t, err)
		require.Equal(t, 24*time.Hour, r.RetryAfter)
		for range 2 {
			_, err = bans.TryAcquire(t.Context(), "user:7")
			require.NoError(t, err)
		}
		inspected := live(t, addr, "inspect", "--name", "banned", "user:7")
		require.Contains(t, inspected.stdout, "  pause \"banned\", key \"user:7\"\n  It is paused for 2m. It has 1 strike.\n")

		require.Equal(t, `Redis at `+addr+`: 4 keys, 4 of limiters, 4 in use, 3 limited

  limiter  algorithm    key      used  limit  share          free again in
  banned   pause        evil\n                       PAUSED            24h
  banned   pause        user:42                      PAUSED            24h
  banned   pause        user:7                       PAUSED             2m
  api      fixedwindow  user:7      1      ?                            1m
Limits that are not known: --limit name=permits
`, live(t, addr, "top").stdout)
		var found standing
		require.NoError(t, json.Unmarshal([]byte(live(t, addr, "top", "--json").stdout), &found))
		require.True(t, found.Rows[0].Paused)

		require.Equal(t, result{exitDone, "user:7: lifted. Before: It is paused for 2m. It has 1 strike.\n", ""}, live(t, addr, "lift", "--name", "banned", "user:7"))
		require.Equal(t, result{exitNo, "user:7: it was not paused\n", ""}, live(t, addr, "lift", "--name", "banned", "user:7"))
		require.Equal(t, exitDone, live(t, addr, "lift", "ratelimit:banned:pause{user:42}").code)
		r, err = banned.Peek(t.Context(), "user:42")
		require.NoError(t, err)
		require.True(t, r.Allowed)

		require.Equal(t, exitDone, live(t, addr, "pause", "--name", "probed", "--for", "1s", "--probe", "5s", "k").code)
		s.Advance(time.Second)
		r, err = ratelimit.Must(ratelimit.NewPause(s.Client, ratelimit.WithName("probed"), ratelimit.WithProbe(5*time.Second))).Peek(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, 1, r.Limit)

		for args, says := range map[string][]string{
			"--for 0s: say how long":                   {"pause", "k"},
			"--for -1s: say how long":                  {"pause", "--for", "-1s", "k"},
			"the lease is 1µs":                         {"pause", "--for", "1s", "--probe", "1us", "k"},
			"is no key of a pause; ratelimit reset is": {"lift", "ratelimit:api:tokenbucket{k}"},
			"a key is empty":                           {"lift", ""},
		} {
			got := live(t, addr, says...)
			require.Equal(t, exitUsage, got.code)
			require.Contains(t, got.stderr, args)
		}
	})
}
