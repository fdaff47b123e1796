package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"
)

// A replay sends one limiter's commands through a pipeline, so that the server
// does little else than to execute them.
type replay struct {
	name      string
	verdict   verdict
	next      func() []any // the next command
	decisions int          // of a command
}

// A bill is what the server paid for each decision.
type bill struct {
	micros float64 // of script time
	writes float64 // changes of the data
}

const batch = 128

// send sends count commands.
func (r replay) send(ctx context.Context, c *redis.Client, count int) error {
	for sent := 0; sent < count; {
		pipe := c.Pipeline()
		for ; sent < count && pipe.Len() < batch; sent++ {
			pipe.Do(ctx, r.next()...)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return fmt.Errorf("%s, %s: %w", r.name, r.verdict, err)
		}
	}
	return nil
}

// measure sends for d. INFO is asked through the same client, admin.
func (r replay) measure(ctx context.Context, c *redis.Client, d time.Duration) (bill, error) {
	before, err := takeTally(ctx, c)
	if err != nil {
		return bill{}, err
	}
	sent := 0
	for start := time.Now(); time.Since(start) < d; sent += batch {
		if err := r.send(ctx, c, batch); err != nil {
			return bill{}, err
		}
	}
	after, err := takeTally(ctx, c)
	if err != nil {
		return bill{}, err
	}
	cost := after.since(before)
	decisions := float64(sent * r.decisions)
	return bill{cost.scripts() / decisions, float64(cost.changes) / decisions}, nil
}

// random sends the recording for any of the users.
func (r recording) random(users int) func() []any {
	return func() []any { return r.command(rand.IntN(users), users) }
}

// inTurn sends the recording for each user after the other.
func (r recording) inTurn(users int) func() []any {
	i := 0
	return func() []any {
		i++
		return r.command((i-1)%users, users)
	}
}
