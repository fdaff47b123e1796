package ratelimit_test

import (
	"flag"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/state"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

const statesFile = "testdata/states.txt"

var update = flag.Bool("update", false, "write testdata/states.txt")

// TestStateFormatsAreThoseOfTheirIds compares the state of each limiter after two of three
// permits, and of a pause, with the sample in testdata, and reads that sample. If this test fails because a
// format has changed, give the algorithm a new id in internal/algorithms, and run the test with -update:
// instances of both versions then run side by side.
func TestStateFormatsAreThoseOfTheirIds(t *testing.T) {
	type sample struct{ name, key, state string }
	var got []sample
	s := limitertest.OnMiniredis(t)
	byCaller := limitertest.OnClock(s.Client, s.Admin)
	add := func(stage *limitertest.Stage, name, own, key string, l ratelimit.Limiter) ratelimit.Result {
		t.Helper()
		if stage == byCaller {
			name += " WithClock"
		}
		text, err := state.RawText(ctx, s.Admin, key)
		require.NoError(t, err)
		got = append(got, sample{name, key, text})

		// The state in the file means what this limiter has counted.
		want := must(t)(l.Peek(ctx, own))
		ttl := s.Admin.PTTL(ctx, key).Val()
		for line := range strings.Lines(readStates(t)) {
			if of, written, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": "); of == name && !*update {
				require.NoError(t, s.Admin.Del(ctx, key).Err())
				restoreState(t, s.Admin, written)
				require.NoError(t, s.Admin.PExpire(ctx, key, ttl).Err())
				require.Equal(t, want, must(t)(l.Peek(ctx, own)), name)
			}
		}
		return want
	}
	for _, v := range limitertest.Variants() {
		if strings.HasSuffix(v.Name, "in an All") || strings.HasSuffix(v.Name, "with headroom") { // the states are those of other limiters
			continue
		}
		for _, stage := range []*limitertest.Stage{s, byCaller} {
			stage.Wipe(t)
			l, err := v.Build(stage.Client, stage.Opts...)
			require.NoError(t, err)
			must(t)(l.TryAcquire(ctx, v.Of("k")))
			stage.Advance(100 * time.Millisecond)
			must(t)(l.TryAcquire(ctx, v.Of("k")))
			require.Equal(t, 1, add(stage, v.Name, v.Of("k"), v.Key, l).Remaining, v.Name)
		}
	}
	for _, stage := range []*limitertest.Stage{s, byCaller} {
		stage.Wipe(t)
		opts := slices.Clip(stage.Opts)
		paused := ratelimit.Must(ratelimit.NewPause(stage.Client, append(opts, ratelimit.WithName("paused"))...))
		must(t)(paused.Pause(ctx, "k", 10*time.Second))
		require.Equal(t, pausedFor(10*time.Second), add(stage, "Pause", "k", "ratelimit:paused:pause{k}", paused))

		probed := ratelimit.Must(ratelimit.NewPause(stage.Client, append(opts, ratelimit.WithName("probed"), ratelimit.WithProbe(2*time.Second))...))
		must(t)(probed.Pause(ctx, "k", time.Second))
		stage.Advance(time.Second)
		must(t)(probed.TryAcquire(ctx, "k"))
		require.Equal(t, 2*time.Second, add(stage, "Pause WithProbe, and one has gone first", "k", "ratelimit:probed:pause{k}", probed).RetryAfter)

		bans, banned := bansOf(stage.Client, opts...)
		must(t)(bans.TryAcquire(ctx, "k"))
		must(t)(bans.TryAcquire(ctx, "k"))
		require.Equal(t, pausedFor(lengths[0]), add(stage, "Bans, after a strike", "k", "ratelimit:banned:pause{k}", banned))
	}
	var text strings.Builder
	for _, s := range got {
		text.WriteString(s.name + ": " + s.key + " " + s.state + "\n")
	}
	if *update {
		require.NoError(t, os.WriteFile(statesFile, []byte(text.String()), 0o644))
	}
	require.Equal(t, readStates(t), text.String())
}

func readStates(t *testing.T) string {
	text, err := os.ReadFile(statesFile)
	require.NoError(t, err)
	return string(text)
}

// restoreState writes "<key> <type> <elements>".
func restoreState(t *testing.T, c redis.UniversalClient, state string) {
	words := strings.SplitN(state, " ", 3)
	key, kind, elements := words[0], words[1], words[2:]
	if kind != "string" { // which may hold spaces
		elements = strings.Fields(words[2])
	}
	for _, element := range elements {
		var err error
		name, value, _ := strings.Cut(element, "=")
		switch kind {
		case "string":
			err = c.Set(ctx, key, element, 0).Err()
		case "list":
			err = c.RPush(ctx, key, element).Err()
		case "hash":
			err = c.HSet(ctx, key, name, value).Err()
		case "zset":
			var score float64
			score, err = strconv.ParseFloat(name, 64)
			require.NoError(t, err)
			err = c.ZAdd(ctx, key, redis.Z{Score: score, Member: value}).Err()
		}
		require.NoError(t, err)
	}
}
