package merge

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/redisclient"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/script"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// counting returns an executor whose scripts count the requests for a key and allow
// them all. The words are the number of requests, and of those before.
func counting(client redisclient.Client) *redisexec.Executor {
	return &redisexec.Executor{
		Client: client, Words: 2, Pooled: true,
		One:  script.New("return {1, redis.call('INCR', KEYS[1]) - 1}"),
		Peek: script.New("return {1, 0}"),
		Many: script.New(`
			local calls = tonumber(string.match(ARGV[2], 'x(%d+)') or 1)
			return {calls, redis.call('INCRBY', KEYS[1], calls) - calls}`),
	}
}

// sendBatch sends one call for each of the keys in one batch, and returns the slots,
// which then have their outcomes.
func sendBatch(t *testing.T, m *Merger, keys ...string) []slot {
	t.Helper()
	b, last := newBatch(), map[lastKey]int{}
	var slots []slot
	for _, key := range keys {
		s, ok := b.add(ctx, m.limit, key, take(1), noDeadline, last)
		require.True(t, ok)
		slots = append(slots, s)
	}
	m.sender.send(b)
	<-b.done
	return slots
}

// TestUnknownScriptsGoToEachServerOnce: a batch for several servers that know no script
// sends each script to each of them once, and takes the permits of each call once.
func TestUnknownScriptsGoToEachServerOnce(t *testing.T) {
	cluster := redistest.StartCluster(t)
	m := New(counting(cluster.Client(t)), behindP)
	var keys []string
	for i := range 60 {
		for range 1 + i%2 { // one call for half of the keys, two for the others
			keys = append(keys, fmt.Sprint("k", i))
		}
	}
	for i, s := range sendBatch(t, m, keys...) {
		reply, err := s.outcome()
		require.NoError(t, err)
		calls, index := int64(1), int64(0)
		if i > 0 && keys[i-1] == keys[i] {
			calls, index = 2, 1
		} else if i+1 < len(keys) && keys[i+1] == keys[i] {
			calls = 2
		}
		require.Equal(t, redisexec.Reply{Words: []int64{calls, 0}, Index: index}, reply, "call %d for %s", i, keys[i])
	}
	for _, master := range cluster.Masters() {
		stats := master.Client(t).Info(ctx, "commandstats").Val()
		require.Contains(t, stats, "cmdstat_eval:calls=2,", "%s: %s", master.Addr(), stats)
	}
}

func ringOn(t *testing.T, server *miniredis.Miniredis) *redis.Ring {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": server.Addr()}})
	t.Cleanup(func() { _ = ring.Close() })
	return ring
}

// TestAPipelineThatWasNotSentIsAnError: go-redis leaves its commands without an error
// then, and no error could be a reply.
func TestAPipelineThatWasNotSentIsAnError(t *testing.T) {
	refused := errors.New("the circuit breaker is open")
	for _, hooked := range []error{refused, nil} {
		for _, packed := range []bool{true, false} {
			server := miniredis.RunT(t)
			ring := ringOn(t, server)
			ring.AddHook(fakes.Hook{Pipeline: func(context.Context, []redis.Cmder, redis.ProcessPipelineHook) error { return hooked }})
			exec := counting(ring)
			if packed {
				exec.Unpack = func(int64, []int64) {}
			}
			for _, s := range sendBatch(t, New(exec, asGiven), "a", "b", "b", "c", "d") {
				_, err := s.outcome()
				if hooked == nil {
					require.EqualError(t, err, "the client did not send the command")
				} else {
					require.ErrorIs(t, err, refused)
				}
			}
			require.Empty(t, server.Keys())
		}
	}
}

// TestAScriptThatStaysUnknownIsAnError, even where its source was sent: it is not sent
// for ever.
func TestAScriptThatStaysUnknownIsAnError(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	client.AddHook(fakes.Hook{Pipeline: func(_ context.Context, cmds []redis.Cmder, _ redis.ProcessPipelineHook) error { // as a proxy may
		for _, cmd := range cmds {
			cmd.SetErr(redis.ErrNoScript)
		}
		return redis.ErrNoScript
	}})
	m := New(counting(client), asGiven)
	m.sender.pipelined.Store(true)
	for _, s := range sendBatch(t, m, "a", "b", "b", "c") {
		_, err := s.outcome()
		require.ErrorIs(t, err, redis.ErrNoScript)
	}
}

// TestAServerOfAClusterIsSentAPipeline once it has refused keys of several slots, which
// it did not execute.
func TestAServerOfAClusterIsSentAPipeline(t *testing.T) {
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	refusals := 0
	client.AddHook(fakes.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if cmd.Name() != "evalsha" {
			return next(ctx, cmd)
		}
		refusals++
		return serverError("CROSSSLOT Keys in request don't hash to the same slot")
	}})
	m := New(counting(client), asGiven)
	for round := range 2 {
		for i, s := range sendBatch(t, m, "a", "b", "b") {
			reply, err := s.outcome()
			require.NoError(t, err)
			want := []redisexec.Reply{
				{Words: []int64{1, int64(round)}}, {Words: []int64{2, int64(2 * round)}}, {Words: []int64{2, int64(2 * round)}, Index: 1},
			}
			require.Equal(t, want[i], reply)
		}
	}
	require.Equal(t, 1, refusals)
}

// answering is a client of several servers: each command of a pipeline is answered with a number of its own.
type answering struct {
	redisclient.Merging
	replies int64
}

func (*answering) Several() bool { return true }

func (a *answering) ProcessAll(_ context.Context, cmds []redis.Cmder) error {
	for _, cmd := range cmds {
		a.replies++
		cmd.(*redisexec.Once).Cmder.(*redis.IntCmd).SetVal(a.replies)
	}
	return nil
}

// TestCommandsOfAPipelineAreUsedAgain: with one allocation for a key, go-redis's command, and the words of a reply stay.
func TestCommandsOfAPipelineAreUsedAgain(t *testing.T) {
	client := &answering{}
	exec := counting(client)
	exec.Unpack = func(reply int64, words []int64) { words[0], words[1] = 1, reply }
	m := New(exec, asGiven)
	keys := make([]string, 100)
	for i := range keys {
		keys[i] = fmt.Sprint("k", i)
	}
	slots := append(sendBatch(t, m, keys...), sendBatch(t, m, keys...)...)
	for i, s := range slots {
		reply, err := s.outcome()
		require.NoError(t, err)
		require.Equal(t, redisexec.Reply{Words: []int64{1, int64(i + 1)}}, reply)
	}
	if raceflag.Enabled {
		t.Skip("the race detector makes sync.Pool forget")
	}
	b := slots[0].batch
	allocs := testing.AllocsPerRun(100, func() {
		for i := range b.runs {
			b.runs[i].words = nil
		}
		b.done = make(chan struct{})
		m.sender.send(b)
	})
	require.LessOrEqual(t, allocs, float64(len(keys)+10))
}
