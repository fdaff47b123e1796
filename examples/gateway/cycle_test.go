package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// BenchmarkCycle measures what a call of the gateway costs Redis: the decision (two budgets, tokens, a place, and a pause), and
// Finish, which settles three estimates and frees the place. redis-µs/op is the time of Redis's main thread, reading and writing sockets included. takes/op
// is how many times that of a TryAcquire of a token bucket it is; many callers share executions, so there it says nothing.
func BenchmarkCycle(b *testing.B) {
	server := redistest.Start(b)
	client := server.Client(b)
	var c config
	require.NoError(b, json.Unmarshal([]byte(processConfig), &c))
	accounts, err := newAccounts(client, c, time.Minute)
	require.NoError(b, err)
	var of []*account
	for _, a := range accounts {
		if a.key != "poor" {
			of = append(of, a)
		}
	}
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1_000_000_000), 1_000_000_000, ratelimit.WithName("plain")))
	take := func(i int) error {
		_, err := bucket.TryAcquire(context.Background(), keyID("plain", fmt.Sprint(i%2)))
		return err
	}
	cycle := func(i, from int) error {
		all, err := ratelimit.TryAcquireAll(context.Background(), of[i%2].claims(30, 20)[from:]...)
		if err == nil {
			err = all.Err()
		}
		if err != nil {
			return err
		}
		return all.Finish(context.Background(), func(ratelimit.PartResult) int { return 0 }) // so that the budgets last
	}
	for _, callers := range []int{1, 256} {
		var one float64
		for _, m := range []struct {
			name string
			do   func(int) error
		}{
			{"take", take},
			{"cycle", func(i int) error { return cycle(i, teamPart) }},
			{"cycle with pause", func(i int) error { return cycle(i, upstreamPart) }},
		} {
			b.Run(fmt.Sprintf("%s, callers=%d", m.name, callers), func(b *testing.B) {
				require.NoError(b, m.do(0))
				before := mainThread(b, server)
				b.ResetTimer()
				var next atomic.Int64
				var all sync.WaitGroup
				for range callers {
					all.Go(func() {
						for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
							if err := m.do(int(i)); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				all.Wait()
				b.StopTimer()
				spent := (mainThread(b, server) - before) / float64(b.N)
				if m.name == "take" {
					one = spent
				}
				b.ReportMetric(spent, "redis-µs/op")
				if callers == 1 {
					b.ReportMetric(spent/one, "takes/op")
				}
			})
		}
	}
}

// mainThread is how many microseconds of the processor the server's main thread has had.
func mainThread(b *testing.B, server *redistest.Server) float64 {
	info, err := server.Client(b).InfoMap(context.Background(), "cpu").Result()
	require.NoError(b, err)
	var user, sys float64
	_, err = fmt.Sscan(info["CPU"]["used_cpu_user_main_thread"]+" "+info["CPU"]["used_cpu_sys_main_thread"], &user, &sys)
	require.NoError(b, err)
	return (user + sys) * 1e6
}
