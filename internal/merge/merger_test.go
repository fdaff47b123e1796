package merge

import (
	"context"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/redisclient"
	"github.com/tryacquire/ratelimit/internal/redisexec"
)

// A route says on which server a key is.
type route func(key string) *redis.Client

type routed struct {
	redisclient.Merging
	route route
}

func (r routed) Server(_ context.Context, key string) (any, error) { return r.route(key), nil }

// by makes m find servers by r.
func (r route) by(m *Merger) {
	m.servers = routed{route: r}
}

// Queues of removed servers are dropped, and those in use are not.
func TestQueuesOfRemovedServersAreDropped(t *testing.T) {
	m := New(newServer(1).Executor, asGiven)
	var servers []*redis.Client
	route(func(key string) *redis.Client {
		servers = append(servers, redis.NewClient(&redis.Options{Addr: key}))
		t.Cleanup(func() { _ = servers[len(servers)-1].Close() })
		return servers[len(servers)-1]
	}).by(m)
	require.Same(t, m.common, m.queue(ctx, "early"), "no server has answered")
	m.sender.answered.Store(true)
	busy := m.queue(ctx, "busy")
	busy.calls = 1
	for i := range 1000 {
		q := m.queue(ctx, fmt.Sprint(i))
		at, ok := m.queues.Load(servers[len(servers)-1])
		require.True(t, ok)
		require.Same(t, q, at)
	}
	queues := 0
	m.queues.Range(func(any, any) bool { queues++; return true })
	require.LessOrEqual(t, queues, 66)
	at, _ := m.queues.Load(servers[0])
	require.Same(t, busy, at)
}

// TestTheServerIsFoundByTheTag of a key, where that is known: the name, which needs memory, is made when the call is sent.
func TestTheServerIsFoundByTheTag(t *testing.T) {
	m := NewQueues(newServer(1).Client).Merger(&Limit{
		Exec: &redisexec.Executor{}, Name: func(string) string { panic("not needed") }, Tag: func(key string) string { return key[:1] },
	})
	servers := map[string]*redis.Client{"a": {}, "b": {}}
	route(func(key string) *redis.Client { return servers[key] }).by(m)
	m.sender.answered.Store(true)
	require.Same(t, m.queue(ctx, "a1"), m.queue(ctx, "a2"))
	require.NotSame(t, m.queue(ctx, "a1"), m.queue(ctx, "b1"))
	require.Zero(t, testing.AllocsPerRun(100, func() { m.queue(ctx, "a1") }))
}

// TestServersDoNotWaitForOneAnother: a call is sent at once though many for another
// server are in flight.
func TestServersDoNotWaitForOneAnother(t *testing.T) {
	held(t, 3, func(t *testing.T, s *server, m *Merger) {
		servers := map[string]*redis.Client{"few": {}, "a": {}, "b": {}}
		servers["b"] = servers["few"]
		route(func(key string) *redis.Client { return servers[key] }).by(m)
		m.sender.answered.Store(true)
		few(t, s, m)
		acquireAll(m, 1, "b", "a")
		require.Equal(t, singly("a"), s.take())
		s.answerNext(nil)
		require.Equal(t, singly("b"), s.take())
	})
}
