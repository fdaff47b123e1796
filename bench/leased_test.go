package main

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// BenchmarkOneHotKey decides about one key in this process: by slices of a bucket in Redis, which are refilled while it
// runs, and by limiters that know this process only, as a floor.
//
//	go test -run xxx -bench OneHotKey -cpu 1,2 .
func BenchmarkOneHotKey(b *testing.B) {
	ctx := context.Background()
	const all = 1_000_000_000
	leased := func(b *testing.B, opts ...ratelimit.PolicyOption) func() bool {
		client := redistest.Shared(b).Client(b)
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(all), all))
		l := ratelimit.Must(ratelimit.NewLeased(bucket, opts...))
		b.Cleanup(func() { _ = l.Close(ctx) })
		take := func() bool {
			r, err := l.TryAcquire(ctx, "hot")
			return err == nil && r.Allowed
		}
		for from := time.Now(); time.Since(from) < time.Second; { // the demand is known
			take()
		}
		return take
	}
	for _, bench := range []struct {
		name string
		take func(b *testing.B) func() bool
	}{
		{"Leased", func(b *testing.B) func() bool { return leased(b) }},
		{"x/time/rate", func(*testing.B) func() bool { return rate.NewLimiter(all, all).Allow }},
		{"LocalTokenBucket", func(*testing.B) func() bool {
			l := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(all), all))
			return func() bool {
				r, err := l.TryAcquire(ctx, "hot")
				return err == nil && r.Allowed
			}
		}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			take := bench.take(b)
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if !take() {
						b.Error("denied")
						return
					}
				}
			})
		})
		b.Run(bench.name+", in batches", func(b *testing.B) {
			b.ReportMetric(inBatches(b, bench.take(b)), "p50-ns")
		})
		b.Run(bench.name+", each call timed", func(b *testing.B) {
			take := bench.take(b)
			times := make([]time.Duration, 0, b.N)
			b.ResetTimer()
			for range b.N {
				from := time.Now()
				take()
				times = append(times, time.Since(from))
			}
			b.StopTimer()
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2]), "p50-ns")
			b.ReportMetric(float64(times[len(times)*99/100]), "p99-ns")
			b.ReportMetric(float64(times[len(times)*999/1000]), "p999-ns")
		})
	}
}

// inBatches is how long a call takes, by the median of batches of a hundred: without the time of reading a clock, and on a
// machine that has other work to do. With several goroutines, only batches count during which another one has ended.
func inBatches(b *testing.B, take func() bool) float64 {
	const size = 100
	n := runtime.GOMAXPROCS(0)
	times := make([][]time.Duration, n)
	var ended [8]struct {
		atomic.Int64
		_ [56]byte
	}
	var running sync.WaitGroup
	b.ResetTimer()
	for g := range n {
		running.Go(func() {
			other := &ended[(g+1)%n]
			for range max(b.N/size/n, 1) {
				before, from := other.Load(), time.Now()
				for range size {
					take()
				}
				took := time.Since(from)
				if with := other.Load() - before; n == 1 || 0 < with && with < 4 {
					times[g] = append(times[g], took)
				}
				ended[g].Add(1)
			}
		})
	}
	running.Wait()
	b.StopTimer()
	all := slices.Sorted(slices.Values(slices.Concat(times...)))
	if len(all) < 100 {
		b.Skip("the goroutines did not run at the same time")
	}
	return float64(all[len(all)/2]) / size
}
