package ratelimit_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// BenchmarkTickets compares an estimate with its settlement, with a lease and without, to TryAcquire; and beside 10,000
// tickets of the key.
func BenchmarkTickets(b *testing.B) {
	client := redis.NewClient(&redis.Options{Addr: redistest.Shared(b).Addr()})
	b.Cleanup(func() { _ = client.Close() })
	build := func(opts ...ratelimit.Option) settling {
		return ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1_000_000), 1_000_000, append(opts, ratelimit.WithName("bench tickets"))...))
	}
	plain, leased := build(), build(ratelimit.WithTicketLease(time.Hour))
	take := func(l settling) func(key string) error {
		return func(key string) error {
			_, err := l.TryAcquire(ctx, key)
			return err
		}
	}
	cycle := func(l settling) func(key string) error {
		return func(key string) error {
			t, _, err := l.Estimate(ctx, key, 20)
			if err != nil {
				return err
			}
			return t.Settle(ctx, 13)
		}
	}
	for _, of := range []struct {
		name string
		call func(key string) error
	}{{"take", take(plain)}, {"take with the option", take(leased)}, {"cycle", cycle(plain)}, {"cycle with a lease", cycle(leased)}} {
		b.Run(of.name+", alone", func(b *testing.B) {
			for i := range b.N {
				if err := of.call(fmt.Sprintf("tenant:%d", i%1000)); err != nil {
					b.Fatal(err)
				}
			}
			usec(b, client, b.N)
		})
		b.Run(of.name+", 256 callers", func(b *testing.B) {
			var next atomic.Int64
			var callers sync.WaitGroup
			for range 256 {
				callers.Go(func() {
					for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
						if err := of.call(fmt.Sprintf("tenant:%d", i%1000)); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			callers.Wait()
			usec(b, client, b.N)
		})
	}
	for range 9_000 {
		if _, _, err := leased.Estimate(ctx, "full", 1); err != nil {
			b.Fatal(err)
		}
	}
	for name, call := range map[string]func(key string) error{"take": take(leased), "cycle": cycle(leased), "denial": func(key string) error {
		_, err := leased.TryAcquireN(ctx, key, 1_000_000)
		return err
	}} {
		b.Run(name+" beside 9,000 tickets", func(b *testing.B) {
			for range b.N {
				if err := call("full"); err != nil {
					b.Fatal(err)
				}
			}
			usec(b, client, b.N)
		})
	}
	b.Run("a call that gives back 100", func(b *testing.B) {
		short := build(ratelimit.WithTicketLease(time.Millisecond))
		client.Del(ctx, "x")
		for range b.N {
			b.StopTimer()
			for range 100 {
				_, _, _ = short.Estimate(ctx, "ended", 1)
			}
			time.Sleep(2 * time.Millisecond)
			_ = client.ConfigResetStat(ctx)
			b.StartTimer()
			_, _ = short.Peek(ctx, "ended")
		}
		usec(b, client, 1)
	})
}
