package observe_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
	"github.com/tryacquire/ratelimit/observe"
)

// A spender is what these tests call.
type spender interface {
	ratelimit.Limiter
	ratelimit.Settler
	TryAcquireUpTo(ctx context.Context, key string, n int) (int, ratelimit.Result, error)
}

// spenders are limiters of which nothing comes back while a test runs.
var spenders = map[string]func(c ratelimit.Client, limit int, o ...ratelimit.Option) (spender, error){
	"FixedWindow": func(c ratelimit.Client, limit int, o ...ratelimit.Option) (spender, error) {
		return ratelimit.NewFixedWindow(c, limit, 1000*time.Hour, o...)
	},
	"CalendarWindow": func(c ratelimit.Client, limit int, o ...ratelimit.Option) (spender, error) {
		return ratelimit.NewCalendarWindow(c, limit, ratelimit.Monthly(1, time.UTC), o...)
	},
	"List": func(c ratelimit.Client, limit int, o ...ratelimit.Option) (spender, error) {
		return ratelimit.NewSlidingWindow(c, limit, 1000*time.Hour, o...)
	},
	"ZSet": func(c ratelimit.Client, limit int, o ...ratelimit.Option) (spender, error) {
		return ratelimit.NewSlidingWindow(c, limit, 1000*time.Hour, append(o, ratelimit.WithStorage(ratelimit.StorageZSet))...)
	},
	"SlidingLog": func(c ratelimit.Client, limit int, o ...ratelimit.Option) (spender, error) {
		return ratelimit.NewSlidingLog(c, []ratelimit.Rule{{Limit: limit, Window: 1000 * time.Hour}}, o...)
	},
	"TokenBucket": func(c ratelimit.Client, limit int, o ...ratelimit.Option) (spender, error) {
		return ratelimit.NewTokenBucket(c, ratelimit.Per(1, 1000*time.Hour), limit, o...)
	},
	"TokenBucket in steps": func(c ratelimit.Client, limit int, o ...ratelimit.Option) (spender, error) {
		return ratelimit.NewTokenBucket(c, ratelimit.Per(1, 1000*time.Hour), limit, append(o, ratelimit.WithRefillEvery(time.Hour))...)
	},
	"LeakyBucket": func(c ratelimit.Client, limit int, o ...ratelimit.Option) (spender, error) {
		return ratelimit.NewLeakyBucket(c, ratelimit.Per(1, 1000*time.Hour), limit, o...)
	},
	"LocalTokenBucket": func(_ ratelimit.Client, limit int, o ...ratelimit.Option) (spender, error) {
		return ratelimit.NewLocalTokenBucket(ratelimit.Per(1, 1000*time.Hour), limit, o...)
	},
}

// TestCrossingsAreThoseOfACount: each call tells what a plain count of the permits in use crosses.
func TestCrossingsAreThoseOfACount(t *testing.T) {
	raceflag.SkipSequential(t)
	ctx := context.Background()
	for name, build := range spenders {
		t.Run(name, func(t *testing.T) {
			seed := limitertest.Seed(t)
			rng := rand.New(rand.NewPCG(seed, 1))
			s := limitertest.OnMiniredis(t)
			for round := range 40 {
				limit, key := 1+rng.IntN(30), fmt.Sprint("k", round)
				shares := []int{1 + rng.IntN(100), 80, 100}
				var told []int
				observer, err := observe.Crossings(func(_ context.Context, percent int, o ratelimit.Observation) {
					require.Equal(t, key, o.Key)
					told = append(told, percent)
				}, shares...)
				require.NoError(t, err)
				slices.Sort(shares)
				shares = slices.Compact(shares)
				l, err := build(s.Client, limit, ratelimit.WithName(fmt.Sprint(name, limit)), ratelimit.WithObserver(observer))
				require.NoError(t, err)
				used, promised := 0, false
				var tickets []*ratelimit.Ticket
				var estimates []int
				for range 40 {
					before, n, did := used, 1+rng.IntN(1+limit/3), ""
					told = nil
					switch rng.IntN(7) {
					case 0, 1:
						did = "take"
						r, err := l.TryAcquireN(ctx, key, n)
						require.NoError(t, err)
						if r.Allowed {
							used += n
						}
					case 2:
						did = "up to"
						n *= 3
						taken, _, err := l.TryAcquireUpTo(ctx, key, n)
						require.NoError(t, err)
						used += taken
					case 3:
						did = "charge"
						_, err := l.Charge(ctx, key, n)
						require.NoError(t, err)
						used += n
					case 4:
						did = "estimate"
						ticket, _, err := l.Estimate(ctx, key, n)
						require.NoError(t, err)
						if ticket != nil {
							used += n
							tickets, estimates = append(tickets, ticket), append(estimates, n)
						}
					case 5:
						if len(tickets) == 0 || promised {
							continue
						}
						did = "settle"
						actual := rng.IntN(2 * estimates[0])
						require.NoError(t, tickets[0].Settle(ctx, actual))
						used += actual - estimates[0]
						tickets, estimates = tickets[1:], estimates[1:]
					case 6:
						b, ok := l.(interface {
							Reserve(ctx context.Context, key string, n int, maxWait time.Duration) (*ratelimit.Reservation, error)
						})
						if !ok {
							continue
						}
						did = "reserve"
						_, err := b.Reserve(ctx, key, n, 1_000_000*time.Hour)
						require.NoError(t, err)
						promised = promised || used+n > limit
						used += n
					}
					var want []int
					for _, p := range shares {
						if 100*before < p*limit && p*limit <= 100*used {
							want = append(want, p)
						}
					}
					require.Equal(t, want, told, "%s %d of %d: from %d to %d", did, n, limit, before, used)
				}
			}
		})
	}
}

// spend takes all permits of the keys by many goroutines, in every way that takes, until nothing is left.
func spend(ctx context.Context, l spender, keys []string) error {
	var wg sync.WaitGroup
	failed := make(chan error, 16)
	for g := range cap(failed) {
		wg.Go(func() {
			for _, key := range keys {
				for i := 0; ; i++ {
					n, allowed := 1+(g+i)%3, false
					var err error
					var r ratelimit.Result
					switch (g + i) % 4 {
					case 0:
						r, err = l.TryAcquireN(ctx, key, n)
						allowed = r.Allowed
					case 1:
						_, r, err = l.Estimate(ctx, key, n)
						allowed = r.Allowed
					case 2:
						_, r, err = l.TryAcquireUpTo(ctx, key, n)
						allowed = r.Allowed
					case 3:
						var all ratelimit.AllResult
						all, err = ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(l, key, n))
						allowed = all.Allowed
					}
					if err != nil {
						failed <- err
						return
					}
					if !allowed && n == 1 {
						break
					}
				}
			}
		})
	}
	wg.Wait()
	close(failed)
	return <-failed
}

var spentKeys = func() (keys []string) {
	for i := range 10 {
		keys = append(keys, fmt.Sprint("k", i))
	}
	return keys
}()

// TestEachCrossingIsToldOnceByManyProcesses: by all callers of three processes, in which calls are merged.
func TestEachCrossingIsToldOnceByManyProcesses(t *testing.T) {
	if addr := os.Getenv("CROSSINGS_ADDR"); addr != "" { // one of the processes
		name := os.Getenv("CROSSINGS_LIMITER")
		client := redis.NewClient(&redis.Options{Addr: addr})
		defer func() { _ = client.Close() }()
		observer, err := observe.Crossings(func(_ context.Context, percent int, o ratelimit.Observation) {
			fmt.Printf("told %s %d\n", o.Key, percent)
		}, 50, 80, 100)
		require.NoError(t, err)
		l, err := spenders[name](client, 600, ratelimit.WithName(name), ratelimit.WithObserver(observer))
		require.NoError(t, err)
		require.NoError(t, spend(context.Background(), l, spentKeys))
		return
	}
	addr := redistest.Start(t).Client(t).Options().Addr
	var want []string
	for _, key := range spentKeys {
		for _, percent := range []int{50, 80, 100} {
			want = append(want, fmt.Sprintf("told %s %d", key, percent))
		}
	}
	for name := range spenders {
		if name == "LocalTokenBucket" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			var outputs [3]strings.Builder
			var processes []*exec.Cmd
			for i := range outputs {
				p := exec.Command(os.Args[0], "-test.run", "^TestEachCrossingIsToldOnceByManyProcesses$")
				p.Env = append(os.Environ(), "CROSSINGS_ADDR="+addr, "CROSSINGS_LIMITER="+name)
				p.Stdout, p.Stderr = &outputs[i], &outputs[i]
				require.NoError(t, p.Start())
				processes = append(processes, p)
			}
			var told []string
			for i, p := range processes {
				require.NoError(t, p.Wait(), outputs[i].String())
				for line := range strings.Lines(outputs[i].String()) {
					if strings.HasPrefix(line, "told ") {
						told = append(told, strings.TrimSpace(line))
					}
				}
			}
			require.ElementsMatch(t, want, told)
		})
	}
}

// TestACrossingIsToldAgain after permits came back, and in a new window.
func TestACrossingIsToldAgain(t *testing.T) {
	ctx, told := context.Background(), 0
	s := limitertest.OnMiniredis(t)
	observer := ratelimit.Must(observe.Crossings(func(context.Context, int, ratelimit.Observation) { told++ }, 80))
	l := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 10, time.Hour, ratelimit.WithObserver(observer)))
	ticket, _, err := l.Estimate(ctx, "k", 9)
	require.NoError(t, err)
	require.Equal(t, 1, told)
	require.NoError(t, ticket.Settle(ctx, 7))
	_, _ = l.TryAcquire(ctx, "k")
	require.Equal(t, 2, told)
	s.Advance(time.Hour)
	_, _ = l.TryAcquireN(ctx, "k", 7)
	require.Equal(t, 2, told)
	_, _ = l.TryAcquire(ctx, "k")
	require.Equal(t, 3, told)
}

func TestCrossingsRefuseWhatCannotWork(t *testing.T) {
	crossed := func(context.Context, int, ratelimit.Observation) {}
	for says, err := range map[string]error{
		"the function is nil":        second(observe.Crossings(nil, 80)),
		"there is no share":          second(observe.Crossings(crossed)),
		"0 is not between 1 and 100": second(observe.Crossings(crossed, 80, 0)),
		"101 is not between 1 and":   second(observe.Crossings(crossed, 101)),
	} {
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, says)
	}
}

func second(_ ratelimit.Observer, err error) error { return err }
