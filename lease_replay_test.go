package ratelimit_test

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/quotaslices"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// TestScriptsLeaseAsTheSearchedModel replays histories of internal/testing/quotaslices on the scripts: some of those that
// the search followed, and those that break wrong rules.
func TestScriptsLeaseAsTheSearchedModel(t *testing.T) {
	raceflag.SkipSequential(t)
	one, two := []quotaslices.Rule{{Limit: 4, Flow: 1}}, []quotaslices.Rule{{Limit: 4, Flow: 1}, {Limit: 3, Flow: 2}}
	for name, b := range map[string]quotaslices.Bucket{
		"one bucket": {Permit: 2, Rules: one, Longs: []int8{2, 5}, Steps: []int8{-1, -3}},
		"two rates":  {Permit: 2, Rules: two, Longs: []int8{1, 3}},
		"a short slice after a long one": {
			Permit: 1, Rules: []quotaslices.Rule{{Limit: 5, Flow: 1}, {Limit: 5, Flow: 2}}, Longs: []int8{1, 4},
		},
		"returns": {Permit: 1, Rules: one, Longs: []int8{2, 3}, Returns: true, Steps: []int8{-2}},
		"two rates, returns and the clock": {
			Permit: 1, Rules: two, Longs: []int8{1, 2}, Returns: true, Steps: []int8{-2},
		},
	} {
		for kind, every := range map[string]time.Duration{"even": 0, "in steps": leaseTick} {
			t.Run(name+", "+kind, func(t *testing.T) {
				t.Parallel()
				b := b
				if every > 0 {
					b.Steps = nil // a key of steps lives until the next one, in the model not
				}
				rng := model.Seeded(limitertest.Seed(t))
				var histories []quotaslices.History
				for _, wrong := range []func(*quotaslices.Bucket){
					func(b *quotaslices.Bucket) { b.Unmarked = true },
					func(b *quotaslices.Bucket) { b.LastOnly = true },
					func(b *quotaslices.Bucket) { b.Counting = quotaslices.AsPlain },
					func(b *quotaslices.Bucket) { b.Return = quotaslices.InFull },
					func(b *quotaslices.Bucket) { b.Return = quotaslices.Refilled },
				} {
					broken := b
					wrong(&broken)
					histories = append(histories, quotaslices.Search(quotaslices.Scope{Calls: 3, Pause: 5, Algorithm: &broken}).History)
				}
				found := quotaslices.Search(quotaslices.Scope{Calls: 4, Pause: 4, Algorithm: &b})
				require.Zero(t, found.Excess)
				for range limitertest.Rounds(3_000, 250) {
					histories = append(histories, found.Number(rng.IntN(found.Len())))
				}
				p := newLeaseReplay(t, &b, every)
				for _, h := range histories {
					p.play(t, h)
				}
			})
		}
	}
}

const leaseTick = 100 * time.Millisecond

// A leaseReplay plays histories on miniredis, by its clock.
type leaseReplay struct {
	model   *quotaslices.Bucket
	server  *miniredis.Miniredis
	buckets []*ratelimit.TokenBucket
	now     time.Time // by the server's clock
	epochs  int64
}

func newLeaseReplay(t *testing.T, b *quotaslices.Bucket, every time.Duration) *leaseReplay {
	server := miniredis.RunT(t)
	server.ClockTTL(true)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	p := &leaseReplay{model: b, server: server, epochs: 1}
	for _, r := range b.Rules {
		var opts []ratelimit.Option
		if every > 0 {
			opts = append(opts, ratelimit.WithRefillEvery(every))
		}
		p.buckets = append(p.buckets, ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.Per(r.Flow, time.Duration(b.Permit)*leaseTick), r.Limit, opts...)))
	}
	return p
}

// A replayedSlice is one that a process holds.
type replayedSlice struct {
	rule         int8
	n            int8
	where, which int64
}

func (p *leaseReplay) play(t *testing.T, h quotaslices.History) {
	p.server.FlushAll()
	p.now = limitertest.Start
	p.server.SetTime(p.now)
	player := quotaslices.Player{Algorithm: p.model}
	var held []replayedSlice
	operate := func(rule int8, o redisexec.Operation) []int64 {
		words, err := ratelimit.Operate(p.buckets[rule], "k", o)
		require.NoError(t, err)
		return words
	}
	for i, m := range h {
		want := player.Play(m)
		p.pass(int(m.Pause))
		switch m.Op {
		case quotaslices.Plain:
			words := operate(m.Rule, redisexec.Operation{Op: redisexec.Take, N: int(m.N), Times: 1})
			require.Equal(t, want, words[0] > 0, "%v: move %d", h, i)
			if want {
				held = append(held, replayedSlice{})
			}
		case quotaslices.Lease:
			p.epochs++
			long := (time.Duration(m.Long) * leaseTick).Microseconds()
			waiting := 0 // so that it gets all or nothing, as in the model
			if want {
				waiting = int(m.N)
			}
			words := operate(m.Rule, redisexec.Operation{Op: redisexec.Lease, N: int(m.N), Times: 1, Detail: &redisexec.Detail{
				Waiting: waiting, Shortest: long, Longest: long, Epoch: p.epochs,
			}})
			require.Equal(t, int64(waiting), words[1], "%v: move %d", h, i)
			if want {
				require.Equal(t, long, words[0])
				held = append(held, replayedSlice{m.Rule, m.N, words[len(words)-2], words[len(words)-1]})
			}
		case quotaslices.Return:
			if s := &held[m.Of]; want {
				operate(s.rule, redisexec.Operation{Op: redisexec.GiveBack, N: int(m.N), Times: 1, Detail: &redisexec.Detail{Where: s.where, Which: s.which}})
				if s.n -= m.N; s.n == 0 {
					held = append(held[:m.Of], held[m.Of+1:]...)
				}
			}
		case quotaslices.Step:
			p.pass(int(m.N))
		}
		for rule, l := range p.buckets {
			left := player.Remaining(rule)
			r, err := l.Peek(ctx, "k")
			require.NoError(t, err)
			state, _ := p.server.Get(bucketKey)
			require.Equal(t, left, r.Remaining, "%v: after move %d, rule %d, %q", h, i, rule, state)
		}
	}
}

// pass moves the server's clock. Redis keeps the instant at which a key expires.
func (p *leaseReplay) pass(n int) {
	from, d := p.server.TTL(bucketKey), time.Duration(n)*leaseTick
	p.now = p.now.Add(d)
	p.server.SetTime(p.now)
	if n < 0 && from > 0 {
		p.server.SetTTL(bucketKey, from-d)
	}
}
