package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
)

// An answer streams, and three budgets pay for it. The second one says no while the first has given a further slice: the answer is
// cut where its reserve ends, and Do settles all by what was sent, so that the slice comes back.
func ExampleTicket_More() {
	server, err := miniredis.Run() // a Redis in this process; use your own
	if err != nil {
		panic(err)
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	ctx := context.Background()

	budget := func(name string, limit int) *ratelimit.CalendarWindow {
		return ratelimit.Must(ratelimit.NewCalendarWindow(client, limit, ratelimit.Monthly(1, time.UTC),
			ratelimit.WithName(name), ratelimit.WithTicketLease(time.Minute)))
	}
	key, team, organisation := budget("key", 100), budget("team", 50), budget("organisation", 1_000)

	const slice, piece = 20, 10
	all, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(key, "k", slice).Estimate(),
		ratelimit.ClaimOf(team, "k", slice).Estimate(), ratelimit.ClaimOf(organisation, "k", slice).Estimate())
	if err != nil {
		panic(err) // no decision was made
	}
	reserved, sent := slice, 0 // reserved in each of the budgets
	more := func() error {
		for _, part := range all.Parts {
			if r, err := part.Ticket.More(ctx, slice); err != nil || !r.Allowed {
				return errors.Join(err, r.Err())
			}
		}
		reserved += slice
		return nil
	}
	err = all.Do(ctx, func(context.Context) error {
		for range 7 { // what the model sends
			if sent+piece > reserved {
				if err := more(); err != nil {
					return err // the answer ends here
				}
			}
			sent += piece
		}
		return nil
	}, func(ratelimit.PartResult) int { return sent })
	fmt.Println("cut:", errors.Is(err, ratelimit.ErrDenied), "after", sent)

	for _, b := range []*ratelimit.CalendarWindow{key, team, organisation} {
		now, err := b.Peek(ctx, "k")
		if err != nil {
			panic(err)
		}
		fmt.Println(b.Name(), now.Remaining, "of", now.Limit)
	}
	// Output:
	// cut: true after 40
	// key 60 of 100
	// team 10 of 50
	// organisation 960 of 1000
}
