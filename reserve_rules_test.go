package ratelimit_test

import (
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// TestReservationsOfSeveralRulesKeepTheBound plays random calls of two or three buckets of
// different rules on one key, which take, reserve and cancel, by the server's clock or by
// callers' clocks that differ. What is used when it is due is at most the largest burst +
// the fastest rate × (the interval + the skew + one longest step + 1 µs), in every
// interval; and while permits are promised, RetryAfter is exact under every rule.
func TestReservationsOfSeveralRulesKeepTheBound(t *testing.T) {
	t.Parallel()
	histories := limitertest.Rounds(1000, 40)
	rng := model.Seeded(limitertest.Seed(t))
	server := miniredis.RunT(t)
	server.ClockTTL(true)
	server.SetTime(limitertest.Start)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	type one struct {
		ratelimit.Reserver
		burst int
		lag   int64
	}
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	promised, beside := 0, 0
	for range histories {
		server.FlushAll()
		now := limitertest.Start.UnixMicro()
		clock := int64(0)
		var all []one
		var fastest *big.Rat
		longest, burst, slowest := time.Duration(0), 0, time.Duration(0)
		most := int64(pick(0, 0, 10, 5_000, 300_000, 900_000)) // skew
		ahead := rng.Int64N(most + 1)
		about := fmt.Sprintf("skew %d:", most)
		for range 2 + rng.IntN(2) {
			rate := ratelimit.Per(pick(1, 2, 3, 7, 10, 100, 999_983), time.Duration(pick(1, 10, 1000, 1000, 7777, 60_000))*time.Millisecond)
			b := pick(1, 2, 5, 10, 30)
			var o []ratelimit.Option
			every := time.Duration(0)
			if rng.IntN(4) == 0 {
				every = time.Duration(pick(1, 50, 1000, 3333)) * time.Millisecond
				o = append(o, ratelimit.WithRefillEvery(every))
			}
			m := one{burst: b}
			if most > 0 && rng.IntN(4) > 0 {
				o = append(o, ratelimit.WithClock(func() time.Time { return time.UnixMicro(clock) }))
				m.lag = rng.Int64N(most+1) - ahead
			}
			m.Reserver = ratelimit.Must(ratelimit.NewTokenBucket(client, rate, b, o...))
			about += fmt.Sprintf(" [%v burst %d every %v, lag %d]", rate, b, every, m.lag)
			all = append(all, m)
			perMicro := big.NewRat(int64(rate.Count), rate.Period.Microseconds())
			if fastest == nil || perMicro.Cmp(fastest) > 0 {
				fastest = perMicro
			}
			longest, burst = max(longest, every), max(burst, b)
			slowest = max(slowest, must(t)(m.Peek(ctx, "k")).Window)
		}
		set := func(m one) {
			server.SetTime(time.UnixMicro(now))
			clock = now - m.lag
		}
		still := func() time.Time { return limitertest.Start }
		type act struct {
			model.Taken
			real *ratelimit.Reservation
		}
		var acts []act
		for call := range 40 {
			m := all[rng.IntN(len(all))]
			switch rng.IntN(5) {
			case 0:
				now += rng.Int64N(2_000)
			case 1:
				now += rng.Int64N(300_000)
			case 2:
				now += rng.Int64N(slowest.Microseconds()/8 + 1)
			}
			set(m)
			n := min(pick(1, 1, 2, m.burst, 1+rng.IntN(m.burst)), m.burst)
			var open []int // reservations that are not due
			for i, a := range acts {
				if a.real != nil && a.At >= now {
					open = append(open, i)
				}
			}
			switch op := rng.IntN(10); {
			case op < 2 && len(open) > 0:
				i := open[len(open)-1]
				if rng.IntN(3) == 0 {
					i = open[rng.IntN(len(open))]
				}
				require.NoError(t, acts[i].real.GiveBack(ctx))
				if server.Exists(bucketKey) { // miniredis cuts what is left of a TTL to milliseconds, Redis its clock
					server.SetTTL(bucketKey, server.TTL(bucketKey)+2*time.Millisecond)
				}
				acts = append(acts[:i], acts[i+1:]...)
			case op < 6:
				r, err := ratelimit.ReserveBy(still, m.Reserver, "k", n, time.Duration(rng.Int64N(2*slowest.Microseconds()+1))*time.Microsecond)
				if err != nil {
					waitError(t, err)
					break
				}
				acts = append(acts, act{model.Taken{At: now + r.Delay().Microseconds(), N: n}, r})
				promised++
			default:
				state, _ := server.Get(bucketKey)
				peeked := must(t)(m.Peek(ctx, "k"))
				r := must(t)(m.TryAcquireN(ctx, "k", n))
				if n == 1 {
					require.Equal(t, peeked.Allowed, r.Allowed, "%s: call %d: %s", about, call, state)
					require.Equal(t, peeked.RetryAfter, r.RetryAfter, "%s: call %d: %s", about, call, state)
				}
				if r.Allowed {
					acts = append(acts, act{Taken: model.Taken{At: now, N: n}})
					break
				}
				requireSound(t, r, about)
				if rng.IntN(3) == 0 && (m.lag <= 0 || strings.Contains(state, "@")) {
					if strings.Contains(state, "!") {
						beside++
					}
					from := now
					now += r.RetryAfter.Microseconds() - 1
					set(m)
					just := must(t)(m.TryAcquireN(ctx, "k", n))
					require.Equal(t, time.Microsecond, just.RetryAfter, "%s: call %d: %s, %+v at %d", about, call, state, r, from)
					now++
					set(m)
					require.True(t, must(t)(m.TryAcquireN(ctx, "k", n)).Allowed, "%s: call %d: %s, %+v at %d", about, call, state, r, from)
					acts = append(acts, act{Taken: model.Taken{At: now, N: n}})
				}
			}
		}
		allowance := new(big.Rat).SetInt64(int64(burst))
		allowance.Add(allowance, new(big.Rat).Mul(fastest, big.NewRat(most+longest.Microseconds()+1, 1)))
		var taken []model.Taken
		for _, a := range acts {
			taken = append(taken, a.Taken)
		}
		num, denom := fastest.Num().Int64(), fastest.Denom().Int64()
		over, worst := model.Exceeds(taken, int(num), time.Duration(denom)*time.Microsecond, allowance)
		require.False(t, over, "%s: %+v", about, worst)
	}
	t.Logf("%d reservations, %d exact retries beside a promise", promised, beside)
}

// TestAPromiseEndsWithinAStep: a bucket that refills in steps takes permits while those of a faster rule
// are promised, and the promise ends within a step. The faster rule knows when the writer's next
// step comes: it counts from the writer's instant, not from the end of the promise.
func TestAPromiseEndsWithinAStep(t *testing.T) {
	const ms = time.Millisecond
	limitertest.Everywhere(t, func(t *testing.T, s *limitertest.Stage) {
		bucket := func(rate ratelimit.Rate, burst int, every time.Duration) *ratelimit.TokenBucket {
			o := s.Opts
			if every > 0 {
				o = append(o, ratelimit.WithRefillEvery(every))
			}
			return ratelimit.Must(ratelimit.NewTokenBucket(s.Client, rate, burst, o...))
		}
		faster, a := ratelimit.Per(10, 9*time.Second), ratelimit.PerSecond(1) // a permit in 900 ms
		writer := bucket(a, 3, time.Second)
		for _, row := range []struct {
			name string
			l    *ratelimit.TokenBucket
			n    int
			want time.Duration
		}{
			{"the writer", writer, 1, 1000 * ms},
			{"the writer, all", writer, 3, 3000 * ms},
			{"its third step", bucket(faster, 1, 0), 1, 3000 * ms},
			{"its first step", bucket(faster, 3, 0), 1, 1000 * ms},
			{"its second step", bucket(faster, 3, 0), 2, 2000 * ms},
			{"all", bucket(faster, 3, 0), 3, 3000 * ms},
			{"it fits when the promise ends", bucket(faster, 4, 0), 1, 900 * ms},
			{"it fits before the promise ends", bucket(ratelimit.PerSecond(5), 5, 0), 1, 700 * ms},
			{"steps of its own, of two permits", bucket(faster, 2, 1800*ms), 1, 2000 * ms},
			{"a rule that is faster than the writer's steps", bucket(ratelimit.PerSecond(10), 1, 0), 1, 1200 * ms},
		} {
			t.Run(row.name, func(t *testing.T) {
				s.Wipe(t)
				reserve(t, bucket(faster, 1, 0), 1, 0)
				require.Equal(t, 900*ms, reserve(t, bucket(faster, 1, 0), 1, time.Hour).Delay())
				require.True(t, must(t)(writer.TryAcquire(ctx, "k")).Allowed)
				mark := ""
				if s.MaxSkew > 0 {
					mark = "@"
				}
				require.Equal(t, "1763670000000000/3+0/1000000/1/1000000"+mark+"!900000", s.Admin.Get(ctx, bucketKey).Val())
				require.Equal(t, row.want, must(t)(row.l.TryAcquireN(ctx, "k", row.n)).RetryAfter)
				s.Advance(row.want - time.Microsecond)
				require.Equal(t, time.Microsecond, must(t)(row.l.TryAcquireN(ctx, "k", row.n)).RetryAfter)
				s.Advance(time.Microsecond)
				require.True(t, must(t)(row.l.TryAcquireN(ctx, "k", row.n)).Allowed)
			})
		}
	})
}
