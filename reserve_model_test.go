package ratelimit_test

import (
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// TestReservationsAnswerAsTheirModels drives buckets and their models through random calls,
// of which many reserve and cancel: with longest waits on both sides of what is due, by
// both clocks, which also step back.
func TestReservationsAnswerAsTheirModels(t *testing.T) {
	const steps = 200
	configurations := limitertest.Rounds(100, 7) // of each family
	for _, f := range limitertest.Families() {
		if f.Name != "TokenBucket" && f.Name != "TokenBucket stepped" && f.Name != "LeakyBucket" {
			continue
		}
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			rng := model.Seeded(limitertest.Seed(t))
			server := miniredis.RunT(t)
			server.ClockTTL(true)
			server.SetTime(limitertest.Start)
			client := redis.NewClient(&redis.Options{Addr: server.Addr()})
			defer client.Close()
			reserved, late, cancelled, again, above := 0, 0, 0, 0, 0
			for range configurations {
				var opts []ratelimit.Option
				var at time.Time
				if rng.IntN(3) == 0 {
					opts = append(opts, ratelimit.WithClock(func() time.Time { return at }))
				}
				p, err := f.Draw(rng, client, opts...)
				require.NoError(t, err)
				server.FlushAll()
				m := p.Model().(model.Reserver)
				l := p.Limiter.(ratelimit.Reserver)
				scenario := model.NewScenario(rng, model.ShapeOf(m, true))
				type reservation struct {
					real   *ratelimit.Reservation
					cancel func()
					wrote  string
				}
				var held []reservation
				reset := func() {
					m.Reset()
					held = nil // what they wrote could be written again within a microsecond
				}
				look := func() (last, waiting string) {
					for _, key := range server.Keys() {
						text, err := server.Get(key)
						require.NoError(t, err)
						last, waiting, _ = strings.Cut(text, ";")
					}
					return last, ";" + waiting
				}
				still := func() time.Time { return limitertest.Start }
				var want model.Answer
				var before int64
				for i := range steps {
					step := scenario.Next(want)
					if step.Now > latest {
						break
					}
					if step.Now < before && m.Unused(before) {
						require.NoError(t, l.Reset(ctx, "k"))
						reset()
					}
					before = step.Now
					from := at
					at = time.UnixMicro(step.Now)
					if opts == nil {
						server.SetTime(at)
						if at.Before(from) {
							for _, key := range server.Keys() {
								server.SetTTL(key, server.TTL(key)+from.Sub(at))
							}
						}
					}
					if len(server.Keys()) == 0 {
						reset()
					}
					found, _ := look()
					switch op := rng.IntN(10); {
					case step.Op == model.Reset:
						require.NoError(t, l.Reset(ctx, "k"))
						reset()
					case step.Op == model.Peek:
						want = m.Take(step.Now, 1, true)
						got := must(t)(l.Peek(ctx, "k"))
						require.Equal(t, rounded(limitertest.ResultOf(want), got), got, "%s: step %d: %+v", p.About, i, step)
					case op < 2 && len(held) > 0: // mostly the last
						pick := len(held) - 1
						if rng.IntN(3) == 0 {
							pick = rng.IntN(len(held))
						}
						held[pick].cancel()
						require.NoError(t, held[pick].real.GiveBack(ctx))
						held = append(held[:pick], held[pick+1:]...)
						cancelled++
						continue
					case op < 7:
						if most := m.Max(); most <= exact.Permits/4 && rng.IntN(4) == 0 { // more than there can ever be at once
							step.N = most*(1+rng.IntN(3)) + rng.IntN(3)
							above++
						}
						_, due, undo := m.Reserve(step.Now, step.N, -1) // a look
						undo()
						longest := [...]int64{0, due, due, max(due-1, 0), due + 1, rng.Int64N(3*m.Span().Microseconds() + 1), 1 << 51}[rng.IntN(7)]
						longest = min(longest, 1<<51) // more counts as this
						answer, due, cancel := m.Reserve(step.Now, step.N, longest)
						r, err := ratelimit.ReserveBy(still, l, "k", step.N, time.Duration(longest)*time.Microsecond)
						if !answer.Allowed && due > 1<<52 { // 142 years, to which a script adds the instant
							require.InDelta(t, float64(due), float64(waitError(t, err).Wait.Microseconds()), 2)
							break
						}
						if !answer.Allowed {
							require.Equal(t, &ratelimit.WaitError{Key: "k", Wait: time.Duration(due) * time.Microsecond}, waitError(t, err),
								"%s: step %d: %+v within %d", p.About, i, step, longest)
							break
						}
						require.NoError(t, err, "%s: step %d: %+v within %d", p.About, i, step, longest)
						require.Equal(t, time.Duration(due)*time.Microsecond, r.Delay(), "%s: step %d: %+v within %d", p.About, i, step, longest)
						require.Equal(t, limitertest.ResultOf(answer), r.Result(), "%s: step %d: %+v within %d", p.About, i, step, longest)
						held = append(held, reservation{real: r, cancel: cancel})
						want = answer
						reserved++
						if due > 0 {
							late++
						}
					default:
						want = m.Take(step.Now, step.N, false)
						got := must(t)(l.TryAcquireN(ctx, "k", step.N))
						require.Equal(t, rounded(limitertest.ResultOf(want), got), got, "%s: step %d: %+v", p.About, i, step)
					}
					// After the clock was set back, a call can write what an earlier reservation wrote. A cancel
					// of that takes the call's state for its own, and the model does not: see Cancel.
					last, waiting := look()
					same := strings.Contains(waiting, ";"+last+"|")
					for _, h := range held {
						same = same || h.wrote == last
					}
					if last != found && last != "" && same {
						require.NoError(t, l.Reset(ctx, "k"))
						reset()
						again++
					}
					if len(held) > 0 && held[len(held)-1].wrote == "" {
						held[len(held)-1].wrote = last
					}
				}
			}
			t.Logf("%d reservations, %d due later, %d cancelled, %d of more than the burst asked; %d wrote what another had written", reserved, late, cancelled, above, again)
		})
	}
}

// rounded is want with the ResetAfter that a denial behind a debt of more than 2^52 units has:
// for such a bucket the script replies a time, which is rounded up, and ResetAfter is that time
// and what is missing at its end, rounded up again.
func rounded(want, got ratelimit.Result) ratelimit.Result {
	if !want.Allowed && want.ResetAfter > want.Window && got.ResetAfter == want.ResetAfter+time.Microsecond {
		want.ResetAfter = got.ResetAfter
	}
	return want
}
