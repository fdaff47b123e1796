package state_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/state"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// TestWords: two of three permits of each variant, the second 100 ms after the first.
func TestWords(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	for name, want := range map[string]string{
		"FixedWindow":                     "2 permits are used in the window, which ends in 900 ms. The rule that wrote it: a window of 1 s.",
		"FixedWindow aligned":             "2 permits are used in the window, which ends in 650 ms. The rule that wrote it: a window of 1 s.",
		"CalendarWindow":                  "2 permits are used in the window, which ends in 900 ms. The rule that wrote it: windows of a calendar.",
		"SlidingWindow Hash":              "2 permits are used in the window; all have left it in 1 s. The rule that wrote it: a window of 1 s, in parts of 25 ms.",
		"SlidingWindow List":              "2 permits are used in the window; all have left it in 1 s. The rule that wrote it: a window of 1 s, in parts of 25 ms.",
		"SlidingWindow ZSet":              "2 permits are used in the window; all have left it in 1 s. The rule that wrote it: a window of 1 s.",
		"SlidingLog":                      "2 permits are used in the window; all have left it in 1 s. The rule that wrote it: a window of 1 s.",
		"TokenBucket":                     "2 permits are missing; the bucket is full in 566 ms. The rule that wrote it: 3 permits come back every 1 s.",
		"TokenBucket stepped":             "2 permits are missing; the bucket is full in 900 ms. The rule that wrote it: 3 permits come back every 1 s, in steps of 1 s.",
		"LeakyBucket":                     "2 permits are in the bucket, which is empty in 566 ms. The rule that wrote it: 3 permits drain every 1 s.",
		"SlidingWindow of one sub-window": "2 permits are used in the window; all have left it in 1.9 s. The rule that wrote it: a window of 1 s, in parts of 1 s.",
	} {
		for _, v := range limitertest.Variants() {
			if v.Name != name {
				continue
			}
			s.Wipe(t)
			l, err := v.Build(s.Client)
			require.NoError(t, err)
			for range 2 {
				_, err = l.TryAcquire(t.Context(), v.Of("k"))
				require.NoError(t, err)
				s.Advance(100 * time.Millisecond)
			}
			s.Advance(-100 * time.Millisecond)
			states, err := state.Read(t.Context(), s.Admin, []string{v.Key}, 1)
			require.NoError(t, err)
			require.Equal(t, want, states[0].Words(), name)

			require.NoError(t, s.Admin.Persist(t.Context(), v.Key).Err())
			if name == "FixedWindow" {
				continue // its TTL is its window
			}
			states, err = state.Read(t.Context(), s.Admin, []string{v.Key}, 1)
			require.NoError(t, err)
			require.Equal(t, want+" It does not expire until a limiter repairs that.", states[0].Words(), name)
		}
	}
}

// TestWordsOfPauses: while a key is paused, by a strike or by hand, and behind it.
func TestWordsOfPauses(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	p := ratelimit.Must(ratelimit.NewPause(s.Client, ratelimit.WithProbe(time.Minute)))
	const key = "ratelimit:default:pause{k}"
	words := func() string {
		states, err := state.Read(t.Context(), s.Admin, []string{key}, 1)
		require.NoError(t, err)
		return states[0].Words()
	}
	pause := func(p *ratelimit.Pause) {
		_, err := p.Pause(t.Context(), "k", 10*time.Second)
		require.NoError(t, err)
	}
	byCaller := limitertest.OnClock(s.Client, s.Admin)
	pause(ratelimit.Must(ratelimit.NewPause(s.Client, byCaller.Opts...)))
	require.Equal(t, "It is paused for 10 s. A caller's clock dates it.", words())

	s.Wipe(t)
	pause(p)
	require.Equal(t, "It is paused for 10 s.", words())
	require.NoError(t, s.Admin.Persist(t.Context(), key).Err())
	require.Equal(t, "It is paused for 10 s. It does not expire until a limiter repairs that.", words())
	s.Advance(10 * time.Second)
	require.Equal(t, "It is not paused any more. It does not expire until a limiter repairs that.", words())

	s.Wipe(t)
	banned := ratelimit.Must(ratelimit.NewPause(s.Client))
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerHour(1), 1))
	bans := ratelimit.Must(ratelimit.NewBans(bucket, banned, []time.Duration{time.Minute}, time.Hour))
	for range 2 {
		_, err := bans.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
	}
	require.Equal(t, "It is paused for 1m. It has 1 strike.", words())
	s.Advance(time.Minute)
	require.Equal(t, "It is not paused any more. It has 1 strike.", words())
}

// TestWordsOfPromises: two callers wait, and the first of their permits comes back in a minute.
func TestWordsOfPromises(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	b := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerMinute(1), 1))
	var all []*ratelimit.Reservation
	for range 3 {
		r, err := b.Reserve(t.Context(), "k", 1, time.Hour)
		require.NoError(t, err)
		all = append(all, r)
	}
	const key = "ratelimit:default:tokenbucket{k}"
	words := func() string {
		states, err := state.Read(t.Context(), s.Admin, []string{key}, 1)
		require.NoError(t, err)
		return states[0].Words()
	}
	want := "3 permits are missing; the bucket is full in 3m. The rule that wrote it: 1 permit comes back every 1m. " +
		"Permits are promised to callers that wait, for the next 2m."
	require.Equal(t, want, words())

	require.NoError(t, all[1].Cancel(t.Context())) // it waits until the one behind it is cancelled too
	require.Contains(t, s.Admin.Get(t.Context(), key).Val(), ";")
	require.Equal(t, want, words())
}

// TestWordsOfSlices: a process has permits of a bucket that it may spend for a while.
func TestWordsOfSlices(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	const key = "ratelimit:default:tokenbucket{k}"
	held := fmt.Sprintf("%d/430000/10000/1~250000,7,0,100", s.Now.UnixMicro()-50_000)
	require.NoError(t, s.Admin.Set(t.Context(), key, held, time.Minute).Err())
	states, err := state.Read(t.Context(), s.Admin, []string{key}, 1)
	require.NoError(t, err)
	require.Equal(t, "38 permits are missing; the bucket is full in 380 ms. The rule that wrote it: 1 permit comes back every 10 ms. "+
		"Slices of it may be spent in processes for the next 200 ms.", states[0].Words())
}

// TestSlicesOfWindows: what is left of the window and of the slices, even if only slices keep the key.
func TestSlicesOfWindows(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	now := s.Now.UnixMicro()
	for _, tt := range []struct {
		key, held              string
		expires, empty, leased time.Duration
		used                   int64
	}{
		{"fixedwindow{a}", "20000064~4000", 6 * time.Second, 6 * time.Second, 2 * time.Second, 20},
		{"fixedwindow{b}", "20000013~0", 3 * time.Second, 3 * time.Second, 3 * time.Second, 20},
		{"fixedwindow{c}", "20000013~0", time.Minute, time.Second, time.Second, 20}, // the clock stepped back
		{"fixedwindow{d}", fmt.Sprintf("20/%d/8000000~3000000", now-1_000_000), 8 * time.Second, 7 * time.Second, 2 * time.Second, 20},
		{"calendarwindow{e}", fmt.Sprintf("20/%d-%d~3000000", now-1_000_000, now+9_000_000), 9 * time.Second, 9 * time.Second, 2 * time.Second, 20},
		{"calendarwindow{f}", fmt.Sprintf("20/%d-%d", now+1_000_000, now+9_000_000), 9 * time.Second, 9 * time.Second, 0, 20},
	} {
		key := "ratelimit:default:" + tt.key
		require.NoError(t, s.Admin.Set(t.Context(), key, tt.held, tt.expires).Err())
		states, err := state.Read(t.Context(), s.Admin, []string{key}, 1)
		require.NoError(t, err)
		require.NoError(t, states[0].Err, tt.key)
		require.Equal(t, []any{tt.used, tt.empty, tt.leased}, []any{states[0].Used, states[0].Empty, states[0].Leased}, tt.key)
	}
}

// TestSlicesOfLogs: until when they may be spent, also after the clock has stepped back.
func TestSlicesOfLogs(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	start := s.Now.UnixMicro()
	s.Advance(10 * time.Millisecond)
	for _, tt := range []struct {
		rule          string
		last          int64
		empty, leased time.Duration
	}{
		{"1000000/25000~%d/77", start + 24_999, 1_014_999 * time.Microsecond, 14_999 * time.Microsecond},
		{"1000000/25000@ 60000000/9000000000000000~%d/77!", start + 24_999, 1_014_999 * time.Microsecond, 14_999 * time.Microsecond},
		{"1000000/25000~%d/77", start + 74_999, 1_024_999 * time.Microsecond, 24_999 * time.Microsecond},                // the clock stepped back
		{"1000000/25000~%d/01763670000100000", start + 74_999, 1_024_999 * time.Microsecond, 24_999 * time.Microsecond}, // for the second time
		{"1000000/25000", start + 74_999, 1_014_999 * time.Microsecond, 0},
		{"1000000/25000~1763670000100000/01763670000100000", start + 74_999, 1_014_999 * time.Microsecond, 0}, // no slices
		{"1000000/25000~1763670000100000/01763670000100000", start + 24_999, 1_014_999 * time.Microsecond, 0},
	} {
		rule, last := tt.rule, strconv.FormatInt(tt.last, 10)
		if strings.Contains(rule, "%d") {
			rule = fmt.Sprintf(rule, tt.last)
		}
		require.NoError(t, s.Admin.FlushAll(t.Context()).Err())
		keys := []string{"ratelimit:default:slidingwindow-list{a}", "ratelimit:default:slidingwindow-hash{b}"}
		require.NoError(t, s.Admin.RPush(t.Context(), keys[0], rule, "0", last, "20").Err())
		require.NoError(t, s.Admin.HSet(t.Context(), keys[1], "rule", rule, "base", "0", "oldest", last, "instant", last, "total", "20", "first", "0", "last", "1").Err())
		states, err := state.Read(t.Context(), s.Admin, keys, 1)
		require.NoError(t, err)
		for _, held := range states {
			require.NoError(t, held.Err, rule)
			require.Equal(t, []any{int64(20), tt.empty, tt.leased}, []any{held.Used, held.Empty, held.Leased}, rule)
		}
	}
}

func TestWordsOfResults(t *testing.T) {
	for _, tt := range []struct {
		r    ratelimit.Result
		want string
	}{
		{ratelimit.Result{Allowed: true, Limit: 5, Remaining: 5}, "Nothing is used: 5 of 5 permits left."},
		{ratelimit.Result{Allowed: true, Limit: 5, Remaining: 2, ResetAfter: 90 * time.Second}, "2 of 5 permits left; all are back in 1m30s."},
		{ratelimit.Result{Limit: 5, RetryAfter: 1500 * time.Millisecond, ResetAfter: time.Hour}, "0 of 5 permits left; the next call is allowed in 1.5 s, all are back in 1h."},
	} {
		require.Equal(t, tt.want, state.Result(tt.r))
	}
	for d, want := range map[time.Duration]string{
		0: "0 µs", 999 * time.Microsecond: "999 µs", time.Second: "1 s", time.Minute: "1m", 3 * time.Hour: "3h", 3*time.Hour + time.Second: "3h0m1s", 90 * time.Minute: "1h30m",
	} {
		require.Equal(t, want, state.Brief(d))
	}
}

// TestResult: also of a fair token bucket, of which one tenant cannot have all.
func TestResult(t *testing.T) {
	for want, r := range map[string]ratelimit.Result{
		"Nothing is used: 10 of 10 permits left.":                                      {Allowed: true, Limit: 10, Remaining: 10},
		"Nothing is used: 8 of 10 permits left.":                                       {Allowed: true, Limit: 10, Remaining: 8},
		"8 of 10 permits left; all are back in 2 s.":                                   {Allowed: true, Limit: 10, Remaining: 8, ResetAfter: 2 * time.Second},
		"0 of 10 permits left; the next call is allowed in 1 s, all are back in 10 s.": {Limit: 10, RetryAfter: time.Second, ResetAfter: 10 * time.Second},
	} {
		require.Equal(t, want, state.Result(r))
	}
}
