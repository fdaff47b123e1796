package scripts

import (
	"context"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// TestAlignedWindowsReadStatesOfTheirOwnWindow: a state that ends as this window's does is read by its permits alone, which
// must be nothing but digits, and another state in full.
func TestAlignedWindowsReadStatesOfTheirOwnWindow(t *testing.T) {
	const (
		now     = 1_800_000_030_000_000 // half of a minute
		corrupt = "CORRUPT no state of a fixed window"
	)
	server := miniredis.RunT(t)
	server.SetTime(time.UnixMicro(now))
	c := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { c.Close() })
	for by, tail := range map[bool]string{false: "/1800000000000000/60000000", true: "/1800000000000000/60000000@1000"} {
		args := []any{"1", 5, 60_000_000, 0}
		ttl := 30_003 * time.Millisecond
		if by {
			args = append(args, 1000, int64(now))
			ttl += time.Second
		}
		for _, test := range []struct {
			state string // before the tail
			reply []any  // nil: corrupt
			after string
		}{
			{"0", []any{int64(1), int64(5), int64(30_000_000)}, "1"},
			{"4", []any{int64(1), int64(1), int64(30_000_000)}, "5"},
			{"5", []any{int64(0), int64(0), int64(30_000_000)}, "5"},
			{"03", []any{int64(1), int64(2), int64(30_000_000)}, "4"},
			{"999999999999999", []any{int64(0), int64(0), int64(30_000_000)}, "999999999999999"},
			{"1000000000000000", []any{int64(0), int64(0), int64(30_000_000)}, "1000000000000000"},
			{"9007199254740992", nil, ""},
			{"", nil, ""}, {"x", nil, ""}, {" 3", nil, ""}, {"3 ", nil, ""}, {"-1", nil, ""}, {"1e0", nil, ""}, {"0x3", nil, ""}, {"3.0", nil, ""},
			{"3/1800000000000000/60000000", nil, ""}, {"3/", nil, ""},
		} {
			server.Set("k", test.state+tail)
			server.SetTTL("k", time.Minute)
			reply, err := c.Eval(context.Background(), Of("datedwindow").Whole(by).Script().Source(), []string{"k"}, args...).Result()
			if test.reply == nil {
				require.ErrorContains(t, err, corrupt, "%q", test.state)
				continue
			}
			require.NoError(t, err, "%q", test.state)
			require.Equal(t, test.reply, reply, "%q", test.state)
			require.Equal(t, test.after+tail, get(t, server, "k"))
			if test.reply[0] == int64(1) {
				require.Equal(t, ttl, server.TTL("k"))
			}
		}
	}
}

func get(t *testing.T, server *miniredis.Miniredis, key string) string {
	text, err := server.Get(key)
	require.NoError(t, err)
	return text
}

// TestAlignedWindowsInOneExecution: the keys of an execution share the text and the TTL of this rule's window, but for
// those whose window is another one.
func TestAlignedWindowsInOneExecution(t *testing.T) {
	const now = 1_800_000_030_000_000
	server := miniredis.RunT(t)
	server.SetTime(time.UnixMicro(now))
	c := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { c.Close() })
	before := map[string]string{
		"own":     "2/1800000000000000/60000000",
		"longer":  "2/1800000000000000/3600000000",
		"over":    "5/1799999940000000/60000000",
		"changed": "2/1800000020000000/60000000", // of another alignment
		"sliced":  "2/1800000000000000/60000000~31000000",
		"rest":    "5/1799999990000000/35000000", // its window ends within this one
	}
	for key, state := range before {
		server.Set(key, state)
		server.SetTTL(key, time.Hour)
	}
	keys := []string{"new", "own", "longer", "over", "changed", "sliced", "rest", "last"}
	args := []any{"", 5, 60_000_000, 0}
	for range keys {
		args = append(args, "1")
	}
	reply, err := c.Eval(context.Background(), Of("datedwindow").Get(false).Many.Source(), keys, args...).Int64Slice()
	require.NoError(t, err)
	require.Equal(t, []int64{
		1, 5, 30_000_000,
		1, 3, 30_000_000,
		1, 3, 30_000_000,
		1, 5, 30_000_000,
		1, 3, 50_000_000,
		1, 3, 30_000_000,
		1, 5, 30_000_000,
		1, 5, 30_000_000,
	}, reply)
	type kept struct {
		state string
		ttl   time.Duration
	}
	after := map[string]kept{}
	for _, key := range keys {
		after[key] = kept{get(t, server, key), server.TTL(key)}
	}
	plain := kept{"1/1800000000000000/60000000", 30_003 * time.Millisecond}
	require.Equal(t, map[string]kept{
		"new":     plain,
		"own":     {"3/1800000000000000/60000000", plain.ttl},
		"longer":  {"3/1800000000000000/3600000000", 3_570_003 * time.Millisecond},
		"over":    plain,
		"changed": {"3/1800000020000000/60000000", 50_003 * time.Millisecond},
		"sliced":  {"3/1800000000000000/60000000~31000000", plain.ttl},
		"rest":    {"1/1800000025000000/35000000", plain.ttl},
		"last":    plain,
	}, after)
}

// TestAlignedWindowsOfWhichSlicesAreTaken say so, whatever the key before them says.
func TestAlignedWindowsOfWhichSlicesAreTaken(t *testing.T) {
	const now = 1_800_000_030_000_000
	server := miniredis.RunT(t)
	server.SetTime(time.UnixMicro(now))
	c := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { c.Close() })
	err := c.Eval(context.Background(), Of("datedwindow").Get(false).Operations.Source(), []string{"a", "b", "c"},
		"", 5, 60_000_000, 0, "1x1", "1d1/1000000/1000000/7", "1x2").Err()
	require.NoError(t, err)
	require.Equal(t, "1/1800000000000000/60000000", get(t, server, "a"))
	require.Equal(t, "1/1800000000000000/60000000~31000000", get(t, server, "b"))
	require.Equal(t, "2/1800000000000000/60000000", get(t, server, "c"))
}
