package otherclient_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
	"github.com/tryacquire/ratelimit/otherclient"
	"github.com/tryacquire/ratelimit/otherclient/clienttest"
)

// conn is a Conn on go-redis without retries.
type conn struct{ *redis.Client }

func (c conn) Do(ctx context.Context, cmd otherclient.Command) otherclient.Reply {
	return reply(c.Client.Do(ctx, words(cmd)...))
}

func (c conn) DoAll(ctx context.Context, commands []otherclient.Command) []otherclient.Reply {
	pipe := c.Pipeline()
	cmds := make([]*redis.Cmd, len(commands))
	for i, cmd := range commands {
		cmds[i] = pipe.Do(ctx, words(cmd)...)
	}
	_, _ = pipe.Exec(ctx)
	replies := make([]otherclient.Reply, len(cmds))
	for i, cmd := range cmds {
		replies[i] = reply(cmd)
	}
	return replies
}

func (c conn) DoEach(ctx context.Context, cmd otherclient.Command) error { return c.Do(ctx, cmd).Err }
func (c conn) Sharded() bool                                             { return false }

func words(cmd otherclient.Command) []any {
	all := make([]any, len(cmd.Words))
	for i, w := range cmd.Words {
		all[i] = w
	}
	return all
}

func reply(cmd *redis.Cmd) otherclient.Reply {
	value, err := cmd.Result()
	var server redis.Error
	if errors.As(err, &server) {
		err = otherclient.ServerError(server.Error())
	}
	return otherclient.Reply{Value: value, Err: err}
}

func open(t *testing.T, addr string) otherclient.Conn {
	client := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ReadTimeout: 10 * time.Second, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	return conn{client}
}

func TestAConnOnGoRedis(t *testing.T) { clienttest.Run(t, open) }

// TestSlots: as a server of a Cluster computes them.
func TestSlots(t *testing.T) {
	cluster := redistest.StartCluster(t)
	for _, key := range []string{"", "a", "123456789", "{user}:1", "a{user}:1", "{}x", "{", "a{b", "a}b{c}", "{a}{b}", "\xff\x00", "ratelimit:api:tokenbucket{user:42}"} {
		require.Equal(t, cluster.Slot(key), otherclient.SlotOf(key), "%q", key)
	}
}

func TestAClientRefuses(t *testing.T) {
	require.Nil(t, otherclient.New(nil))
	_, err := ratelimit.NewTokenBucket(otherclient.New(nil), ratelimit.PerSecond(1), 1)
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)

	client := otherclient.New(scripted{otherclient.Reply{Value: "no integers"}})
	get := redis.NewStringCmd(t.Context(), "get", "k")
	require.EqualError(t, client.Process(t.Context(), get), "otherclient: get is no command of a limiter; send it with the library's own client")
	require.Error(t, get.Err())

	for _, value := range []any{"no integers", nil, int64(1), []any{int64(1), "2"}, 1.5} {
		client := otherclient.New(scripted{otherclient.Reply{Value: value}})
		window := ratelimit.Must(ratelimit.NewSlidingWindow(client, 1, time.Minute))
		_, err := window.TryAcquire(t.Context(), "k")
		require.ErrorContains(t, err, "otherclient: the reply to evalsha is a", "%v", value)
	}
}

// scripted has one reply to everything.
type scripted struct{ reply otherclient.Reply }

func (s scripted) Do(context.Context, otherclient.Command) otherclient.Reply        { return s.reply }
func (s scripted) DoAll(context.Context, []otherclient.Command) []otherclient.Reply { return nil }
func (s scripted) DoEach(context.Context, otherclient.Command) error                { return s.reply.Err }
func (s scripted) Sharded() bool                                                    { return false }

// TestWhatSeveralCommandsAllocate is the same for two commands and for a hundred.
func TestWhatSeveralCommandsAllocate(t *testing.T) {
	key := "k"
	cost := func(n int) float64 {
		replies := make([]otherclient.Reply, n)
		cmds := make([]redis.Cmder, n)
		for i := range cmds {
			replies[i].Value = int64(1)
			cmds[i] = redis.NewIntCmd(t.Context(), "evalsha", "0123", "1", &key, "1")
		}
		client := otherclient.New(prepared{replies: replies}).(interface {
			ProcessAll(ctx context.Context, cmds []redis.Cmder) error
		})
		return testing.AllocsPerRun(100, func() { require.NoError(t, client.ProcessAll(t.Context(), cmds)) })
	}
	require.Equal(t, cost(2), cost(100))
}

// prepared has a reply to each of several commands.
type prepared struct {
	scripted
	replies []otherclient.Reply
}

func (p prepared) DoAll(context.Context, []otherclient.Command) []otherclient.Reply { return p.replies }
