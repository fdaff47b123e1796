package ratelimit_test

import (
	"context"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

const (
	clientBudget  = 200 * time.Millisecond
	clientTimeout = time.Second
)

func TestClientOptionsOfEachKind(t *testing.T) {
	connections := max(100, 10*runtime.GOMAXPROCS(0))
	single, err := ratelimit.ClientOptions(clientBudget, &redis.Options{Addr: "a:1"})
	require.NoError(t, err)
	require.Equal(t, &redis.Options{
		Addr: "a:1", ContextTimeoutEnabled: true, DialTimeout: clientTimeout, ReadTimeout: clientTimeout, WriteTimeout: clientTimeout,
		PoolTimeout: clientBudget, DialerRetries: 1, MaxRetries: -1, PoolSize: connections,
	}, single)
	cluster, err := ratelimit.ClientOptions(clientBudget, &redis.ClusterOptions{Addrs: []string{"a:1"}})
	require.NoError(t, err)
	require.Equal(t, &redis.ClusterOptions{
		Addrs: []string{"a:1"}, ContextTimeoutEnabled: true, DialTimeout: clientTimeout, ReadTimeout: clientTimeout, WriteTimeout: clientTimeout,
		PoolTimeout: clientBudget, DialerRetries: 1, MaxRetries: -1, PoolSize: connections,
	}, cluster)
	ring, err := ratelimit.ClientOptions(clientBudget, &redis.RingOptions{Addrs: map[string]string{"a": "a:1"}})
	require.NoError(t, err)
	require.Equal(t, &redis.RingOptions{
		Addrs: map[string]string{"a": "a:1"}, ContextTimeoutEnabled: true, DialTimeout: clientTimeout, ReadTimeout: clientTimeout, WriteTimeout: clientTimeout,
		PoolTimeout: clientBudget, DialerRetries: 1, MaxRetries: -1, PoolSize: connections,
	}, ring)
	failover, err := ratelimit.ClientOptions(clientBudget, &redis.FailoverOptions{MasterName: "a"})
	require.NoError(t, err)
	require.Equal(t, &redis.FailoverOptions{
		MasterName: "a", ContextTimeoutEnabled: true, DialTimeout: clientTimeout, ReadTimeout: clientTimeout, WriteTimeout: clientTimeout,
		PoolTimeout: clientBudget, DialerRetries: 1, MaxRetries: -1, PoolSize: connections,
	}, failover)
	universal, err := ratelimit.ClientOptions(clientBudget, &redis.UniversalOptions{Addrs: []string{"a:1"}})
	require.NoError(t, err)
	require.Equal(t, &redis.UniversalOptions{
		Addrs: []string{"a:1"}, ContextTimeoutEnabled: true, DialTimeout: clientTimeout, ReadTimeout: clientTimeout, WriteTimeout: clientTimeout,
		PoolTimeout: clientBudget, DialerRetries: 1, MaxRetries: -1, PoolSize: connections,
	}, universal)
}

func TestClientOptionsKeepWhatIsSet(t *testing.T) {
	given := redis.Options{
		DialTimeout: 1, ReadTimeout: 2, WriteTimeout: -1, PoolTimeout: 4, DialerRetries: 5, MaxRetries: 6, PoolSize: 7, ContextTimeoutEnabled: true,
	}
	o := given
	got, err := ratelimit.ClientOptions(clientBudget, &o)
	require.NoError(t, err)
	require.Same(t, &o, got)
	require.Equal(t, given, o)
}

func TestClientOptionsLeaveTimeToConnect(t *testing.T) {
	o, err := ratelimit.ClientOptions(time.Millisecond, &redis.Options{})
	require.NoError(t, err)
	require.Equal(t, []time.Duration{100 * time.Millisecond, 100 * time.Millisecond, time.Millisecond}, []time.Duration{o.DialTimeout, o.ReadTimeout, o.PoolTimeout})
}

func TestClientOptionsRefuseWhatCannotWork(t *testing.T) {
	for _, budget := range []time.Duration{0, -1, time.Minute + 1} {
		_, err := ratelimit.ClientOptions(budget, &redis.Options{})
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, budget.String())
	}
	_, err := ratelimit.ClientOptions[redis.Options](clientBudget, nil)
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
}

// A dialer counts dials.
type dialer struct{ dials atomic.Int64 }

func (d *dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d.dials.Add(1)
	var n net.Dialer
	return n.DialContext(ctx, network, addr)
}

// clientKinds make a client for the server at addr. With the FailoverOptions that is a Sentinel.
var clientKinds = []struct {
	name string
	open func(d *dialer, addr string) redis.UniversalClient
}{
	{"Options", func(d *dialer, addr string) redis.UniversalClient {
		return redis.NewClient(ratelimit.Must(ratelimit.ClientOptions(clientBudget, &redis.Options{Addr: addr, Dialer: d.dial})))
	}},
	{"ClusterOptions", func(d *dialer, addr string) redis.UniversalClient {
		return redis.NewClusterClient(ratelimit.Must(ratelimit.ClientOptions(clientBudget, &redis.ClusterOptions{Addrs: []string{addr}, Dialer: d.dial})))
	}},
	{"RingOptions", func(d *dialer, addr string) redis.UniversalClient {
		return redis.NewRing(ratelimit.Must(ratelimit.ClientOptions(clientBudget, &redis.RingOptions{
			Addrs: map[string]string{"a": addr}, Dialer: d.dial, HeartbeatFn: func(context.Context, *redis.Client) bool { return true },
		})))
	}},
	{"UniversalOptions", func(d *dialer, addr string) redis.UniversalClient {
		return redis.NewUniversalClient(ratelimit.Must(ratelimit.ClientOptions(clientBudget, &redis.UniversalOptions{Addrs: []string{addr}, Dialer: d.dial})))
	}},
	{"UniversalOptions of a cluster", func(d *dialer, addr string) redis.UniversalClient {
		return redis.NewUniversalClient(ratelimit.Must(ratelimit.ClientOptions(clientBudget, &redis.UniversalOptions{
			Addrs: []string{addr}, Dialer: d.dial, IsClusterMode: true,
		})))
	}},
	{"FailoverOptions", func(d *dialer, addr string) redis.UniversalClient {
		return redis.NewFailoverClient(ratelimit.Must(ratelimit.ClientOptions(clientBudget, &redis.FailoverOptions{
			MasterName: redistest.MasterName, SentinelAddrs: []string{addr}, Dialer: d.dial,
		})))
	}},
}

func TestADeadServerIsDialledOncePerCall(t *testing.T) {
	server := redistest.NewProxy(t, redistest.Shared(t).Addr())
	server.Refuse()
	for _, kind := range clientKinds {
		t.Run(kind.name, func(t *testing.T) {
			d := new(dialer)
			client := kind.open(d, server.Addr())
			t.Cleanup(func() { _ = client.Close() })
			l := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), 5))
			for call := range 3 {
				_, err := l.TryAcquire(t.Context(), t.Name())
				require.Error(t, err)
				require.EqualValues(t, call+1, d.dials.Load())
			}
		})
	}
}

func TestAHungServerIsAskedOncePerCall(t *testing.T) {
	for _, kind := range clientKinds[:5] { // of several Sentinels only those that answer are asked
		t.Run(kind.name, func(t *testing.T) {
			server := redistest.NewProxy(t, redistest.Shared(t).Addr())
			d := new(dialer)
			client := kind.open(d, server.Addr())
			t.Cleanup(func() { _ = client.Close() })
			l := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), 5))
			server.Hang()
			_, err := l.TryAcquire(t.Context(), t.Name()) // without a deadline
			require.Error(t, err)
			require.EqualValues(t, 1, d.dials.Load())
		})
	}
}

// TestAReplyAfterTheBudgetKeepsItsConnection: the secondary has answered by then, and the late reply gives the hold back.
func TestAReplyAfterTheBudgetKeepsItsConnection(t *testing.T) {
	server := redistest.NewProxy(t, redistest.Shared(t).Addr())
	d := new(dialer)
	client := clientKinds[0].open(d, server.Addr())
	t.Cleanup(func() { _ = client.Close() })
	running := ratelimit.Must(ratelimit.NewInFlight(client, 5, time.Hour, ratelimit.WithName("late")))
	guarded := ratelimit.Must(ratelimit.NewHoldFallback(running, ratelimit.Must(ratelimit.NewLocalInFlight(1)), ratelimit.WithBudget(clientBudget)))
	hold, _, err := guarded.TryAcquire(t.Context(), t.Name())
	require.NoError(t, err)
	require.NoError(t, hold.Release(t.Context()))
	connected := d.dials.Load()

	other := clientKinds[0].open(new(dialer), server.Addr())
	t.Cleanup(func() { _ = other.Close() })
	another := ratelimit.Must(ratelimit.NewFallback(
		ratelimit.Must(ratelimit.NewTokenBucket(other, ratelimit.PerHour(1), 5)), ratelimit.AllowAll(), ratelimit.WithBudget(clientBudget)))
	// Through a connection of its own: beside the release, client would need a second one.
	look := ratelimit.Must(ratelimit.NewInFlight(other, 5, time.Hour, ratelimit.WithName("late")))
	server.HoldReplies()
	_, r, err := guarded.TryAcquire(t.Context(), t.Name())
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.True(t, r.Fallback)
	_, err = another.TryAcquire(t.Context(), t.Name()) // takes another budget
	require.NoError(t, err)
	server.Unhang()
	require.Eventually(t, func() bool {
		r, err := look.Peek(t.Context(), t.Name())
		return err == nil && r.Remaining == 5
	}, 30*time.Second, 5*time.Millisecond)
	require.Equal(t, connected, d.dials.Load())
}

// TestARestartIsNoticedByTheNextCall: after 50 failed calls go-redis dials at once all the same.
func TestARestartIsNoticedByTheNextCall(t *testing.T) {
	server := redistest.NewProxy(t, redistest.Shared(t).Addr())
	d := new(dialer)
	client := clientKinds[0].open(d, server.Addr())
	t.Cleanup(func() { _ = client.Close() })
	l := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), 5))
	server.Refuse()
	for range 50 {
		_, err := l.TryAcquire(t.Context(), t.Name())
		require.Error(t, err)
	}
	server.Allow()
	r, err := l.TryAcquire(t.Context(), t.Name())
	require.NoError(t, err)
	require.Equal(t, 4, r.Remaining)
}

func TestAFailoverWithClientOptions(t *testing.T) {
	if testing.Short() {
		t.Skip("a failover takes seconds")
	}
	sentinel := redistest.StartSentinel(t)
	client := sentinel.Client(t, func(o *redis.FailoverOptions) { ratelimit.Must(ratelimit.ClientOptions(clientBudget, o)) })
	l := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), 5))
	_, err := l.TryAcquire(t.Context(), "k")
	require.NoError(t, err)
	old := sentinel.Master()
	old.Kill()
	_, err = l.TryAcquire(t.Context(), "k")
	require.Error(t, err)
	sentinel.AwaitFailover(old)
	require.Eventually(t, func() bool {
		_, err := l.TryAcquire(t.Context(), "other")
		return err == nil
	}, 30*time.Second, 5*time.Millisecond)
}
