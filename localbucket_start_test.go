package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// downAtTimes is a primary that fails while it is told to.
type downAtTimes struct {
	ratelimit.Limiter
	down *bool
}

func (d downAtTimes) TryAcquireN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if *d.down {
		return ratelimit.Result{}, errors.New("down")
	}
	return d.Limiter.TryAcquireN(ctx, key, n)
}

// TestSecondariesOfAnOutageKeepTheirBounds: three instances with a third of the limit each, and callers that take whatever they get.
// In every interval there is no more than the rule, and what the options of the secondary allow for the outages in it.
func TestSecondariesOfAnOutageKeepTheirBounds(t *testing.T) {
	const (
		instances = 3
		rate      = 6 // a second
		burst     = 12
		step      = 50 * time.Millisecond
		steps     = 400
	)
	for _, test := range []struct {
		name    string
		option  []ratelimit.Option
		outages int
		more    float64 // permits of a first burst in the first outage
	}{
		{"begins full", nil, 1, burst},
		{"begins full, flapping", nil, 5, burst},
		{"begins empty", []ratelimit.Option{ratelimit.WithEmptyStart()}, 1, 0},
		{"begins empty, flapping", []ratelimit.Option{ratelimit.WithEmptyStart()}, 5, 0},
		{"last answers", []ratelimit.Option{ratelimit.WithLastAnswers()}, 1, burst * (instances - 1) / instances},
		{"last answers, flapping", []ratelimit.Option{ratelimit.WithLastAnswers()}, 5, burst * (instances - 1) / instances},
	} {
		t.Run(test.name, func(t *testing.T) {
			seed := limitertest.Seed(t)
			most := 0.0 // of what was allowed beyond the rule
			rounds := uint64(limitertest.Rounds(40, 8))
			for round := range rounds {
				random := model.Seeded(seed + round)
				now, down := limitertest.Start, false
				clock := ratelimit.WithClock(func() time.Time { return now })
				shared := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(rate), burst, clock))
				var all []*ratelimit.Fallback
				for range instances {
					local := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(rate/instances), burst/instances, append(test.option, clock)...))
					all = append(all, ratelimit.Must(ratelimit.NewFallback(downAtTimes{shared, &down}, local)))
				}
				outage := make([]bool, steps)
				for range test.outages {
					from := random.IntN(steps)
					for i := from; i < min(from+1+random.IntN(steps/2/test.outages), steps); i++ {
						outage[i] = true
					}
				}
				greedy := random.IntN(3) // whom the callers of the primary reach: all, one, or each in turn
				allowed := make([]int, steps)
				for i := range steps {
					now = now.Add(step)
					down = outage[i]
					if random.IntN(8) == 0 {
						continue // a pause, in which buckets refill
					}
					for range 1 + random.IntN(6) {
						at := random.IntN(instances)
						if greedy > 0 && !down {
							at = i * (greedy - 1) % instances
						}
						if must(t)(all[at].TryAcquire(ctx, "k")).Allowed {
							allowed[i]++
						}
					}
				}
				for from := range steps {
					taken, more, lost := 0, 0.0, 0.0 // lost: what a full primary would have refilled in this outage
					before := slices.Contains(outage[:from], true)
					for to := from; to < steps; to++ {
						taken += allowed[to]
						switch {
						case outage[to] && lost == 0: // it begins: each outage but the first meets buckets that may have refilled
							more += test.more
							if before {
								more += burst - test.more
							}
							before, lost = true, rate*2*step.Seconds() // it begins and ends between two steps
							more += min(burst, lost)
						case outage[to]:
							more -= min(burst, lost)
							lost += rate * step.Seconds()
							more += min(burst, lost)
						default:
							lost = 0
						}
						span := step.Seconds() * float64(to-from)
						bound := burst + rate*span + more
						most = max(most, float64(taken)-burst-rate*span)
						require.LessOrEqual(t, float64(taken), bound+1e-9, "round %d of seed %d: steps %d to %d", round, seed, from, to)
					}
				}
			}
			if test.more > 0 && rounds > 1 {
				require.Greater(t, most, 1.0, "the test has seen no second burst, and so proves little")
			}
		})
	}
}

// TestHowABucketOfANewKeyBegins, in permits left by each call.
func TestHowABucketOfANewKeyBegins(t *testing.T) {
	now, down := limitertest.Start, true
	clock := ratelimit.WithClock(func() time.Time { return now })
	local := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 4, ratelimit.WithEmptyStart(), clock))
	peek := func(key string) int { return must(t)(local.Peek(ctx, key)).Remaining }
	require.Zero(t, peek("k"))
	now = now.Add(time.Hour)
	require.Zero(t, peek("k"), "a look stores nothing")
	require.Equal(t, ratelimit.Result{Limit: 4, Window: 4 * time.Second, RetryAfter: time.Second, ResetAfter: 4 * time.Second}, must(t)(local.TryAcquire(ctx, "k")))
	now = now.Add(time.Second - time.Microsecond)
	require.False(t, must(t)(local.TryAcquire(ctx, "k")).Allowed)
	now = now.Add(time.Microsecond)
	require.True(t, must(t)(local.TryAcquire(ctx, "k")).Allowed)
	require.NoError(t, local.Reset(ctx, "k"))
	require.Equal(t, 4, peek("k"))
	for name, call := range map[string]func(key string) error{
		"up to": func(key string) error { _, _, err := local.TryAcquireUpTo(ctx, key, 2); return err },
		"together": func(key string) error {
			_, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(local, key, 1), ratelimit.ClaimOf(localBucket(1), key, 1))
			return err
		},
		"estimate": func(key string) error { _, _, err := local.Estimate(ctx, key, 2); return err },
	} {
		require.NoError(t, call(name))
		now = now.Add(2 * time.Second)
		require.Equal(t, 2, peek(name), "%s: it refills from the first call on", name)
	}

	primary := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 100, clock))
	follows := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 10, ratelimit.WithLastAnswers(), clock))
	f := ratelimit.Must(ratelimit.NewFallback(downAtTimes{primary, &down}, follows))
	left := func(key string) int { return must(t)(follows.Peek(ctx, key)).Remaining }
	down = false
	for _, want := range []struct{ n, left int }{{5, 9}, {5, 9}, {1, 8}, {79, 1}, {10, 0}, {1, 0}} {
		must(t)(f.TryAcquireN(ctx, "k", want.n))
		require.Equal(t, want.left, left("k"), "the same share, rounded down")
	}
	down = true
	require.True(t, must(t)(f.TryAcquire(ctx, "j")).Fallback)
	require.Zero(t, left("j"), "never seen")
	down = false
	must(t)(f.TryAcquireN(ctx, "j", 10))
	require.Equal(t, 9, left("j"), "it has allowed nothing itself, and so follows the answer")
	down = true
	require.True(t, must(t)(f.TryAcquireN(ctx, "j", 9)).Allowed)
	down = false
	require.True(t, must(t)(f.TryAcquire(ctx, "j")).Allowed)
	require.Equal(t, 1, left("j"), "of 10, 9 were allowed here, whatever an answer says")
	ticket, _, err := f.Estimate(ctx, "fresh", 50)
	require.Error(t, err, "the primary of this test cannot settle")
	require.Nil(t, ticket)

	_, err = ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 1, ratelimit.WithEmptyStart(), ratelimit.WithEmptyStart())
	require.ErrorContains(t, err, "WithEmptyStart is given twice")
}

func BenchmarkLastAnswers(b *testing.B) {
	for name, options := range map[string][]ratelimit.Option{"plain": nil, "follows": {ratelimit.WithLastAnswers()}} {
		b.Run(name, func(b *testing.B) {
			primary := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1000), 1000))
			local := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(100), 100, options...))
			f := ratelimit.Must(ratelimit.NewFallback(primary, local))
			keys := make([]string, 1000)
			for i := range keys {
				keys[i] = fmt.Sprint("key", i)
			}
			for i := 0; b.Loop(); i++ {
				if _, err := f.TryAcquire(ctx, keys[i%len(keys)]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestALocalBucketDoesWhatOneOnRedisDoes: random histories of all operations have the same answers in memory and on Redis, in half of
// them by limits that change from call to call.
func TestALocalBucketDoesWhatOneOnRedisDoes(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	seed := limitertest.Seed(t)
	counts := map[string]int{}
	rounds := uint64(limitertest.Rounds(400, 60))
	for round := range rounds {
		random := model.Seeded(seed + round)
		s.Wipe(t)
		s.Move(limitertest.Start)
		onRedis := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(10), 20))
		local := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(10), 20, ratelimit.WithClock(func() time.Time { return s.Now })))
		type limit struct {
			rate  ratelimit.Rate
			burst int
		}
		var limits []limit
		for range 1 + round%2*uint64(1+random.IntN(3)) {
			limits = append(limits, limit{ratelimit.Per(1+random.IntN(9), []time.Duration{time.Second, time.Second, 7777 * time.Millisecond, 100 * time.Millisecond}[random.IntN(4)]), 1 + random.IntN(12)})
		}
		type pair struct {
			tickets      [2]*ratelimit.Ticket
			reservations [2]*ratelimit.Reservation
			due          time.Time
		}
		var open []pair
		for step := range 40 {
			s.Advance(time.Duration(random.IntN(600_000)) * time.Microsecond)
			limit := limits[random.IntN(len(limits))]
			burst := limit.burst
			both := [2]interface {
				operator
				ratelimit.Reserver
			}{ratelimit.Must(onRedis.With(limit.rate, burst)), ratelimit.Must(local.With(limit.rate, burst))}
			n := 1 + random.IntN(burst)
			op := random.IntN(9)
			var p pair
			var told [2][]any
			at := random.IntN(max(len(open), 1))
			actual := random.IntN(2 * burst)
			wait := time.Duration(random.IntN(4)) * time.Second
			for i, l := range both {
				note := func(values ...any) { told[i] = append(told[i], values...) }
				switch op {
				case 0, 1:
					note(l.TryAcquireN(ctx, "k", n))
				case 2:
					taken, r, err := l.TryAcquireUpTo(ctx, "k", n+1)
					note(taken, r, err)
				case 3:
					ticket, r, err := l.Estimate(ctx, "k", n)
					note(ticket != nil, r, err)
					p.tickets[i] = ticket
				case 4:
					note(l.Charge(ctx, "k", n))
				case 5:
					reservation, err := l.Reserve(ctx, "k", n, wait)
					var late *ratelimit.WaitError
					if errors.As(err, &late) {
						note(late.Wait)
					} else {
						note(reservation.Result(), err)
						p.reservations[i], p.due = reservation, s.Now.Add(reservation.Delay())
					}
				case 6:
					if len(open) > 0 && open[at].tickets[i] != nil {
						note(open[at].tickets[i].Settle(ctx, actual) == nil)
						counts["settled"]++
					}
				case 7:
					// On Redis a key expires that is full by the rule that wrote it; by a slower one it is then full too.
					if len(open) > 0 && open[at].reservations[i] != nil && (len(limits) == 1 || s.Now.Before(open[at].due)) {
						note(open[at].reservations[i].Cancel(ctx))
						counts["cancelled"]++
					}
				case 8:
					note(l.Credit(ctx, "k", n))
				}
				note(l.Peek(ctx, "k"))
			}
			require.Equal(t, told[0], told[1], "round %d of seed %d, step %d, operation %d of %v: Redis and memory", round, seed, step, op, limits)
			if p.tickets[0] != nil || p.reservations[0] != nil {
				open = append(open, p)
			}
		}
	}
	if rounds > 1 {
		require.Greater(t, min(counts["settled"], counts["cancelled"]), 50)
	}
}

// TestWhatALocalBucketReports of estimates and reservations: each call once, by its own name, as on Redis.
func TestWhatALocalBucketReports(t *testing.T) {
	rec := new(recorder)
	l := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerHour(1), 10, ratelimit.WithName("api"), rec.option()))
	local := func(call ratelimit.Call, outcome ratelimit.Outcome, n, taken int) ratelimit.Observation {
		return ratelimit.Observation{Limiter: "api", Call: call, Outcome: outcome, Source: ratelimit.SourceLocal, Key: "k", N: n, Taken: taken}
	}
	saw := func(want ratelimit.Observation) {
		t.Helper()
		got := rec.took(t)
		require.Len(t, got, 1)
		got[0].Result, got[0].Waited = ratelimit.Result{}, 0
		require.Equal(t, want, got[0])
	}
	for _, actual := range []int{4, 1, 6} {
		ticket, _, err := l.Estimate(ctx, "k", 4)
		require.NoError(t, err)
		saw(local("estimate", ratelimit.OutcomeAllowed, 4, 4))
		refused := local("settle", ratelimit.OutcomeFailed, 2*exact.Permits, 0)
		refused.Source, refused.Err = ratelimit.Source(0), ticket.Settle(ctx, 2*exact.Permits)
		require.ErrorIs(t, refused.Err, ratelimit.ErrTooMuchDebt)
		saw(refused)
		require.NoError(t, ticket.Settle(ctx, actual), "it could still be settled")
		settled := local("settle", ratelimit.OutcomeDone, actual, 0)
		if actual == 4 {
			settled.Source = ratelimit.Source(0) // there was nothing to do
		}
		saw(settled)
		require.NoError(t, l.Reset(ctx, "k"))
		saw(local("reset", ratelimit.OutcomeDone, 0, 0))
	}
	_, err := l.TryAcquireN(ctx, "k", 10)
	require.NoError(t, err)
	rec.took(t)
	r, err := l.Reserve(ctx, "k", 1, 2*time.Hour)
	require.NoError(t, err)
	saw(local("reserve", ratelimit.OutcomeAllowed, 1, 1))
	require.NoError(t, r.Cancel(ctx))
	saw(local("cancel", ratelimit.OutcomeDone, 1, 0))
	require.NoError(t, r.Cancel(ctx))
	require.Empty(t, rec.took(t), "nothing was left to cancel")
}

// TestAFloodOfNewKeysDeniesNobody where buckets begin empty: a user at a third of his rate gets all that he asks for, beside
// twice as many new keys as there is room for between two of his calls. A key that has used up its burst stays denied.
func TestAFloodOfNewKeysDeniesNobody(t *testing.T) {
	for name, start := range map[string]ratelimit.Option{"empty": ratelimit.WithEmptyStart(), "last answers": ratelimit.WithLastAnswers()} {
		for _, room := range []int{1, 8, 100} {
			now, flooded := limitertest.Start, 0
			l := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 10, start, ratelimit.WithMaxKeys(room+1),
				ratelimit.WithClock(func() time.Time { return now })))
			take := func(key string, n int) bool { return must(t)(l.TryAcquireN(ctx, key, n)).Allowed }
			require.False(t, take("attacker", 10), "it begins empty")
			now = now.Add(10 * time.Second)
			require.True(t, take("attacker", 10))
			allowed := 0
			for range 34 {
				now = now.Add(3 * time.Second)
				if take("user", 1) {
					allowed++
				}
				for range 2 * room {
					flooded++
					take(fmt.Sprint("new", flooded), 1)
				}
				if now.Sub(limitertest.Start) < 19*time.Second { // others lack as little then
					require.False(t, take("attacker", 10), "%s, room for %d", name, room)
				}
			}
			require.Equal(t, 33, allowed, "%s, room for %d: the first meets an empty bucket", name, room)

			now = now.Add(time.Minute) // all that are there are full
			require.False(t, take("another", 1), "there is room again, so it begins empty")
		}
	}
}

// TestAFullBucketIsKeptWhereItWouldBeginEmpty.
func TestAFullBucketIsKeptWhereItWouldBeginEmpty(t *testing.T) {
	now := limitertest.Start
	l := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 10, ratelimit.WithEmptyStart(), ratelimit.WithMaxKeys(3),
		ratelimit.WithClock(func() time.Time { return now })))
	for _, key := range []string{"a", "b"} {
		require.False(t, must(t)(l.TryAcquire(ctx, key)).Allowed)
	}
	now = now.Add(time.Minute)
	require.False(t, must(t)(l.TryAcquire(ctx, "c")).Allowed)
	for _, key := range []string{"a", "b"} {
		require.Equal(t, 10, must(t)(l.Peek(ctx, key)).Remaining)
	}
}
