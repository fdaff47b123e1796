package ratelimit_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/redisclient"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// A keeper is a client that keeps one reply back, after Redis has executed its command.
type keeper struct {
	redisclient.Client

	mu   sync.Mutex
	sent int
	of   string        // the reply to a command with this in the name of its key; "": none
	open chan struct{} // when the reply may pass
}

func (h *keeper) Process(ctx context.Context, cmd redis.Cmder) error {
	err := h.Client.Process(ctx, cmd)
	h.mu.Lock()
	h.sent++
	open := h.open
	kept := err == nil && h.of != "" && h.about(cmd)
	if kept {
		h.of = ""
	}
	h.mu.Unlock()
	if kept {
		<-open
	}
	return err
}

func (h *keeper) about(cmd redis.Cmder) bool {
	if len(cmd.Args()) < 4 {
		return false
	}
	switch key := cmd.Args()[3].(type) {
	case *string:
		return strings.Contains(*key, h.of)
	case string:
		return strings.Contains(key, h.of)
	}
	return false
}

func (h *keeper) keep(of string) { h.of, h.open = of, make(chan struct{}) }

func (h *keeper) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sent
}

// A nested is a bucket of 10, which no time refills, with policies around it.
type nested struct {
	t      *testing.T
	client *keeper
	bucket *ratelimit.TokenBucket
	beside *ratelimit.FixedWindow // of 1, which another script decides
	slots  *ratelimit.InFlight
	limit  reservingOperator
}

type reservingOperator interface {
	ratelimit.Limiter
	ratelimit.Settler
	Reserve(ctx context.Context, key string, n int, maxWait time.Duration) (*ratelimit.Reservation, error)
}

// denied has the policies remember a denial: what is to be given back is taken.
func (n *nested) denied() {
	n.t.Helper()
	r := must(n.t)(n.limit.TryAcquire(n.t.Context(), "k"))
	require.False(n.t, r.Allowed)
	require.False(n.t, r.Fallback)
	sent := n.client.count()
	require.False(n.t, must(n.t)(n.limit.TryAcquire(n.t.Context(), "k")).Allowed)
	require.Equal(n.t, sent, n.client.count(), "the denial is not remembered")
}

// kept runs call, whose reply about a key of a limiter named of is kept until a denial is remembered.
func (n *nested) kept(of string, call func(ctx context.Context), leaves bool) {
	n.t.Helper()
	n.client.keep(of)
	within, cancel := context.WithCancel(n.t.Context())
	defer cancel()
	var called sync.WaitGroup
	called.Go(func() { call(within) })
	synctest.Wait()
	if n.client.of != "" {
		n.t.Fatal("nothing was kept")
	}
	if !leaves {
		time.Sleep(nestedBudget + time.Millisecond) // if there is a budget, the call is over it
		synctest.Wait()
	}
	n.denied()
	if leaves {
		cancel()
		synctest.Wait()
	}
	close(n.client.open)
	called.Wait()
	synctest.Wait()
}

const nestedBudget = 10 * time.Millisecond

// TestWhatIsGivenBackIsNotDenied: whatever gives permits back, at once or late, and whichever way its call came, a
// cache of denials around the limiter denies nothing that the limiter would allow.
func TestWhatIsGivenBackIsNotDenied(t *testing.T) {
	cached := func(l ratelimit.Limiter) reservingOperator { return ratelimit.Must(ratelimit.NewDenyCache(l)) }
	chosen := func(l ratelimit.Limiter) reservingOperator {
		return ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) { return l, nil }))
	}
	shadowed := func(l ratelimit.Limiter) reservingOperator {
		return ratelimit.Must(ratelimit.NewShadow(l, ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerHour(1), 10)), func(ratelimit.Trial) {}))
	}
	// A secondary that denies would be remembered nowhere; what it allows gives nothing back.
	fallback := func(l ratelimit.Limiter) reservingOperator {
		return ratelimit.Must(ratelimit.NewFallback(l, ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerHour(1), 100)), ratelimit.WithBudget(nestedBudget)))
	}
	nestings := []struct {
		name   string
		budget bool
		around func(l ratelimit.Limiter) reservingOperator
	}{
		{"cache", false, cached},
		{"cache, cache", false, func(l ratelimit.Limiter) reservingOperator { return cached(cached(l)) }},
		{"cache, Choice", false, func(l ratelimit.Limiter) reservingOperator { return cached(chosen(l)) }},
		{"Choice, cache", false, func(l ratelimit.Limiter) reservingOperator { return chosen(cached(l)) }},
		{"Shadow, cache", false, func(l ratelimit.Limiter) reservingOperator { return shadowed(cached(l)) }},
		{"cache, Fallback", true, func(l ratelimit.Limiter) reservingOperator { return cached(fallback(l)) }},
		{"Fallback, cache", true, func(l ratelimit.Limiter) reservingOperator { return fallback(cached(l)) }},
		{"Fallback, Shadow, cache", true, func(l ratelimit.Limiter) reservingOperator { return fallback(shadowed(cached(l))) }},
		{"cache, Fallback, cache", true, func(l ratelimit.Limiter) reservingOperator { return cached(fallback(cached(l))) }},
		{"Shadow, Fallback, cache, Choice, cache", true, func(l ratelimit.Limiter) reservingOperator { return shadowed(fallback(cached(chosen(cached(l))))) }},
	}
	settled := func(n *nested, ticket *ratelimit.Ticket, r ratelimit.Result, err error) {
		require.NoError(n.t, err)
		require.True(n.t, r.Allowed)
		n.denied()
		require.NoError(n.t, ticket.Settle(n.t.Context(), 4))
	}
	estimates := func(n *nested) []ratelimit.Claim {
		return []ratelimit.Claim{ratelimit.ClaimOf(n.limit, "k", 10).Estimate(), ratelimit.ClaimHold(n.slots, "k", 1)}
	}
	type way struct {
		name   string
		left   int  // permits in the end
		budget bool // it needs one

		run func(n *nested)
	}
	ways := []way{
		{"an estimate settled for less", 6, false, func(n *nested) {
			ticket, r, err := n.limit.Estimate(n.t.Context(), "k", 10)
			settled(n, ticket, r, err)
		}},
		{"an estimate over budget", 10, true, func(n *nested) {
			n.kept("bucket", func(ctx context.Context) { _, _, _ = n.limit.Estimate(ctx, "k", 10) }, false)
		}},
		{"an estimate within a budget whose caller leaves", 10, true, func(n *nested) {
			n.kept("bucket", func(ctx context.Context) { _, _, _ = n.limit.Estimate(ctx, "k", 10) }, true)
		}},
		{"a reservation that is cancelled", 5, false, func(n *nested) {
			must(n.t)(n.bucket.TryAcquireN(n.t.Context(), "k", 5))
			r, err := n.limit.Reserve(n.t.Context(), "k", 10, 24*time.Hour)
			require.NoError(n.t, err)
			n.denied()
			require.NoError(n.t, r.Cancel(n.t.Context()))
		}},
		{"a reservation whose caller leaves", 10, false, func(n *nested) {
			n.kept("bucket", func(ctx context.Context) { _, _ = n.limit.Reserve(ctx, "k", 10, 0) }, true)
		}},
		{"a reservation over budget", 10, true, func(n *nested) {
			n.kept("bucket", func(ctx context.Context) { _, _ = n.limit.Reserve(ctx, "k", 10, 0) }, false)
		}},
		{"a wait whose caller leaves while it sleeps", 5, false, func(n *nested) {
			must(n.t)(n.bucket.TryAcquireN(n.t.Context(), "k", 5))
			within, cancel := context.WithCancel(n.t.Context())
			var waits sync.WaitGroup
			waits.Go(func() { _, _ = ratelimit.WaitN(within, n.limit, "k", 10) })
			synctest.Wait()
			n.denied()
			cancel()
			waits.Wait()
		}},
		{"a wait whose caller leaves in flight", 10, false, func(n *nested) {
			n.kept("bucket", func(ctx context.Context) { _, _ = ratelimit.WaitN(ctx, n.limit, "k", 10) }, true)
		}},
		{"a wait over budget", 10, true, func(n *nested) {
			n.kept("bucket", func(ctx context.Context) { _, _ = ratelimit.WaitN(ctx, n.limit, "k", 10) }, false)
		}},
		{"an estimate among several, settled for less", 6, false, func(n *nested) {
			all, err := ratelimit.TryAcquireAll(n.t.Context(), ratelimit.ClaimOf(n.limit, "k", 10).Estimate(), ratelimit.ClaimOf(n.beside, "k", 1))
			require.NoError(n.t, err)
			settled(n, all.Parts[0].Ticket, all.Result, nil)
		}},
		{"an estimate beside a hold, settled and released", 6, false, func(n *nested) {
			all, err := ratelimit.TryAcquireAll(n.t.Context(), estimates(n)...)
			require.NoError(n.t, err)
			require.True(n.t, all.Allowed)
			n.denied()
			require.NoError(n.t, all.Finish(n.t.Context(), func(ratelimit.PartResult) int { return 4 }))
		}},
		{"an estimate beside a hold, over budget", 10, true, func(n *nested) {
			n.kept("bucket", func(ctx context.Context) { _, _ = ratelimit.TryAcquireAll(ctx, estimates(n)...) }, false)
		}},
		{"an estimate beside a hold, whose caller leaves", 10, true, func(n *nested) {
			n.kept("bucket", func(ctx context.Context) { _, _ = ratelimit.TryAcquireAll(ctx, estimates(n)...) }, true)
		}},
		{"undone by a denial on another slot", 10, false, func(n *nested) {
			must(n.t)(n.beside.TryAcquire(n.t.Context(), "k"))
			// Two claims of one key count together, and have different policies around them.
			claims := []ratelimit.Claim{ratelimit.ClaimOf(n.bucket, "k", 1), ratelimit.ClaimOf(n.limit, "k", 5), ratelimit.ClaimOf(n.limit, "k", 4), ratelimit.ClaimOf(n.beside, "k", 1)}
			n.kept("beside", func(ctx context.Context) {
				r, err := ratelimit.TryAcquireAcrossSlots(ctx, claims...)
				if err == nil && r.Allowed && !r.Parts[1].Result.Fallback {
					n.t.Error("allowed")
				}
			}, true)
		}},
	}
	s := limitertest.OnMiniredis(t)
	byCaller := ratelimit.WithClock(func() time.Time { return limitertest.Start })
	for _, claim := range []ratelimit.Claim{
		ratelimit.ClaimOf(ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerHour(1), 10)), "k", 1),
		ratelimit.ClaimHold(ratelimit.Must(ratelimit.NewInFlight(s.Client, 5, time.Hour)), "k", 1),
		ratelimit.ClaimOf(ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 1, time.Hour)), "k", 1),
		ratelimit.ClaimOf(ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 1, time.Hour, byCaller)), "k", 1),
	} {
		require.NoError(t, ratelimit.Preload(t.Context(), claim))
	}
	for i, nesting := range nestings {
		for j, way := range ways {
			if way.budget && !nesting.budget {
				continue
			}
			t.Run(way.name+": "+nesting.name, func(t *testing.T) {
				relay := fakes.NewRelay(s.Client)
				defer relay.Stop()
				synctest.Test(t, func(t *testing.T) {
					n := &nested{t: t, client: &keeper{Client: relay}}
					name := fmt.Sprintf("-%d-%d", i, j)
					n.bucket = ratelimit.Must(ratelimit.NewTokenBucket(n.client, ratelimit.PerHour(1), 10, ratelimit.WithName("bucket"+name)))
					n.slots = ratelimit.Must(ratelimit.NewInFlight(n.client, 5, time.Hour, ratelimit.WithName("slots"+name)))
					beside := []ratelimit.Option{ratelimit.WithName("beside" + name)}
					if strings.Contains(way.name, "slot") {
						beside = append(beside, byCaller) // which no script decides together with the bucket
					}
					n.beside = ratelimit.Must(ratelimit.NewFixedWindow(n.client, 1, time.Hour, beside...))
					n.limit = nesting.around(n.bucket)
					way.run(n)
					synctest.Wait()
					left := must(t)(n.bucket.Peek(t.Context(), "k")).Remaining
					require.Equal(t, way.left, left)
					require.True(t, must(t)(n.limit.TryAcquireN(t.Context(), "k", left)).Allowed, "the limiter would allow it")
				})
			})
		}
	}
}

// TestWhatIsGivenBackInMemoryIsNotDenied: the same of a bucket in this process.
func TestWhatIsGivenBackInMemoryIsNotDenied(t *testing.T) {
	for name, take := range map[string]func(t *testing.T, c *ratelimit.DenyCache) (giveBack func() error){
		"estimate": func(t *testing.T, c *ratelimit.DenyCache) func() error {
			ticket, _, err := c.Estimate(t.Context(), "k", 10)
			require.NoError(t, err)
			return func() error { return ticket.Settle(t.Context(), 0) }
		},
		"estimate among several": func(t *testing.T, c *ratelimit.DenyCache) func() error {
			beside := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerHour(1), 1))
			all, err := ratelimit.TryAcquireAll(t.Context(), ratelimit.ClaimOf(beside, "k", 1), ratelimit.ClaimOf(c, "k", 10).Estimate())
			require.NoError(t, err)
			return func() error { return all.Parts[1].Ticket.Settle(t.Context(), 0) }
		},
		"reservation": func(t *testing.T, c *ratelimit.DenyCache) func() error {
			must(t)(c.Inside().TryAcquireN(t.Context(), "k", 1))
			r, err := c.Reserve(t.Context(), "k", 10, 24*time.Hour)
			require.NoError(t, err)
			return func() error { return r.Cancel(t.Context()) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := ratelimit.Must(ratelimit.NewDenyCache(ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerHour(1), 10))))
			giveBack := take(t, c)
			require.False(t, must(t)(c.TryAcquire(t.Context(), "k")).Allowed)
			require.NoError(t, giveBack())
			require.True(t, must(t)(c.TryAcquire(t.Context(), "k")).Allowed)
		})
	}
}

// TestATrialHearsOfACancelledReservation, before and after it has answered, and of one that the library cancels for a
// caller who left.
func TestATrialHearsOfACancelledReservation(t *testing.T) {
	const late = 20 * time.Millisecond
	slow := func(l ratelimit.Limiter) ratelimit.Limiter { // answers after a while
		return ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) {
			time.Sleep(late)
			return l, nil
		}))
	}
	for _, test := range []struct {
		name       string
		slowTrial  bool
		overBudget bool
		leave      func(ctx context.Context, cancel func(), l reservingOperator) error
	}{
		{"cancelled", false, false, func(ctx context.Context, _ func(), l reservingOperator) error {
			r, err := l.Reserve(ctx, "k", 10, 24*time.Hour)
			if err != nil {
				return err
			}
			synctest.Wait()
			return r.Cancel(ctx)
		}},
		{"cancelled before the trial has answered", true, false, func(ctx context.Context, _ func(), l reservingOperator) error {
			r, err := l.Reserve(ctx, "k", 10, 24*time.Hour)
			if err != nil {
				return err
			}
			return r.Cancel(ctx)
		}},
		{"a wait that is left", false, false, func(ctx context.Context, cancel func(), l reservingOperator) error {
			time.AfterFunc(time.Minute, cancel)
			_, err := ratelimit.WaitN(ctx, l, "k", 10)
			return err
		}},
		{"over budget", false, true, func(ctx context.Context, _ func(), l reservingOperator) error {
			_, err := l.Reserve(ctx, "k", 10, 24*time.Hour)
			return err
		}},
		{"over budget, before the trial has answered", true, true, func(ctx context.Context, _ func(), l reservingOperator) error {
			_, err := l.Reserve(ctx, "k", 10, 24*time.Hour)
			return err
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				enforced := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerHour(1), 10))
				must(t)(enforced.TryAcquireN(t.Context(), "k", 5))
				trial := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerHour(1), 10))
				var within, asked ratelimit.Limiter = enforced, trial
				if test.overBudget {
					within = slow(enforced)
				}
				if test.slowTrial {
					asked = slow(trial)
				}
				reported := make(chan ratelimit.Trial, 1)
				limit := reservingOperator(ratelimit.Must(ratelimit.NewShadow(within, asked, func(t ratelimit.Trial) { reported <- t })))
				if test.overBudget {
					limit = ratelimit.Must(ratelimit.NewFallback(limit, ratelimit.AllowAll(), ratelimit.WithBudget(late/2)))
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				err := test.leave(ctx, cancel, limit)
				if ctx.Err() == nil {
					require.NoError(t, err)
				}
				require.True(t, (<-reported).Result.Allowed)
				time.Sleep(3 * late)
				require.Equal(t, 5, must(t)(enforced.Peek(t.Context(), "k")).Remaining)
				require.Equal(t, 10, must(t)(trial.Peek(t.Context(), "k")).Remaining, "the trial keeps what it has reserved")
			})
		})
	}
}
