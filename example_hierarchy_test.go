package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
)

// A hierarchy limits a call by its API key, its team, its organisation and the provider of the model, in one decision.
type hierarchy struct {
	tokens                   ratelimit.Limiter // a minute, by the plan of the key
	teamDay, orgMonth, model ratelimit.Limiter
}

// newHierarchy returns limits whose plans are in a database. If Redis cannot be asked, tokens are allowed, and money is not spent.
func newHierarchy(client ratelimit.Client, planOf func(ctx context.Context, key string) (tokens int, err error)) hierarchy {
	opt := func(name string) []ratelimit.Option {
		return []ratelimit.Option{ratelimit.WithName(name), ratelimit.WithTicketLease(time.Minute)}
	}
	tokens := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerMinute(1_000), 1_000, opt("tokens of the key")...))
	byPlan := ratelimit.Must(ratelimit.NewChoice(func(ctx context.Context, key string) (ratelimit.Limiter, error) {
		most, err := planOf(ctx, key)
		if err != nil {
			return tokens, nil // the smallest plan
		}
		return tokens.With(ratelimit.PerMinute(most), most)
	}))
	team := ratelimit.Must(ratelimit.NewCalendarWindow(client, 2_000_000, ratelimit.Daily(time.UTC), opt("day of the team")...))
	org := ratelimit.Must(ratelimit.NewCalendarWindow(client, 30_000_000, ratelimit.Monthly(1, time.UTC), opt("month of the organisation")...))
	model := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerMinute(40_000), 40_000, opt("tokens of the provider")...))

	breaker := ratelimit.WithBreaker(&ratelimit.Breaker{})
	inOutages := func(l, secondary ratelimit.Limiter, opts ...ratelimit.PolicyOption) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewFallback(l, secondary, append(opts, ratelimit.WithBudget(time.Second), breaker)...))
	}
	allow, deny := ratelimit.AllowAll(), ratelimit.DenyAll()
	return hierarchy{
		inOutages(byPlan, allow, ratelimit.WithName("tokens of the key")), // a Choice has no name
		inOutages(team, deny), inOutages(org, deny), inOutages(model, allow),
	}
}

// ask takes estimates of all four, in tokens and in micro-dollars, or none. The keys have one hash tag, the provider.
func (h hierarchy) ask(ctx context.Context, org, team, key string, tokens, micros int) (ratelimit.AllResult, error) {
	orgKey := "{provider}:" + org
	teamKey := orgKey + ":" + team
	return ratelimit.TryAcquireAll(ctx,
		ratelimit.ClaimOf(h.tokens, teamKey+":"+key, tokens).Estimate(),
		ratelimit.ClaimOf(h.teamDay, teamKey, micros).Estimate(),
		ratelimit.ClaimOf(h.orgMonth, orgKey, micros).Estimate(),
		ratelimit.ClaimOf(h.model, "{provider}", tokens).Estimate(),
	)
}

// Key, team, organisation and provider: budgets of a day and a month beside tokens a minute.
func ExampleTryAcquireAll_hierarchy() {
	server, err := miniredis.Run() // a Redis in this process; use your own
	if err != nil {
		panic(err)
	}
	defer server.Close()
	server.SetTime(time.Date(2026, time.November, 25, 18, 0, 0, 0, time.UTC))
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1, DialerRetries: 1})
	defer client.Close()
	ctx := context.Background()

	plans := map[string]int{"key:9": 20_000}
	var database error
	h := newHierarchy(client, func(_ context.Context, key string) (int, error) {
		return plans[key[strings.LastIndex(key, "key:"):]], database
	})
	call := func(tokens, micros int, used map[string]int) {
		all, err := h.ask(ctx, "org:7", "team:3", "key:9", tokens, micros)
		if err != nil {
			panic(err)
		}
		if !all.Allowed {
			for _, p := range all.Parts {
				if !p.Result.Allowed && !p.Unknown {
					fmt.Printf("denied by the %s, retry after %v\n", p.Name, p.Result.RetryAfter)
				}
			}
			return
		}
		for _, p := range all.Parts {
			fmt.Printf("%s: %d of %d left\n", p.Name, p.Result.Remaining, p.Result.Limit)
		}
		err = all.Finish(ctx, func(p ratelimit.PartResult) int {
			if strings.HasPrefix(p.Name, "tokens") {
				return used["tokens"]
			}
			return used["micros"]
		})
		fmt.Println("settled:", err)
	}
	call(8_000, 1_500_000, map[string]int{"tokens": 6_000, "micros": 1_100_000})
	call(8_000, 1_500_000, nil)
	fmt.Println("the database is down")
	database = errors.New("down")
	call(900, 100_000, nil)
	fmt.Println("Redis is down")
	server.Close()
	call(100, 10_000, nil)
	// Output:
	// tokens of the key: 12000 of 20000 left
	// day of the team: 500000 of 2000000 left
	// month of the organisation: 28500000 of 30000000 left
	// tokens of the provider: 32000 of 40000 left
	// settled: <nil>
	// denied by the day of the team, retry after 6h0m0s
	// the database is down
	// denied by the tokens of the key, retry after 17.7s
	// Redis is down
	// denied by the day of the team, retry after 1s
}
