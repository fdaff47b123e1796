package ratelimit_test

import (
	"errors"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/explore"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// TestScriptsDecideAsTheSearchedModel replays histories of internal/testing/explore on the scripts:
// some of those that the search followed, and those that break wrong rules.
func TestScriptsDecideAsTheSearchedModel(t *testing.T) {
	raceflag.SkipSequential(t)
	one := explore.Rules{Permit: 1, Buckets: []explore.Bucket{{Burst: 2, Flow: 1}}, Reserving: true, Longest: 4, Pause: 2, Calls: 5, Losses: true, Clock: true}
	small := explore.Rules{Permit: 2, Buckets: []explore.Bucket{{Burst: 1, Flow: 1}}, Reserving: true, Longest: 6, Pause: 3, Calls: 5}
	two := explore.Rules{Permit: 2, Buckets: []explore.Bucket{{Burst: 1, Flow: 1}, {Burst: 3, Flow: 2}}, Reserving: true, Longest: 8, Pause: 2, Calls: 5}
	clock := two
	clock.Clock, clock.Calls = true, 4
	bursts := explore.Rules{Permit: 1, Buckets: []explore.Bucket{{Burst: 1, Flow: 1}, {Burst: 3, Flow: 1}}, Reserving: true, Longest: 4, Pause: 2, Calls: 4}
	back := explore.Rules{Permit: 1, Buckets: []explore.Bucket{{Burst: 2, Flow: 1}}, Reserving: true, Returns: true, Settling: true, Longest: 4, Pause: 2, Calls: 4}
	slow := explore.Rules{Permit: 2, Buckets: []explore.Bucket{{Burst: 2, Flow: 1}, {Burst: 2, Flow: 2}}, Returns: true, Longest: 4, Pause: 2, Calls: 4}
	for name, rules := range map[string]explore.Rules{"a slower rule gives back": slow, "two bursts": bursts, "giving back": back, "one bucket": one, "burst 1": small, "two rates": two, "two rates and the clock": clock} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rng := model.Seeded(limitertest.Seed(t))
			var histories []explore.History
			for _, cancel := range []explore.Cancelling{explore.All, explore.AllIfInstant, explore.LessByState, explore.LessByMark} {
				broken := rules
				broken.Cancel, broken.Calls = cancel, 4
				histories = append(histories, explore.Search(&broken).Broken) // if four calls break it
			}
			broken := rules
			broken.Return, broken.Calls = explore.ExactAnyway, 4
			histories = append(histories, explore.Search(&broken).Broken)
			broken = rules
			broken.Unmarked, broken.Calls = true, 4
			histories = append(histories, explore.Search(&broken).Broken)
			found := explore.Search(&rules)
			require.Nil(t, found.Broken)
			for range limitertest.Rounds(2_500, 80) {
				histories = append(histories, found.History(rng.IntN(found.Len())))
			}
			s := newBucketReplay(t, &rules)
			for _, h := range histories {
				s.play(t, h)
			}
		})
	}
}

// A bucketReplay plays histories on miniredis, by its clock. A tick is a second.
type bucketReplay struct {
	rules   *explore.Rules
	server  *miniredis.Miniredis
	buckets []*ratelimit.TokenBucket
	now     time.Time // by the server's clock
}

func newBucketReplay(t *testing.T, rules *explore.Rules) *bucketReplay {
	server := miniredis.RunT(t)
	server.ClockTTL(true)
	server.SetTime(limitertest.Start)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	p := &bucketReplay{rules: rules, server: server}
	for _, b := range rules.Buckets {
		rate := ratelimit.Per(b.Flow, time.Duration(rules.Permit)*time.Second)
		p.buckets = append(p.buckets, ratelimit.Must(ratelimit.NewTokenBucket(client, rate, b.Burst, ratelimit.WithExactReturns())))
	}
	return p
}

func (p *bucketReplay) play(t *testing.T, h explore.History) {
	p.server.FlushAll()
	p.now = limitertest.Start
	p.server.SetTime(p.now)
	player := explore.Player{Rules: p.rules}
	var held []holding
	still := func() time.Time { return limitertest.Start }
	for i, m := range h {
		want := player.Play(m, func(i int) { held = append(held[:i], held[i+1:]...) })
		p.pass(int(m.Pause))
		bucket := p.buckets[m.By]
		switch m.Op {
		case explore.Take:
			r := must(t)(bucket.TryAcquireN(ctx, "k", int(m.N)))
			require.Equal(t, want.Allowed, r.Allowed, "%v: move %d", h, i)
		case explore.Reserve:
			r, err := ratelimit.ReserveBy(still, bucket, "k", int(m.N), ticks(int(m.Wait)))
			if !want.Allowed {
				require.Equal(t, &ratelimit.WaitError{Key: "k", Wait: ticks(want.Due)}, waitError(t, err), "%v: move %d", h, i)
				break
			}
			require.NoError(t, err, "%v: move %d", h, i)
			require.Equal(t, ticks(want.Due), r.Delay(), "%v: move %d", h, i)
			if !m.Lost {
				held = append(held, holding{Reservation: r})
			}
		case explore.Borrow, explore.Spend:
			ticket, r, err := bucket.Estimate(ctx, "k", int(m.N))
			require.NoError(t, err, "%v: move %d", h, i)
			require.Equal(t, want.Allowed, r.Allowed, "%v: move %d", h, i)
			if r.Allowed {
				held = append(held, holding{Ticket: ticket, n: int(m.N)})
			}
		case explore.Return:
			require.NoError(t, held[m.Held].Settle(ctx, 0))
			held = append(held[:m.Held], held[m.Held+1:]...)
		case explore.Settle:
			require.NoError(t, held[m.Held].Settle(ctx, held[m.Held].n+1))
			held = append(held[:m.Held], held[m.Held+1:]...)
		case explore.Cancel:
			if !m.Lost {
				require.NoError(t, held[m.Held].GiveBack(ctx))
			}
			held = append(held[:m.Held], held[m.Held+1:]...)
		case explore.Leave:
		case explore.Step:
			p.pass(int(m.N))
		default:
			require.Fail(t, "a move that is not replayed", m)
		}
		for b, bucket := range p.buckets {
			burst, permit := p.rules.Buckets[b].Burst, p.rules.Permit
			left := max(burst-(player.Missing(b)+permit-1)/permit, 0)
			require.Equal(t, left, must(t)(bucket.Peek(ctx, "k")).Remaining, "%v: after move %d, bucket %d", h, i, b)
		}
	}
}

// A holding is what a process holds: a reservation, or a ticket for n permits.
type holding struct {
	*ratelimit.Reservation
	*ratelimit.Ticket
	n int
}

// pass moves the server's clock. Redis keeps the instant at which a key expires.
func (p *bucketReplay) pass(n int) {
	from := p.server.TTL(bucketKey)
	p.now = p.now.Add(ticks(n))
	p.server.SetTime(p.now)
	if n < 0 && from > 0 {
		p.server.SetTTL(bucketKey, from-ticks(n))
	}
}

func ticks(n int) time.Duration { return time.Duration(n) * time.Second }

func waitError(t *testing.T, err error) *ratelimit.WaitError {
	t.Helper()
	var wait *ratelimit.WaitError
	require.True(t, errors.As(err, &wait), "%v", err)
	require.ErrorIs(t, err, ratelimit.ErrWaitTooLong)
	return wait
}
