package limitertest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/state"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

var ctx = context.Background()

// A Stage is a Redis and a clock to test limiters on.
type Stage struct {
	Client  ratelimit.Client
	Admin   redis.UniversalClient // for the test's own commands
	Opts    []ratelimit.Option    // for every limiter
	MaxSkew time.Duration         // what keys live longer by, because the limiters use the caller's clock
	Now     time.Time
	move    func(to time.Time)
}

// Move sets the stage's clock.
func (s *Stage) Move(to time.Time) {
	s.Now = to
	s.move(to)
}

// Advance moves the stage's clock on.
func (s *Stage) Advance(d time.Duration) { s.Move(s.Now.Add(d)) }

// Wipe empties the stage and sets its clock to Start.
func (s *Stage) Wipe(t testing.TB) {
	t.Helper()
	s.Move(Start)
	if many, ok := s.Admin.(interface {
		ForEachShard(context.Context, func(context.Context, *redis.Client) error) error
	}); ok {
		require.NoError(t, many.ForEachShard(ctx, func(ctx context.Context, c *redis.Client) error { return c.FlushAll(ctx).Err() }))
		return
	}
	require.NoError(t, s.Admin.FlushAll(ctx).Err())
}

// Look is what Redis holds under a key, and whether it expires.
func (s *Stage) Look(t testing.TB, key string) string {
	t.Helper()
	held, err := state.RawText(ctx, s.Admin, key)
	require.NoError(t, err)
	expiry := "expires"
	if s.Admin.PTTL(ctx, key).Val() < 0 {
		expiry = "does not expire"
	}
	return held + " " + expiry
}

// OnMiniredis is a stage on miniredis, whose clock the limiters use.
func OnMiniredis(t testing.TB) *Stage {
	server := miniredis.RunT(t)
	server.ClockTTL(true)
	server.SetTime(Start)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	return &Stage{Client: client, Admin: client, Now: Start, move: server.SetTime}
}

// OnRedis is a stage on the server that all tests of the process share. It deletes all
// keys; the limiters use a clock that the test sets.
func OnRedis(t testing.TB) *Stage {
	client := redistest.Shared(t).Client(t)
	require.NoError(t, client.FlushAll(ctx).Err())
	return OnClock(client, client)
}

// OnHeldRedis is a stage on a server of its own, whose clock the limiters use. It stands
// still until the test moves it. On a server whose clock cannot be held the test is skipped.
func OnHeldRedis(t testing.TB) *Stage {
	server, client := HeldServer(t)
	server.HoldClock(Start)
	return &Stage{Client: client, Admin: client, Now: Start, move: server.HoldClock}
}

// HeldServer starts a server whose clock HoldClock stops. On a server whose clock cannot be
// held the test is skipped.
func HeldServer(t testing.TB) (*redistest.Server, *redis.Client) {
	server, client, still := FaketimeServer(t)
	if !still {
		t.Skip("the clock of this server goes on while it is held; other servers are tested with theirs")
	}
	return server, client
}

// FaketimeServer starts a server whose clock the test sets, and reports whether it stands
// still while it is held.
func FaketimeServer(t testing.TB) (server *redistest.Server, client *redis.Client, still bool) {
	server = redistest.Start(t, redistest.Faketime())
	client = server.Client(t)
	return server, client, standsStill(t, client)
}

// standsStill reports whether a server's TIME stands still while its clock is held: from 9.1
// on Valkey adds the time since it last read the clock.
func standsStill(t testing.TB, client *redis.Client) bool {
	info, err := client.InfoMap(ctx, "server").Result()
	require.NoError(t, err)
	major, _, _ := strings.Cut(info["Server"]["valkey_version"], ".")
	return major == "" || len(major) == 1 && major < "9"
}

// OnClock is a stage of a client, whose limiters use a clock that the test sets.
func OnClock(client ratelimit.Client, admin redis.UniversalClient) *Stage {
	c := NewClock()
	return &Stage{Client: client, Admin: admin, Now: Start, move: c.Set, MaxSkew: time.Second, Opts: []ratelimit.Option{ratelimit.WithClock(c.Now)}}
}

// onLeastPrivilege is a stage whose Redis user has only the privileges that limiters
// need.
func onLeastPrivilege(t testing.TB) *Stage {
	// "other" is a prefix that the suite uses.
	server := redistest.Start(t, redistest.ACL("limiter", append(LeastPrivilege(), "~ratelimit:*", "~other:*")...))
	return OnClock(server.Client(t, AsLimiter), server.Client(t))
}

// Stages are the stages on which the conformance suite runs.
func Stages() map[string]func(t testing.TB) *Stage {
	stages := map[string]func(t testing.TB) *Stage{
		"miniredis": OnMiniredis,
		"miniredis, caller's clock": func(t testing.TB) *Stage {
			s := OnMiniredis(t)
			return OnClock(s.Client, s.Admin)
		},
		"miniredis, unmerged": func(t testing.TB) *Stage {
			s := OnMiniredis(t)
			s.Opts = append(s.Opts, ratelimit.WithoutMerging())
			return s
		},
		"Redis":                  OnRedis,
		"Redis, least privilege": onLeastPrivilege,
		"Redis Ring": func(t testing.TB) *Stage {
			server := redistest.Shared(t)
			require.NoError(t, server.Client(t).FlushAll(ctx).Err())
			ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": server.Addr(), "two": server.Addr()}})
			t.Cleanup(func() { _ = ring.Close() })
			return OnClock(ring, ring)
		},
	}
	for _, p := range Pipelinings {
		stages["Redis, "+p.Name] = func(t testing.TB) *Stage {
			s := OnRedis(t)
			return OnClock(p.Of(t, s.Client.(*redis.Client)), s.Admin)
		}
	}
	return stages
}

// Everywhere runs a test on every stage.
func Everywhere(t *testing.T, test func(t *testing.T, s *Stage)) {
	for name, set := range Stages() {
		t.Run(name, func(t *testing.T) { test(t, set(t)) })
	}
}

// A Composition is decorators of this module around a limiter, which decide as the
// limiter alone does.
type Composition struct {
	Name   string
	Around func(t testing.TB, s *Stage, l ratelimit.Limiter) ratelimit.Limiter
}

// Compositions are those that Each adds. The package whose tests these are sets them.
var Compositions []Composition

// Each runs a test for every variant on every stage, each time with no key in Redis
// and at Start; and on miniredis for every composition around every variant.
func Each(t *testing.T, test func(t *testing.T, s *Stage, v Variant, l ratelimit.Limiter)) {
	Everywhere(t, func(t *testing.T, s *Stage) {
		for _, v := range Variants() {
			t.Run(v.Name, func(t *testing.T) {
				s.Wipe(t)
				l, err := v.Build(s.Client, s.Opts...)
				require.NoError(t, err)
				test(t, s, v, l)
			})
		}
	})
	for _, c := range Compositions {
		t.Run(c.Name, func(t *testing.T) {
			s := OnMiniredis(t)
			for _, v := range Variants() {
				t.Run(v.Name, func(t *testing.T) {
					s.Wipe(t)
					l, err := v.Build(s.Client, s.Opts...)
					require.NoError(t, err)
					test(t, s, v, c.Around(t, s, l))
				})
			}
		})
	}
}

// Offline is a client that must not be asked: the test fails if it is.
func Offline(t testing.TB) ratelimit.Client { return fakes.Offline(t) }

// A Pipelining is one of go-redis's own ways to send the calls of many goroutines
// together, which replaces a limiter's merging.
type Pipelining struct {
	Name      string
	Clustered bool // there is one for a ClusterClient too
	Of        func(t testing.TB, c redis.UniversalClient) ratelimit.Client
}

// Pipelinings are the AutoPipeliners that the oldest supported go-redis has, and with the
// build tag newest also those that only the newest has.
var Pipelinings []Pipelining
