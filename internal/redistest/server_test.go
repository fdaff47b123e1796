package redistest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func impatient(o *redis.Options) {
	o.MaxRetries, o.ReadTimeout = -1, 200*time.Millisecond
}

func TestServerLosesItsDataWhenKilled(t *testing.T) {
	s, ctx := Start(t), testContext(t)
	c := s.Client(t)
	check(t, c.Set(ctx, "k", "v", 0).Err())
	addr := s.Addr()

	s.Kill()
	if _, err := net.Dial("tcp", addr); err == nil {
		t.Fatal("a killed server accepts connections")
	}
	s.Restart()
	equal(t, "address", s.Addr(), addr)
	equal(t, "error", c.Get(ctx, "k").Err(), error(redis.Nil))
}

func TestServerKeepsItsAppendOnlyFile(t *testing.T) {
	s, ctx := Start(t, Args("--appendonly", "yes", "--appendfsync", "always")), testContext(t)
	c := s.Client(t)
	check(t, c.Set(ctx, "k", "v", 0).Err())
	s.Restart() // kills it
	equal(t, "value", c.Get(ctx, "k").Val(), "v")
	s.Stop()
	s.Restart()
	equal(t, "value", c.Get(ctx, "k").Val(), "v")
}

func TestPausedServerExecutesLater(t *testing.T) {
	s, ctx := Start(t), testContext(t)
	c := s.Client(t, impatient)
	check(t, c.Ping(ctx).Err())

	s.Pause()
	var timeout net.Error
	if err := c.Incr(ctx, "k").Err(); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("got %v, want a timeout", err)
	}
	s.Resume()
	await(t, "execution", func(ctx context.Context) error { return c.Get(ctx, "k").Err() })
}

func TestKillEndsAPausedServer(t *testing.T) {
	s := Start(t)
	s.Pause()
	s.Kill()
	s.Restart()
	check(t, s.Client(t).Ping(testContext(t)).Err())
}

func TestPasswordAndACL(t *testing.T) {
	s := Start(t, Password("open sesame"), ACL("alice", "on", ">wonder", "~a:*", "+@all"))
	ctx := testContext(t)
	check(t, s.Client(t).Set(ctx, "k", "v", 0).Err())

	anonymous := s.Client(t, func(o *redis.Options) { o.Password = "" })
	if err := anonymous.Ping(ctx).Err(); !redis.HasErrorPrefix(err, "NOAUTH") {
		t.Errorf("got %v, want NOAUTH", err)
	}
	alice := s.Client(t, func(o *redis.Options) { o.Username, o.Password = "alice", "wonder" })
	check(t, alice.Set(ctx, "a:k", "v", 0).Err())
	if err := alice.Get(ctx, "k").Err(); !redis.HasErrorPrefix(err, "NOPERM") {
		t.Errorf("got %v, want NOPERM", err)
	}
	s.Restart()
	check(t, alice.Set(ctx, "a:k", "v", 0).Err())
}

func TestTLS(t *testing.T) {
	s, ctx := Start(t, TLS()), testContext(t)
	check(t, s.Client(t).Set(ctx, "k", "v", 0).Err())

	conn, err := tls.Dial("tcp", s.Addr(), s.TLSConfig())
	check(t, err)
	check(t, conn.Close())
	if _, err := tls.Dial("tcp", s.Addr(), &tls.Config{}); err == nil {
		t.Error("the certificate is trusted by who does not know its authority")
	}
	plain := s.Client(t, func(o *redis.Options) { o.TLSConfig = nil })
	if err := plain.Ping(ctx).Err(); err == nil {
		t.Error("the server talks without TLS")
	}
}

func TestSharedServerIsOne(t *testing.T) {
	a, b := Shared(t), Shared(t)
	equal(t, "address", a.Addr(), b.Addr())
	check(t, a.Client(t).Ping(testContext(t)).Err())
	defer func() {
		if recover() == nil {
			t.Error("the shared server could be killed")
		}
	}()
	a.Kill()
}

func TestStepClock(t *testing.T) {
	s, ctx := Start(t, Faketime()), testContext(t)
	c := s.Client(t)
	script := redis.NewScript(`return redis.call("TIME")[1]`)
	offset := func() time.Duration {
		seconds, err := script.Run(ctx, c, nil).Int64()
		check(t, err)
		return time.Until(time.Unix(seconds, 0)).Round(10 * time.Second)
	}
	equal(t, "offset at first", offset(), 0)

	check(t, c.Set(ctx, "k", "v", time.Minute).Err())
	s.StepClock(30 * time.Second)
	equal(t, "offset", offset(), 30*time.Second)
	equal(t, "value", c.Get(ctx, "k").Val(), "v")
	s.StepClock(31 * time.Second)
	equal(t, "offset", offset(), time.Minute)
	equal(t, "expired", c.Get(ctx, "k").Err(), error(redis.Nil))
	s.StepClock(-time.Hour)
	equal(t, "offset back", offset(), -59*time.Minute)

	s.StepClock(-1500 * time.Millisecond)
	s.Restart()
	equal(t, "offset after a restart", offset(), -59*time.Minute)
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
	check(t, c.Set(ctx, "k", "v", time.Minute).Err())
	s.StepClock(0)
	equal(t, "expired", c.Get(ctx, "k").Err(), error(redis.Nil))
}

func TestExecutions(t *testing.T) {
	s, ctx := Start(t), testContext(t)
	c := s.Client(t)
	equal(t, "at first", Executions(t, c), 0)

	fine := redis.NewScript(`return redis.call("INCR", KEYS[1])`)
	check(t, fine.Run(ctx, c, []string{"k"}).Err()) // NOSCRIPT, then EVAL
	check(t, fine.Run(ctx, c, []string{"k"}).Err())
	equal(t, "after two", Executions(t, c), 2)

	raises := redis.NewScript(`redis.call("INCR", KEYS[1]) return redis.call("HGET", KEYS[1], "f")`)
	if err := raises.Run(ctx, c, []string{"k"}).Err(); err == nil {
		t.Error("the script did not raise")
	}
	equal(t, "after one that raised", Executions(t, c), 3)
	check(t, c.ScriptFlush(ctx).Err())
	check(t, c.Get(ctx, "k").Err())
	equal(t, "after other commands", Executions(t, c), 3)
}
