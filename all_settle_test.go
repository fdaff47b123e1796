package ratelimit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// An estimate can be claimed with other limits, of every algorithm, and is settled as one
// that was taken alone.
func TestEstimatesAmongClaimsAreSettled(t *testing.T) {
	for name, stage := range map[string]func(testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnHeldRedis} {
		t.Run(name, func(t *testing.T) {
			s := stage(t)
			for _, clock := range [][]ratelimit.Option{nil, {ratelimit.WithClock(func() time.Time { return s.Now })}} {
				for _, v := range limitertest.Variants() {
					s.Wipe(t)
					l, err := v.Build(s.Client, clock...)
					require.NoError(t, err)
					_, ok := l.(ratelimit.Settler)
					if !ok {
						require.Contains(t, v.Name, "in an All")
						continue
					}
					gate := ratelimit.Must(ratelimit.NewSlidingLog(s.Client, []ratelimit.Rule{{Limit: 2, Window: time.Minute}}, append(clock, ratelimit.WithName("gate"))...))
					running := ratelimit.Must(ratelimit.NewInFlight(s.Client, 2, time.Minute, clock...))
					ask := func(n int) ratelimit.AllResult {
						r, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(gate, "g", 1), ratelimit.ClaimOf(l, v.Of("k"), n).Estimate(), ratelimit.ClaimHold(running, v.Of("k"), 1))
						require.NoError(t, err, v.Name)
						return r
					}
					r := ask(3)
					require.True(t, r.Allowed, v.Name)
					require.Equal(t, 0, r.Parts[1].Result.Remaining)
					require.Nil(t, r.Parts[0].Ticket)
					require.Nil(t, r.Parts[2].Ticket)
					require.NotNil(t, r.Parts[2].Hold)
					denied := ask(1)
					require.Equal(t, []bool{true, false, true}, verdicts(denied))
					require.Nil(t, denied.Parts[1].Ticket)
					require.Nil(t, denied.Parts[2].Hold)
					peeked, err := ratelimit.Look(ctx, ratelimit.ClaimOf(gate, "g", 1), ratelimit.ClaimOf(l, v.Of("k"), 1).Estimate())
					require.NoError(t, err)
					require.Nil(t, peeked.Parts[1].Ticket)
					require.Equal(t, denied.Parts[1], peeked.Parts[1], v.Name)

					require.NoError(t, r.Parts[1].Ticket.Settle(ctx, 1))
					require.ErrorIs(t, r.Parts[1].Ticket.Settle(ctx, 1), ratelimit.ErrSettled)
					require.Equal(t, 2, must(t)(l.Peek(ctx, v.Of("k"))).Remaining, v.Name)
					r = ask(1)
					require.True(t, r.Allowed)
					require.Equal(t, 1, r.Parts[1].Result.Remaining)
					require.NoError(t, r.Parts[1].Ticket.Settle(ctx, 4)) // 3 more, into debt
					require.Zero(t, must(t)(l.Peek(ctx, v.Of("k"))).Remaining, v.Name)
					require.Zero(t, must(t)(gate.Peek(ctx, "g")).Remaining, "the other claims stay taken")
				}
			}
		})
	}
}

// Calls with estimates that are decided in one execution have a ticket each: for equal calls, and
// where they only have the key of one limiter in common.
func TestMergedEstimatesAmongClaimsAreSettledOneByOne(t *testing.T) {
	for name, stage := range map[string]func(testing.TB) *limitertest.Stage{"miniredis": limitertest.OnMiniredis, "Redis": limitertest.OnHeldRedis} {
		t.Run(name, func(t *testing.T) {
			s := stage(t)
			for _, clock := range [][]ratelimit.Option{nil, {ratelimit.WithClock(func() time.Time { return s.Now })}} {
				for _, v := range limitertest.Variants() {
					l, err := v.Build(s.Client, clock...)
					require.NoError(t, err)
					if _, several := l.(*ratelimit.All); several {
						continue
					}
					gate := ratelimit.Must(ratelimit.NewSlidingLog(s.Client, []ratelimit.Rule{{Limit: 9, Window: time.Minute}}, append(clock, ratelimit.WithName("gate"))...))
					for _, others := range [][3]string{{"g", "g", "g"}, {"g1", "g2", "g3"}} {
						s.Wipe(t)
						var calls [][]ratelimit.Claim
						for _, other := range others {
							calls = append(calls, []ratelimit.Claim{ratelimit.ClaimOf(gate, other, 1), ratelimit.ClaimOf(l, v.Of("k"), 1).Estimate()})
						}
						answers, _ := ratelimit.AllMerged(t, calls)
						for i, left := range []int{2, 1, 0} {
							require.True(t, answers[i].Allowed, v.Name)
							require.Equal(t, left, answers[i].Parts[1].Result.Remaining, v.Name)
						}
						for settled, i := range []int{1, 0, 2} {
							require.NoError(t, answers[i].Parts[1].Ticket.Settle(ctx, 0))
							require.Equal(t, settled+1, must(t)(l.Peek(ctx, v.Of("k"))).Remaining, "%s, %v", v.Name, others)
						}
					}
				}
			}
		})
	}
}

func TestEstimatesThatCannotBeClaimed(t *testing.T) {
	c := limitertest.Offline(t)
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerSecond(1), 5))
	running := ratelimit.Must(ratelimit.NewInFlight(c, 2, time.Minute))
	for _, row := range []struct {
		claims []ratelimit.Claim
		says   string
	}{
		{[]ratelimit.Claim{ratelimit.ClaimHold(running, "k", 1).Estimate()}, "given back by their Hold"},
		{[]ratelimit.Claim{ratelimit.ClaimOf(bucket, "k", 1).Estimate(), ratelimit.ClaimOf(bucket, "k", 1)}, "make one claim of them"},
		{[]ratelimit.Claim{ratelimit.ClaimOf(bucket, "k", 1), ratelimit.ClaimOf(bucket, "k", 1).Estimate()}, "make one claim of them"},
	} {
		_, err := ratelimit.TryAcquireAll(ctx, row.claims...)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, row.says)
		_, err = ratelimit.TryAcquireAcrossSlots(ctx, row.claims...)
		require.ErrorContains(t, err, row.says)
	}
}
