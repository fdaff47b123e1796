package faulttest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
	"github.com/tryacquire/ratelimit/otherclient"
)

// allRefused makes every kind of call through Fallbacks that would allow it, and requires that each is ErrInvalidConfig.
func allRefused(t *testing.T, client ratelimit.Client) {
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1), 100))
	window := ratelimit.Must(ratelimit.NewSlidingWindow(client, 100, time.Second))
	guarded := ratelimit.Must(ratelimit.NewFallback(bucket, ratelimit.AllowAll(), ratelimit.WithBudget(time.Minute),
		ratelimit.WithBreaker(&ratelimit.Breaker{Failures: 1, ProbeEvery: time.Hour})))
	other := ratelimit.Must(ratelimit.NewFallback(window, ratelimit.AllowAll()))
	holds := ratelimit.Must(ratelimit.NewHoldFallback(ratelimit.Must(ratelimit.NewInFlight(client, 3, time.Minute)), ratelimit.AllowHolds()))
	for name, call := range map[string]func() error{
		"acquire":  func() error { _, err := guarded.TryAcquire(ctx, "k"); return err },
		"peek":     func() error { _, err := guarded.Peek(ctx, "k"); return err },
		"up to":    func() error { _, _, err := guarded.TryAcquireUpTo(ctx, "k", 2); return err },
		"estimate": func() error { _, _, err := guarded.Estimate(ctx, "k", 2); return err },
		"charge":   func() error { _, err := guarded.Charge(ctx, "k", 2); return err },
		"credit":   func() error { _, err := guarded.Credit(ctx, "k", 2); return err },
		"reserve":  func() error { _, err := guarded.Reserve(ctx, "k", 2, time.Second); return err },
		"hold":     func() error { _, _, err := holds.TryAcquire(ctx, "k"); return err },
		"claims": func() error {
			_, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(guarded, "{k}", 1), ratelimit.ClaimOf(other, "{k}", 1), ratelimit.ClaimHold(holds, "{k}", 1))
			return err
		},
		"across slots": func() error {
			_, err := ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimOf(guarded, "a", 1), ratelimit.ClaimOf(other, "b", 1))
			return err
		},
	} {
		require.ErrorIs(t, call(), ratelimit.ErrInvalidConfig, name)
	}
	var all sync.WaitGroup
	for i := range 64 { // some of these are sent together
		all.Go(func() {
			if _, err := guarded.TryAcquire(ctx, fmt.Sprint("k", i%3)); !errors.Is(err, ratelimit.ErrInvalidConfig) {
				t.Errorf("together: %v", err)
			}
		})
	}
	all.Wait()
}

// TestAServerThatWillNotDecideIsNoOutage: a renamed command and an access list stay as they are until somebody notices.
func TestAServerThatWillNotDecideIsNoOutage(t *testing.T) {
	t.Parallel()
	t.Run("EVALSHA is renamed", func(t *testing.T) {
		allRefused(t, redistest.Start(t, redistest.Args("--rename-command", "EVALSHA", "")).Client(t))
	})
	for name, rule := range map[string]string{"EVALSHA": "-evalsha", "a command of the scripts": "-time", "the keys": "resetkeys"} {
		t.Run(name+" forbidden", func(t *testing.T) {
			server := redistest.Start(t, redistest.ACL("limiter", limitertest.LeastPrivilege()...))
			acl(t, server.Client(t), rule)
			allRefused(t, server.Client(t, limitertest.AsLimiter))
		})
	}
	t.Run("on a cluster", func(t *testing.T) {
		cluster := redistest.StartCluster(t, redistest.Args("--rename-command", "EVALSHA", ""))
		allRefused(t, cluster.Client(t))
	})
	t.Run("Valkey without its Lua module", func(t *testing.T) {
		server := redistest.Start(t, redistest.Args("--enable-module-command", "local"))
		client := server.Client(t)
		if err := client.Do(ctx, "MODULE", "UNLOAD", "lua").Err(); err != nil { // not a Valkey from 9.1 on
			client.AddHook(noLua{})
		}
		allRefused(t, client)
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1), 100))
		err := ratelimit.Preload(ctx, ratelimit.ClaimOf(bucket, "k", 1))
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		_, err = bucket.TryAcquire(ctx, "k")
		require.ErrorContains(t, err, "Could not find scripting engine 'lua'")
		require.ErrorContains(t, err, "load Valkey's Lua module (loadmodule libvalkeylua.so)")
	})
}

// noLua answers scripts as a Valkey 9.1 does whose Lua module is not loaded.
type noLua struct{}

func (noLua) DialHook(next redis.DialHook) redis.DialHook { return next }

func (noLua) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !withoutLua(cmd) {
			return next(ctx, cmd)
		}
		return cmd.Err()
	}
}

func (noLua) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if !withoutLua(cmd) {
				return next(ctx, cmds)
			}
		}
		return cmds[0].Err()
	}
}

// withoutLua answers a command that has a script.
func withoutLua(cmd redis.Cmder) bool {
	switch cmd.Name() {
	case "evalsha":
		cmd.SetErr(otherclient.ServerError("NOSCRIPT No matching script."))
	case "eval", "script":
		cmd.SetErr(otherclient.ServerError("ERR Could not find scripting engine 'lua'"))
	default:
		return false
	}
	return true
}

// TestAWrongPasswordIsAnOutage: while it is changed, some connections have the old one.
func TestAWrongPasswordIsAnOutage(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.ACL("limiter", limitertest.LeastPrivilege()...))
	wrong := func(o *redis.Options) {
		limitertest.AsLimiter(o)
		o.Password = "old"
		o.MaxRetries = -1
		o.DialerRetries = 1
	}
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(server.Client(t, wrong), ratelimit.PerSecond(1), 100))
	r, err := ratelimit.Must(ratelimit.NewFallback(bucket, ratelimit.AllowAll())).TryAcquire(ctx, "k")
	require.NoError(t, err)
	require.True(t, r.Fallback)
}
