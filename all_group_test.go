package ratelimit

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/merge"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
)

// TestGroupsShareQueues of one client, the same algorithms and one clock, in any order of the claims.
func TestGroupsShareQueues(t *testing.T) {
	client, another := onMini(t).client, onMini(t).client
	bucket := func(c Client, burst int, opts ...Option) Claim {
		return ClaimOf(Must(NewTokenBucket(c, PerHour(1), burst, opts...)), "{t}", 1)
	}
	window := func(c Client, opts ...Option) Claim {
		return ClaimOf(Must(NewFixedWindow(c, 10, time.Hour, opts...)), "{t}", 1)
	}
	log := func(rules ...Rule) Claim { return ClaimOf(Must(NewSlidingLog(client, rules)), "{t}", 1) }
	clock, sameFunction := WithClock(time.Now), WithClock(time.Now)
	queues := func(claims ...Claim) *merge.Queues {
		g, err := groupOf(claims)
		require.NoError(t, err)
		if g.merger == nil {
			return nil
		}
		return g.merger.Queues
	}
	plain := queues(bucket(client, 1), window(client))
	byCaller := queues(bucket(client, 1, clock), window(client, clock))
	for name, test := range map[string]struct {
		queues, with *merge.Queues
		shared       bool
	}{
		"another plan":               {queues(bucket(client, 2), window(client)), plain, true},
		"claims in another order":    {queues(window(client), bucket(client, 2)), plain, true},
		"another client":             {queues(bucket(another, 1), window(another)), plain, false},
		"an estimate":                {queues(bucket(client, 1).Estimate(), window(client)), plain, false},
		"another algorithm":          {queues(bucket(client, 1), bucket(client, 1, WithName("b"))), plain, false},
		"logs of as many rules":      {queues(log(Rule{1, time.Second}, Rule{2, time.Hour})), queues(log(Rule{3, time.Minute}, Rule{5, time.Hour})), true},
		"a log of more rules":        {queues(log(Rule{1, time.Second}, Rule{2, time.Hour}, Rule{3, 2 * time.Hour})), queues(log(Rule{3, time.Minute}, Rule{5, time.Hour})), false},
		"a caller's clock":           {byCaller, plain, false},
		"the same clock":             {queues(bucket(client, 2, clock), window(client, sameFunction)), byCaller, true},
		"a clock of another option":  {queues(bucket(client, 2, sameFunction), window(client, clock)), byCaller, false},
		"the same clock, more apart": {queues(bucket(client, 2, clock, WithMaxSkew(time.Minute)), window(client, clock)), byCaller, false},
	} {
		require.NotNil(t, test.queues, name)
		require.Equal(t, test.shared, test.queues == test.with, name)
	}
	require.Nil(t, queues(bucket(client, 1, WithoutMerging()), window(client)))
	daily := func() Claim { return ClaimOf(Must(NewCalendarWindow(client, 1, Daily(time.UTC))), "{t}", 1) }
	require.NotSame(t, queues(daily(), window(client)), queues(daily(), window(client)), "each has instants of its own")
}

// TestAGroupIsMadeOnce for the same limiters, even beside ten thousand others.
func TestAGroupIsMadeOnce(t *testing.T) {
	client := onMini(t).client
	all := ClaimOf(Must(NewFixedWindow(client, 10, time.Hour)), "{t}", 1)
	made := map[*group]bool{}
	var plans []*TokenBucket
	for i := range 10_000 {
		plans = append(plans, Must(NewTokenBucket(client, PerHour(1), 1+i)))
	}
	for range 2 {
		for _, plan := range plans {
			g, err := groupOf([]Claim{all, ClaimOf(plan, "{t}", 1)})
			require.NoError(t, err)
			made[g] = true
		}
	}
	require.Len(t, made, len(plans))
	var shapes []*shape
	for g := range made {
		shapes = append(shapes, g.shape)
	}
	for _, s := range shapes {
		require.Same(t, shapes[0], s)
	}
}

// TestRequestsOfSeveralGroupsAreDecidedInTheOrderOfTheirCalls for one key, whichever plan each is of, in one
// batch. A plan of two permits and one of four, which share their state.
func TestRequestsOfSeveralGroupsAreDecidedInTheOrderOfTheirCalls(t *testing.T) {
	client := onMini(t).client
	small, large := Must(NewTokenBucket(client, PerHour(1), 2)), Must(NewTokenBucket(client, PerHour(1), 4))
	for _, common := range []bool{false, true} {
		t.Run(fmt.Sprint("a common key ", common), func(t *testing.T) {
			windows := [2]*FixedWindow{}
			for i := range windows { // with unequal windows no key is common to all requests
				limit := 10
				if !common {
					limit += i
				}
				windows[i] = Must(NewFixedWindow(client, limit, time.Hour, WithName(fmt.Sprint(common))))
			}
			require.NoError(t, small.Reset(ctx, "{t}"))
			require.NoError(t, Preload(ctx, ClaimOf(small, "{t}", 1), ClaimOf(windows[0], "{t}", 1)))
			plans := []*TokenBucket{large, small, large, small, large, small, large}
			outside := fakes.NewRelay(client)
			defer outside.Stop()
			results := make([]AllResult, len(plans))
			synctest.Test(t, func(t *testing.T) {
				first, open := fakes.Gate(outside, merge.FewCalls)
				queues := merge.NewQueues(first)
				claims := func(plan *TokenBucket, key string) []Claim {
					i := 0
					if plan == large {
						i = 1
					}
					return []Claim{ClaimOf(plan, key, 1), ClaimOf(windows[i], "{t}", 1)}
				}
				for _, plan := range []*TokenBucket{small, large} {
					g, err := groupOf(claims(plan, "{t}"))
					require.NoError(t, err)
					exec := *g.exec
					exec.Client, exec.Cost = first, redisexec.Cost{}
					g.exec, g.merger = &exec, queues.Merger(&merge.Limit{Exec: &exec, Name: asPacked})
				}
				for range merge.FewCalls {
					go func() { _, _ = TryAcquireAll(context.Background(), claims(small, "{t}first")...) }()
				}
				synctest.Wait()
				var called sync.WaitGroup
				for i, plan := range plans {
					called.Go(func() {
						var err error
						results[i], err = TryAcquireAll(context.Background(), claims(plan, "{t}")...)
						if err != nil {
							t.Error(err)
						}
					})
					synctest.Wait() // so that they come in this order
				}
				open()
				called.Wait()
				require.Equal(t, merge.FewCalls+1, first.Count(), "all in one execution")
			})
			var allowed []bool
			for _, r := range results {
				allowed = append(allowed, r.Allowed)
			}
			require.Equal(t, []bool{true, true, true, false, true, false, false}, allowed)
		})
	}
}

// BenchmarkGroupOf is what a call takes to find the group of its limiters: one that is kept, and one
// that is made, of algorithms that are known.
func BenchmarkGroupOf(b *testing.B) {
	client := onMini(b).client
	all := ClaimOf(Must(NewFixedWindow(client, 10, time.Hour)), "{t}", 1)
	for _, plans := range []int{1, 10_000, 4 * maxGroups} {
		var claims [][]Claim
		for i := range plans {
			claims = append(claims, []Claim{all, ClaimOf(Must(NewTokenBucket(client, PerHour(1), 1+i)), "{t}", 1)})
		}
		b.Run(fmt.Sprint("plans=", plans), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, err := groupOf(claims[i%plans]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
