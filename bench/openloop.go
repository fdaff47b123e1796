package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/tryacquire/ratelimit/bench/internal/stats"
)

// An arrival process calls at random, whether earlier calls have been answered
// or not, as requests reach a server.
type arrivals struct {
	decide decide
	keys   []string
	rate   float64 // per second, on average, with exponential gaps
}

// A latencySample is what one run of arrivals found, in nanoseconds.
type latencySample struct {
	p50, p99 float64
	late     float64 // 99th percentile of how late the calls were made
}

// run makes calls for d and waits for the last. A call's latency counts from
// when it was made; the generator's own delay is reported separately. The first fifth
// is not counted.
func (a arrivals) run(ctx context.Context, d time.Duration) (latencySample, error) {
	var mu sync.Mutex // guards what follows
	var answered, late stats.Histogram
	var failed error

	var wg sync.WaitGroup
	start := time.Now()
	warm := start.Add(d / 5)
	for due := start; due.Sub(start) < d+d/5; {
		due = due.Add(time.Duration(rand.ExpFloat64() / a.rate * float64(time.Second)))
		if wait := time.Until(due); wait > 0 {
			time.Sleep(wait)
		}
		key, due := a.keys[rand.IntN(len(a.keys))], due
		wg.Add(1)
		made := time.Now()
		go func() {
			defer wg.Done()
			_, err := a.decide(ctx, key)
			took := time.Since(made)
			mu.Lock()
			defer mu.Unlock()
			if failed == nil {
				failed = err
			}
			if due.After(warm) {
				answered.Record(took)
				late.Record(made.Sub(due))
			}
		}()
	}
	wg.Wait()
	return latencySample{
		p50: float64(answered.Quantile(0.50)), p99: float64(answered.Quantile(0.99)),
		late: float64(late.Quantile(0.99)),
	}, failed
}
