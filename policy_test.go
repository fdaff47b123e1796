package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// policies are all decorators, each around any limiter.
var policies = []limitertest.Composition{
	{Name: "DenyCache", Around: cached},
	{Name: "Fallback", Around: func(t testing.TB, _ *limitertest.Stage, l ratelimit.Limiter) ratelimit.Limiter {
		breaker := &ratelimit.Breaker{}
		return ratelimit.Must(ratelimit.NewFallback(l, failing, ratelimit.WithBudget(time.Minute), ratelimit.WithBreaker(breaker)))
	}},
	{Name: "Choice", Around: func(_ testing.TB, _ *limitertest.Stage, l ratelimit.Limiter) ratelimit.Limiter { return chosen(l) }},
	{Name: "Shadow", Around: func(_ testing.TB, _ *limitertest.Stage, l ratelimit.Limiter) ratelimit.Limiter { return shadowed(l) }},
	{Name: "Leased", Around: leased},
}

// leased puts slices in front of a bucket on Redis. Around anything else it is a Choice.
func leased(_ testing.TB, s *limitertest.Stage, l ratelimit.Limiter) ratelimit.Limiter {
	around, err := ratelimit.NewLeased(l, ratelimit.WithMaxKeys(64))
	if err != nil {
		return chosen(l)
	}
	around.SetClock(func() time.Time { return s.Now })
	return around
}

// operator is what every decorator can do.
type operator interface {
	ratelimit.Limiter
	ratelimit.Settler
	ratelimit.PartialTaker
}

// An operation does something to a limiter, whose limit is 3 and whose key is new, and returns all that it was told.
type operation struct {
	name string
	do   func(t *testing.T, l operator) []any
}

var operations = []operation{
	{"take n", func(t *testing.T, l operator) []any {
		return []any{must(t)(l.TryAcquireN(ctx, "k", 2)), must(t)(l.TryAcquireN(ctx, "k", 2)), must(t)(l.TryAcquire(ctx, "k"))}
	}},
	{"take up to n", func(t *testing.T, l operator) (told []any) {
		for range 2 {
			taken, r, err := l.TryAcquireUpTo(ctx, "k", 2)
			require.NoError(t, err)
			told = append(told, taken, r)
		}
		return told
	}},
	{"estimate and settle", func(t *testing.T, l operator) []any {
		ticket, r, err := l.Estimate(ctx, "k", 3)
		require.NoError(t, err)
		none, denied, err := l.Estimate(ctx, "k", 1)
		require.NoError(t, err)
		require.Nil(t, none)
		require.NoError(t, ticket.Settle(ctx, 1))
		return []any{r, denied, must(t)(l.TryAcquireN(ctx, "k", 2)), errors.Is(ticket.Settle(ctx, 1), ratelimit.ErrSettled)}
	}},
	{"charge", func(t *testing.T, l operator) []any {
		return []any{must(t)(l.Charge(ctx, "k", 5)), must(t)(l.TryAcquire(ctx, "k")), must(t)(l.Peek(ctx, "k"))}
	}},
	{"credit", func(t *testing.T, l operator) []any {
		taken := must(t)(l.TryAcquireN(ctx, "k", 3))
		given, err := l.Credit(ctx, "k", 2)
		if err != nil { // a sliding window or a log
			require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		}
		return []any{taken, given, err != nil, must(t)(l.Peek(ctx, "k"))}
	}},
	{"reserve", func(t *testing.T, l operator) (told []any) {
		bucket, ok := l.(ratelimit.Reserver)
		if !ok {
			return []any{ratelimit.ErrInvalidConfig.Error(), ratelimit.ErrInvalidConfig.Error()}
		}
		for range 2 {
			r, err := bucket.Reserve(ctx, "k", 2, time.Minute)
			if errors.Is(err, ratelimit.ErrInvalidConfig) {
				told = append(told, ratelimit.ErrInvalidConfig.Error())
				continue
			}
			require.NoError(t, err)
			told = append(told, r.Result(), r.Delay() > 0)
			if r.Delay() > 0 {
				require.NoError(t, r.Cancel(ctx))
				told = append(told, must(t)(l.Peek(ctx, "k")))
			}
		}
		return told
	}},
	{"wait", func(t *testing.T, l operator) []any {
		r := must(t)(ratelimit.WaitN(ctx, l, "k", 3))
		within, cancel := context.WithTimeout(ctx, 500*time.Millisecond) // both would have to wait for longer
		defer cancel()
		_, err := ratelimit.WaitN(within, l, "k", 3)
		return []any{r, errors.Is(err, ratelimit.ErrWaitTooLong)}
	}},
	{"several at once", func(t *testing.T, l operator) (told []any) {
		for _, n := range []int{2, 2, 1} {
			all, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(l, "k", n).Estimate(), ratelimit.ClaimOf(l, "other", 1))
			require.NoError(t, err)
			told = append(told, all.Result, all.Parts[0].Result, all.Parts[1].Result, all.Parts[0].Ticket != nil)
			if all.Allowed && n == 1 {
				require.NoError(t, all.Parts[0].Ticket.Settle(ctx, 0))
			}
		}
		told = append(told, must(t)(l.Peek(ctx, "k")), must(t)(l.Peek(ctx, "other")))
		look, err := ratelimit.Look(ctx, ratelimit.ClaimOf(l, "k", 1), ratelimit.ClaimOf(l, "other", 2))
		require.NoError(t, err)
		return append(told, look.Result, look.Parts[0].Result, look.Parts[1].Result)
	}},
	{"reset", func(t *testing.T, l operator) []any {
		must(t)(l.TryAcquireN(ctx, "k", 3))
		denied := must(t)(l.TryAcquire(ctx, "k"))
		require.NoError(t, l.Reset(ctx, "k"))
		return []any{denied, must(t)(l.TryAcquire(ctx, "k"))}
	}},
}

// TestEveryOperationThroughEveryPolicy: a limiter answers alike bare, in each policy, and in every ordered pair of them that can
// be built.
func TestEveryOperationThroughEveryPolicy(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	bare := map[string]func(name string) operator{
		"TokenBucket": func(name string) operator {
			return ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1), 3, ratelimit.WithName(name)))
		},
		"SlidingLog": func(name string) operator {
			return ratelimit.Must(ratelimit.NewSlidingLog(s.Client, []ratelimit.Rule{{Limit: 3, Window: time.Minute}}, ratelimit.WithName(name)))
		},
		"FixedWindow": func(name string) operator {
			return ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 3, time.Minute, ratelimit.WithName(name)))
		},
		"TokenBucket.With": func(name string) operator {
			return ratelimit.Must(ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(10), 20, ratelimit.WithName(name))).With(ratelimit.PerSecond(1), 3))
		},
		"LocalTokenBucket.With": func(name string) operator {
			clock := ratelimit.WithClock(func() time.Time { return s.Now })
			return ratelimit.Must(ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(10), 20, clock, ratelimit.WithName(name))).With(ratelimit.PerSecond(1), 3))
		},
	}
	type stack struct {
		name   string
		around func(ratelimit.Limiter) (ratelimit.Limiter, error)
	}
	var stacks []stack
	for _, p := range policies {
		stacks = append(stacks, stack{p.Name, func(l ratelimit.Limiter) (ratelimit.Limiter, error) { return p.Around(t, s, l), nil }})
		for _, inside := range policies {
			stacks = append(stacks, stack{p.Name + " around " + inside.Name, func(l ratelimit.Limiter) (ratelimit.Limiter, error) {
				inner := inside.Around(t, s, l)
				if p.Name == "DenyCache" {
					if _, err := ratelimit.NewDenyCache(inner); err != nil {
						return nil, err
					}
				}
				return p.Around(t, s, inner), nil
			}})
		}
	}
	for algorithm, build := range bare {
		for _, o := range operations {
			s.Wipe(t)
			want := o.do(t, build("bare"))
			for i, st := range stacks {
				t.Run(fmt.Sprintf("%s, %s, %s", o.name, st.name, algorithm), func(t *testing.T) {
					l, err := st.around(build(fmt.Sprintf("in%d", i)))
					if st.name == "DenyCache around Shadow" {
						require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
						return
					}
					require.NoError(t, err)
					require.Equal(t, want, o.do(t, l.(operator)))
				})
			}
		}
	}
}

// TestTheGuideNamesTheseOperations as those that go through every decorator.
func TestTheGuideNamesTheseOperations(t *testing.T) {
	page, err := os.ReadFile("docs/composing.md")
	require.NoError(t, err)
	var names []string
	for _, o := range operations {
		names = append(names, o.name)
	}
	require.Contains(t, strings.Join(strings.Fields(string(page)), " "), strings.Join(names, ", ")+".")
}

// counting is a user's limiter that embeds a bucket, and does more.
type counting struct {
	*ratelimit.TokenBucket
	calls int
}

func (c *counting) TryAcquireN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	c.calls++
	return c.TokenBucket.TryAcquireN(ctx, key, n)
}

// TestAWaitPassesOverNoTypeOfAUsers: through a policy too, a type that embeds a bucket is asked, and nothing is reserved past it.
func TestAWaitPassesOverNoTypeOfAUsers(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	for _, p := range policies {
		users := &counting{TokenBucket: ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1), 3, ratelimit.WithName(p.Name)))}
		l := p.Around(t, s, users)
		require.True(t, must(t)(ratelimit.WaitN(ctx, l, "k", 2)).Allowed)
		require.Equal(t, 1, users.calls, p.Name)
		_, err := l.(ratelimit.Reserver).Reserve(ctx, "k", 1, time.Minute)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig, p.Name)
	}
}

// TestADenialOfSeveralClaimsIsNotThatOfOne: claims of one limiter and key count together, whatever policies are around each, and
// a cache does not take the denial of their sum for one of a single claim.
func TestADenialOfSeveralClaimsIsNotThatOfOne(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	for _, p := range append(policies, limitertest.Composition{Name: "nothing", Around: func(_ testing.TB, _ *limitertest.Stage, l ratelimit.Limiter) ratelimit.Limiter { return l }}) {
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1), 3, ratelimit.WithName("joined "+p.Name)))
		cache := cached(t, s, bucket).(*ratelimit.DenyCache)
		around := p.Around(t, s, bucket)
		require.True(t, must(t)(bucket.TryAcquire(ctx, "k")).Allowed)
		all, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(cache, "k", 2), ratelimit.ClaimOf(around, "k", 1))
		require.NoError(t, err)
		require.False(t, all.Allowed, p.Name)
		require.True(t, must(t)(cache.TryAcquireN(ctx, "k", 2)).Allowed, "%s: two are left", p.Name)

		other := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1), 3, ratelimit.WithName("other "+p.Name)))
		all, err = ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(cache, "k", 2), ratelimit.ClaimOf(p.Around(t, s, other), "k", 1))
		require.NoError(t, err)
		require.False(t, all.Allowed, p.Name)
		require.NoError(t, bucket.Reset(ctx, "k"))
		require.False(t, must(t)(cache.TryAcquireN(ctx, "k", 2)).Allowed, "%s: another limiter's claim for the key joins nothing, and the denial is remembered", p.Name)
	}
}
