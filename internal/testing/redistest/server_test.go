package redistest

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func impatient(o *redis.Options) {
	o.MaxRetries, o.ReadTimeout = -1, 200*time.Millisecond
}

func TestServerLosesItsDataWhenKilled(t *testing.T) {
	s, ctx := Start(t), testContext(t)
	c := s.Client(t)
	require.NoError(t, c.Set(ctx, "k", "v", 0).Err())
	addr := s.Addr()

	s.Kill()
	_, err := net.Dial("tcp", addr)
	require.Error(t, err, "a killed server accepts connections")
	s.Restart()
	require.Equal(t, addr, s.Addr(), "address")
	require.ErrorIs(t, c.Get(ctx, "k").Err(), redis.Nil)
}

func TestServerKeepsItsAppendOnlyFile(t *testing.T) {
	s, ctx := Start(t, Args("--appendonly", "yes", "--appendfsync", "always")), testContext(t)
	c := s.Client(t)
	require.NoError(t, c.Set(ctx, "k", "v", 0).Err())
	s.Restart() // kills it
	require.Equal(t, "v", c.Get(ctx, "k").Val(), "value")
	s.Stop()
	s.Restart()
	require.Equal(t, "v", c.Get(ctx, "k").Val(), "value")
}

func TestPausedServerExecutesLater(t *testing.T) {
	s, ctx := Start(t), testContext(t)
	c := s.Client(t, impatient)
	require.NoError(t, c.Ping(ctx).Err())

	s.Pause()
	var timeout net.Error
	err := c.Incr(ctx, "k").Err()
	require.ErrorAs(t, err, &timeout)
	require.True(t, timeout.Timeout(), "%v", err)
	s.Resume()
	await(t, "execution", func(ctx context.Context) error { return c.Get(ctx, "k").Err() })
}

func TestKillEndsAPausedServer(t *testing.T) {
	s := Start(t)
	s.Pause()
	s.Kill()
	s.Restart()
	require.NoError(t, s.Client(t).Ping(testContext(t)).Err())
}

func TestPasswordAndACL(t *testing.T) {
	s := Start(t, Password("open sesame"), ACL("alice", "on", ">wonder", "~a:*", "+@all"))
	ctx := testContext(t)
	require.NoError(t, s.Client(t).Set(ctx, "k", "v", 0).Err())

	anonymous := s.Client(t, func(o *redis.Options) { o.Password = "" })
	err := anonymous.Ping(ctx).Err()
	require.True(t, redis.HasErrorPrefix(err, "NOAUTH"), "%v", err)
	alice := s.Client(t, func(o *redis.Options) { o.Username, o.Password = "alice", "wonder" })
	require.NoError(t, alice.Set(ctx, "a:k", "v", 0).Err())
	err = alice.Get(ctx, "k").Err()
	require.True(t, redis.HasErrorPrefix(err, "NOPERM"), "%v", err)
	s.Restart()
	require.NoError(t, alice.Set(ctx, "a:k", "v", 0).Err())
}

func TestTLS(t *testing.T) {
	s, ctx := Start(t, TLS()), testContext(t)
	require.NoError(t, s.Client(t).Set(ctx, "k", "v", 0).Err())

	conn, err := tls.Dial("tcp", s.Addr(), s.TLSConfig())
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	_, err = tls.Dial("tcp", s.Addr(), &tls.Config{})
	require.Error(t, err, "a client that does not know its authority trusts the certificate")
	plain := s.Client(t, func(o *redis.Options) { o.TLSConfig = nil })
	require.Error(t, plain.Ping(ctx).Err(), "the server talks without TLS")
}

func TestSharedServerIsOne(t *testing.T) {
	a, b := Shared(t), Shared(t)
	require.Equal(t, b.Addr(), a.Addr(), "address")
	require.NoError(t, a.Client(t).Ping(testContext(t)).Err())
	require.Panics(t, a.Kill, "the shared server could be killed")
}

func TestStepClock(t *testing.T) {
	s, ctx := Start(t, Faketime()), testContext(t)
	c := s.Client(t)
	script := redis.NewScript(`return redis.call("TIME")[1]`)
	offset := func() time.Duration {
		seconds, err := script.Run(ctx, c, nil).Int64()
		require.NoError(t, err)
		return time.Until(time.Unix(seconds, 0)).Round(10 * time.Second)
	}
	require.Equal(t, time.Duration(0), offset(), "offset at first")

	require.NoError(t, c.Set(ctx, "k", "v", time.Minute).Err())
	s.StepClock(30 * time.Second)
	require.Equal(t, 30*time.Second, offset(), "offset")
	require.Equal(t, "v", c.Get(ctx, "k").Val(), "value")
	s.StepClock(31 * time.Second)
	require.Equal(t, time.Minute, offset(), "offset")
	require.ErrorIs(t, c.Get(ctx, "k").Err(), redis.Nil, "the key has expired")
	s.StepClock(-time.Hour)
	require.Equal(t, -59*time.Minute, offset(), "offset back")

	s.StepClock(-1500 * time.Millisecond)
	s.Restart()
	require.Equal(t, -59*time.Minute, offset(), "offset after a restart")
	s.StepClock(0) // checks the exact time
}

func TestHoldClock(t *testing.T) {
	s, ctx := Start(t, Faketime()), testContext(t)
	c := s.Client(t)
	for _, at := range []time.Time{
		time.UnixMicro(1_763_670_000_000_001), time.UnixMicro(2_000_000_000_999_999), time.UnixMicro(1_000_000_000_000_000),
	} {
		s.HoldClock(at)
		await(t, "the clock to be held", func(ctx context.Context) error {
			got, err := c.Time(ctx).Result()
			if late := got.Sub(at); err != nil || late < 0 || late > time.Millisecond {
				return fmt.Errorf("TIME is %v, %v; want %v", got, err, at)
			}
			return nil
		})
	}
	require.NoError(t, c.Set(ctx, "k", "v", time.Minute).Err())
	s.StepClock(0)
	require.ErrorIs(t, c.Get(ctx, "k").Err(), redis.Nil, "the key has expired")
}

func TestExecutions(t *testing.T) {
	s, ctx := Start(t), testContext(t)
	c := s.Client(t)
	require.Equal(t, int64(0), Executions(t, c), "at first")

	fine := redis.NewScript(`return redis.call("INCR", KEYS[1])`)
	require.NoError(t, fine.Run(ctx, c, []string{"k"}).Err()) // NOSCRIPT, then EVAL
	require.NoError(t, fine.Run(ctx, c, []string{"k"}).Err())
	require.Equal(t, int64(2), Executions(t, c), "after two")

	raises := redis.NewScript(`redis.call("INCR", KEYS[1]) return redis.call("HGET", KEYS[1], "f")`)
	require.Error(t, raises.Run(ctx, c, []string{"k"}).Err(), "the script did not raise")
	require.Equal(t, int64(3), Executions(t, c), "after one that raised")
	require.NoError(t, c.ScriptFlush(ctx).Err())
	require.NoError(t, c.Get(ctx, "k").Err())
	require.Equal(t, int64(3), Executions(t, c), "after other commands")
}
