package ratelimit_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
	"github.com/tryacquire/ratelimit/internal/testing/ticketleases"
)

// TestTicketScriptsDecideAsTheSearchedModel replays histories of internal/testing/ticketleases on the scripts.
func TestTicketScriptsDecideAsTheSearchedModel(t *testing.T) {
	raceflag.SkipSequential(t)
	for name, r := range map[string]ticketleases.Rules{
		"a window":        {Limit: 3, Span: 5, Lease: 2, Most: 2, Losses: true, Steps: []int8{-1, -3, 2}},
		"a short window":  {Limit: 3, Span: 2, Lease: 3, Most: 2, Losses: true},
		"a bucket":        {Bucket: true, Limit: 3, Permit: 2, Flow: 1, Lease: 2, Most: 2, Losses: true, Bare: true, Steps: []int8{-1, 2}},
		"a faster bucket": {Bucket: true, Limit: 3, Permit: 2, Flow: 3, Lease: 3, Most: 2},
		"a log": {
			Windows: []ticketleases.Window{{Limit: 2, Span: 2}, {Limit: 3, Span: 5}}, Limit: 2, Lease: 2, Most: 2,
			Losses: true, Bare: true, Steps: []int8{2},
		},
		"a list": {
			Windows: []ticketleases.Window{{Limit: 3, Span: 4}}, Slot: 2, Limit: 3, Lease: 3, Most: 2,
			Losses: true, Steps: []int8{1, 2},
		},
		// Windows so long that nothing leaves: what has left may come back when the clock steps back.
		"a log, the clock steps back": {
			Windows: []ticketleases.Window{{Limit: 2, Span: 30}, {Limit: 3, Span: 60}}, Limit: 2, Lease: 2, Most: 2,
			Losses: true, Steps: []int8{-1, -3},
		},
		"a list, the clock steps back": {
			Windows: []ticketleases.Window{{Limit: 3, Span: 60}}, Slot: 2, Limit: 3, Lease: 3, Most: 2,
			Losses: true, Steps: []int8{-1, -3},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rng := model.Seeded(limitertest.Seed(t))
			found := ticketleases.Search(&r, 4, 4)
			s := newTicketReplay(t, &r)
			for range limitertest.Rounds(20_000, 400) {
				s.play(t, found.Number(rng.IntN(found.Len())))
			}
		})
	}
}

// A ticketReplay plays histories on miniredis, by its clock. A tick is a second.
type ticketReplay struct {
	rules        *ticketleases.Rules
	server       *miniredis.Miniredis
	leased, bare settling
	now          time.Time // by the server's clock
	losing       ticketleases.Losing
}

func newTicketReplay(t *testing.T, r *ticketleases.Rules) *ticketReplay {
	p := &ticketReplay{rules: r, server: miniredis.RunT(t)}
	p.server.ClockTTL(true)
	p.server.SetTime(limitertest.Start)
	client := redis.NewClient(&redis.Options{Addr: p.server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	lossy := fakes.NewClient(func(ctx context.Context, cmd redis.Cmder) error {
		if p.losing == ticketleases.TheRequest {
			return errLost
		}
		err := client.Process(ctx, cmd)
		if p.losing == ticketleases.TheReply && !redis.HasErrorPrefix(err, "NOSCRIPT") {
			return errLost
		}
		return err
	})
	build := func(opts ...ratelimit.Option) settling {
		if r.Bucket {
			rate := ratelimit.Per(int(r.Flow), ticks(int(r.Permit)))
			return ratelimit.Must(ratelimit.NewTokenBucket(lossy, rate, int(r.Limit), append(opts, ratelimit.WithExactReturns())...))
		}
		switch {
		case r.Slot > 0:
			window := r.Windows[0]
			opts = append(opts, ratelimit.WithSubWindows(int(window.Span/r.Slot)))
			return ratelimit.Must(ratelimit.NewSlidingWindow(lossy, int(window.Limit), ticks(int(window.Span)), opts...))
		case r.Windows != nil:
			var rules []ratelimit.Rule
			for _, w := range r.Windows {
				rules = append(rules, ratelimit.Rule{Limit: int(w.Limit), Window: ticks(int(w.Span))})
			}
			return ratelimit.Must(ratelimit.NewSlidingLog(lossy, rules, opts...))
		}
		return ratelimit.Must(ratelimit.NewFixedWindow(lossy, int(r.Limit), ticks(int(r.Span)), opts...))
	}
	p.leased, p.bare = build(ratelimit.WithTicketLease(ticks(int(r.Lease)))), build()
	return p
}

func (p *ticketReplay) play(t *testing.T, h ticketleases.History) {
	p.server.FlushAll()
	p.now = limitertest.Start
	if p.rules.Windows != nil { // at the last instant of a tick, at which permits are dated
		p.now = p.now.Truncate(ticks(int(max(p.rules.Slot, 1)))).Add(ticks(1) - time.Microsecond)
	}
	p.server.SetTime(p.now)
	player := ticketleases.Player{Rules: p.rules}
	var held []*ratelimit.Ticket
	for i, m := range h {
		if !p.rules.Bucket && p.rules.Windows == nil { // a window that is over ends up to 3 ms late
			p.move(5 * time.Millisecond)
		}
		p.move(ticks(int(m.Pause)))
		mayForget := player.Wait(m.Pause)
		if m.Op == ticketleases.Forget {
			return // Redis does it when it does
		}
		want := player.Play(m)
		var of *ratelimit.Ticket
		if m.Op == ticketleases.More || m.Op == ticketleases.Extend || m.Op == ticketleases.Settle {
			of = held[m.Of]
		}
		var r ratelimit.Result
		var ticket *ratelimit.Ticket
		var err error
		p.losing = m.Lost
		switch m.Op {
		case ticketleases.Take:
			r, err = p.leased.TryAcquireN(ctx, "k", int(m.N))
		case ticketleases.Bare:
			r, err = p.bare.TryAcquireN(ctx, "k", int(m.N))
		case ticketleases.Peek:
			_, err = p.leased.Peek(ctx, "k")
		case ticketleases.Estimate:
			ticket, r, err = p.leased.Estimate(ctx, "k", int(m.N))
		case ticketleases.More:
			r, err = of.More(ctx, int(m.N))
		case ticketleases.Extend:
			err = of.Extend(ctx)
		case ticketleases.Settle:
			err = of.Settle(ctx, int(m.N))
			held = append(held[:m.Of:m.Of], held[m.Of+1:]...)
		case ticketleases.Step:
			p.move(ticks(int(m.N)))
		}
		p.losing = ticketleases.Nothing
		switch {
		case mayForget && !want.Late && (errors.Is(err, ratelimit.ErrLeaseLost) || m.Lost == ticketleases.TheReply):
			return
		case m.Lost != ticketleases.Nothing:
			require.ErrorIs(t, err, errLost, "%v: move %d", h, i)
		case want.Late:
			require.ErrorIs(t, err, ratelimit.ErrLeaseLost, "%v: move %d", h, i)
		default:
			require.NoError(t, err, "%v: move %d", h, i)
			require.Equal(t, want.Allowed, r.Allowed, "%v: move %d", h, i)
		}
		if want.Split {
			return // TestPartsOfATicket
		}
		if ticket != nil {
			held = append(held, ticket)
		}
		require.Equal(t, player.Remaining(), must(t)(p.bare.Peek(ctx, "k")).Remaining, "%v: after move %d", h, i)
	}
}

// move moves the server's clock. Redis keeps the instants at which keys expire.
func (p *ticketReplay) move(by time.Duration) {
	left := map[string]time.Duration{}
	for _, key := range p.server.Keys() {
		left[key] = p.server.TTL(key)
	}
	p.now = p.now.Add(by)
	p.server.SetTime(p.now)
	for key, ttl := range left {
		if by < 0 {
			p.server.SetTTL(key, ttl-by)
		}
	}
}
