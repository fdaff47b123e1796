package ratelimit

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// A waitingRoom is a miniredis and a clock. A sleep sets the clock on, and takes no time.
type waitingRoom struct {
	server *miniredis.Miniredis
	client *redis.Client
	calls  int // scripts that were executed
	now    time.Time
	slept  []time.Duration
	asleep func(d time.Duration) // in place of a sleep, if it is not nil
}

func newWaitingRoom(t *testing.T) *waitingRoom {
	server := miniredis.RunT(t)
	server.ClockTTL(true)
	server.SetTime(start)
	room := &waitingRoom{server: server, client: redis.NewClient(&redis.Options{Addr: server.Addr()}), now: start}
	t.Cleanup(func() { _ = room.client.Close() })
	room.client.AddHook(fakes.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if cmd.Name() == "evalsha" {
			room.calls++
		}
		return next(ctx, cmd)
	}})
	return room
}

func (r *waitingRoom) waiter() waiter {
	return waiter{
		timing: timing{now: func() time.Time { return r.now }, sleep: func(ctx context.Context, d time.Duration) error {
			r.slept = append(r.slept, d)
			if r.asleep != nil {
				r.asleep(d)
			} else {
				r.advance(d)
			}
			return ctx.Err()
		}},
		jitter: func(most time.Duration) time.Duration { return most },
	}
}

func (r *waitingRoom) advance(d time.Duration) {
	r.now = r.now.Add(d)
	r.server.SetTime(r.now)
}

// until is a context with a deadline by the room's clock.
type until struct {
	context.Context
	deadline time.Time
}

func (u until) Deadline() (time.Time, bool) { return u.deadline, true }

// The wait is one call, and says how long it waited for its turn.
func TestAWaitIsObservedOnce(t *testing.T) {
	room := newWaitingRoom(t)
	var all []Observation
	l := Must(NewTokenBucket(room.client, PerSecond(1), 5, WithName("api"), WithObserver(func(_ context.Context, o Observation) { all = append(all, o) })))
	for n, waited := range map[int]time.Duration{5: 0, 3: 3 * time.Second} {
		all = nil
		require.NoError(t, l.Reset(ctx, "k"))
		if n == 3 {
			_ = must(t)(l.TryAcquireN(ctx, "k", 5))
		}
		all = nil
		r := must(t)(room.waiter().wait(ctx, l, "k", n))
		require.Equal(t, []Observation{{
			Limiter: "api", Call: callWait, Outcome: OutcomeAllowed, Source: SourceRedis, Key: "k", N: n, Taken: n, Result: r,
			Waited: waited, Batch: 1,
		}}, Untimed(all))
	}
	require.NoError(t, l.Reset(ctx, "k"))
	_ = must(t)(l.TryAcquireN(ctx, "k", 5))
	all = nil
	leaving, leave := context.WithCancel(ctx)
	room.asleep = func(d time.Duration) {
		room.advance(d / 2)
		leave()
	}
	_, err := room.waiter().wait(leaving, l, "k", 4)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, []Observation{{
		Limiter: "api", Call: callWait, Outcome: OutcomeCanceled, Source: SourceRedis, Key: "k", N: 4, Err: err, Waited: 2 * time.Second, Batch: 1,
	}}, Untimed(all), "and not the cancel of its reservation")
}

func TestWaitOnABucketReservesOnce(t *testing.T) {
	const ms = time.Millisecond
	for name, build := range map[string]func(c Client) Limiter{
		"token bucket": func(c Client) Limiter { return Must(NewTokenBucket(c, PerSecond(10), 2)) },
		"leaky bucket": func(c Client) Limiter { return Must(NewLeakyBucket(c, PerSecond(10), 2)) },
		"deny caches": func(c Client) Limiter {
			return Must(NewDenyCache(Must(NewDenyCache(Must(NewTokenBucket(c, PerSecond(10), 2))))))
		},
	} {
		t.Run(name, func(t *testing.T) {
			room := newWaitingRoom(t)
			l, w := build(room.client), room.waiter()
			require.NoError(t, Preload(ctx, ClaimOf(Must(NewTokenBucket(room.client, PerSecond(10), 2)), "k", 1)))
			require.Equal(t, Result{Allowed: true, Limit: 2, Window: 200 * ms, ResetAfter: 200 * ms}, must(t)(w.wait(ctx, l, "k", 2)))
			require.Empty(t, room.slept)
			require.Equal(t, Result{Allowed: true, Limit: 2, Window: 200 * ms, ResetAfter: 300 * ms}, must(t)(w.wait(ctx, l, "k", 1)))
			require.Equal(t, Result{Allowed: true, Limit: 2, Window: 200 * ms, ResetAfter: 400 * ms}, must(t)(w.wait(ctx, l, "k", 2)))
			require.Equal(t, []time.Duration{100 * ms, 200 * ms}, room.slept)
			require.Equal(t, 3, room.calls)
		})
	}
}

func TestWaitAsksOtherLimitersAgain(t *testing.T) {
	const ms = time.Millisecond
	room := newWaitingRoom(t)
	w := room.waiter()
	l := Must(NewSlidingLog(room.client, []Rule{{Limit: 1, Window: 50 * ms}}))
	must(t)(w.wait(ctx, l, "k", 1))
	require.Empty(t, room.slept)
	room.asleep = func(d time.Duration) { // somebody else is first
		room.asleep = nil
		room.advance(50 * ms)
		require.True(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
		room.advance(d - 50*ms)
	}
	require.True(t, must(t)(w.wait(ctx, l, "k", 1)).Allowed)
	require.Equal(t, []time.Duration{55 * ms, 49_500 * time.Microsecond}, room.slept, "RetryAfter and a tenth")

	slow := Must(NewFixedWindow(room.client, 1, time.Hour))
	must(t)(w.wait(ctx, slow, "k", 1))
	room.slept = nil
	must(t)(w.wait(ctx, slow, "k", 1))
	require.Equal(t, []time.Duration{time.Hour + 100*ms}, room.slept, "100 ms more at most")
}

// instant denies so often, with a RetryAfter that is over at once.
type instant struct {
	Limiter
	denials int
}

func (l *instant) TryAcquireN(context.Context, string, int) (Result, error) {
	l.denials--
	return Result{Allowed: l.denials < 0}, nil
}

func TestWaitIsNoBusyLoop(t *testing.T) {
	room := newWaitingRoom(t)
	must(t)(room.waiter().wait(ctx, &instant{denials: 3}, "k", 1))
	require.Equal(t, []time.Duration{time.Millisecond, time.Millisecond, time.Millisecond}, room.slept)
}

// TestADeadlineThatCannotBeMet is an error at once, and takes nothing.
func TestADeadlineThatCannotBeMet(t *testing.T) {
	const ms = time.Millisecond
	for name, build := range map[string]func(c Client) Limiter{
		"token bucket": func(c Client) Limiter { return Must(NewTokenBucket(c, Per(1, 100*ms), 1)) },
		"sliding log":  func(c Client) Limiter { return Must(NewSlidingLog(c, []Rule{{Limit: 1, Window: 100 * ms}})) },
		"fallback": func(c Client) Limiter {
			return Must(NewFallback(Must(NewTokenBucket(c, Per(1, 100*ms), 1)), DenyAll()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			room := newWaitingRoom(t)
			l, w := build(room.client), room.waiter()
			must(t)(w.wait(ctx, l, "k", 1))
			for _, left := range []time.Duration{100 * ms, 1, 0} {
				r, err := w.wait(until{ctx, room.now.Add(left)}, l, "k", 1)
				require.Equal(t, &WaitError{Key: "k", Wait: 100 * ms}, err)
				require.ErrorIs(t, err, ErrWaitTooLong)
				require.Zero(t, r)
			}
			require.Empty(t, room.slept)
			require.True(t, must(t)(w.wait(until{ctx, room.now.Add(100*ms + 1)}, l, "k", 1)).Allowed)
			require.Equal(t, []time.Duration{100 * ms}, room.slept, "without a random part that would miss the deadline")
		})
	}
}

// TestAReplyThatComesTooLateForTheDeadline: the delay counts from the reply, so the deadline is
// met no more. The permits are given back.
func TestAReplyThatComesTooLateForTheDeadline(t *testing.T) {
	room := newWaitingRoom(t)
	w := room.waiter()
	l := Must(NewTokenBucket(room.client, PerSecond(1), 1))
	must(t)(w.wait(ctx, l, "k", 1))
	room.client.AddHook(fakes.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		err := next(ctx, cmd)
		room.now = room.now.Add(time.Millisecond)
		return err
	}})
	_, err := w.wait(until{ctx, room.now.Add(time.Second)}, l, "k", 1)
	require.Equal(t, &WaitError{Key: "k", Wait: time.Second}, err)
	require.Equal(t, time.Second, must(t)(l.Peek(ctx, "k")).ResetAfter, "given back")
}

func TestACancelledWaitGivesBack(t *testing.T) {
	for name, cached := range map[string]bool{"bucket": false, "deny cache": true} {
		t.Run(name, func(t *testing.T) {
			room := newWaitingRoom(t)
			w := room.waiter()
			bucket := Must(NewTokenBucket(room.client, PerSecond(1), 1))
			l := Limiter(bucket)
			if cached {
				l = Must(NewDenyCache(bucket))
			}
			must(t)(w.wait(ctx, l, "k", 1))
			within, cancel := context.WithCancel(ctx)
			room.asleep = func(time.Duration) {
				require.Equal(t, 2*time.Second, must(t)(l.TryAcquire(ctx, "k")).RetryAfter)
				cancel()
			}
			_, err := w.wait(within, l, "k", 1)
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorContains(t, err, `token bucket "default", key "k"`)
			require.Equal(t, time.Second, must(t)(l.TryAcquire(ctx, "k")).RetryAfter, "also the cache has heard of it")

			_, err = w.wait(within, l, "k", 1)
			require.ErrorIs(t, err, context.Canceled)
			room.asleep = nil
			other := Must(NewSlidingLog(room.client, []Rule{{Limit: 1, Window: time.Second}}))
			must(t)(w.wait(ctx, other, "k", 1))
			within, cancel = context.WithCancel(ctx)
			room.asleep = func(time.Duration) { cancel() }
			_, err = w.wait(within, other, "k", 1)
			require.ErrorIs(t, err, context.Canceled)
			require.EqualError(t, err, `ratelimit: waiting for "k": context canceled`)
		})
	}
}

// TestWaitOfAReservation: once used or cancelled, it stays so.
func TestWaitOfAReservation(t *testing.T) {
	room := newWaitingRoom(t)
	l := Must(NewTokenBucket(room.client, PerSecond(1), 1))
	made := func() *Reservation {
		r, _, err := l.reserve(ctx, "k", reserving{n: 1, longest: time.Hour, timing: room.waiter().timing})
		require.NoError(t, err)
		return r
	}
	r := made()
	require.NoError(t, r.Wait(ctx))
	require.NoError(t, r.Wait(ctx))
	require.NoError(t, r.Cancel(ctx), "it is used: nothing is given back")
	require.Zero(t, must(t)(l.Peek(ctx, "k")).Remaining)
	r = made()
	require.Equal(t, time.Second, r.Delay())
	room.advance(400 * time.Millisecond)
	require.Equal(t, 600*time.Millisecond, r.Delay())
	require.NoError(t, r.Cancel(ctx))
	require.EqualError(t, r.Wait(ctx), `ratelimit: token bucket "default", key "k": the reservation was cancelled`)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	r = made()
	require.ErrorIs(t, r.Cancel(ended), context.Canceled)
	require.NoError(t, r.Cancel(ctx))
	require.Equal(t, 600*time.Millisecond, must(t)(l.Peek(ctx, "k")).ResetAfter)
}

// TestCancelAfterItsTimeDoesNothing: the permits may be used from then on, so that a deferred
// Cancel gives none back that were.
func TestCancelAfterItsTimeDoesNothing(t *testing.T) {
	for name, row := range map[string]struct {
		passes time.Duration // since the reply
		calls  int           // of Redis, by Cancel
		left   int           // permits, a second after the reservation
	}{
		"a nanosecond before it is due": {time.Second - time.Nanosecond, 1, 1},
		"when it is due":                {time.Second, 0, 0},
		"later":                         {time.Hour, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			room := newWaitingRoom(t)
			l := Must(NewTokenBucket(room.client, PerSecond(1), 1))
			must(t)(l.TryAcquire(ctx, "k"))
			r, _, err := l.reserve(ctx, "k", reserving{n: 1, longest: time.Hour, timing: room.waiter().timing})
			require.NoError(t, err)
			require.Equal(t, time.Second, r.Delay())
			room.server.SetTime(start.Add(time.Second)) // the clock of Redis, which Cancel does not ask
			room.now, room.calls = start.Add(row.passes), 0
			require.NoError(t, r.Cancel(ctx))
			require.Equal(t, row.calls, room.calls)
			require.Equal(t, row.left, must(t)(l.Peek(ctx, "k")).Remaining)
			if row.calls == 0 {
				require.NoError(t, r.Wait(ctx), "the permits may still be used")
			}
		})
	}

	// One that need not wait is due at once.
	room := newWaitingRoom(t)
	l := Must(NewTokenBucket(room.client, PerSecond(1), 1))
	r, _, err := l.reserve(ctx, "k", reserving{n: 1, timing: room.waiter().timing})
	require.NoError(t, err)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	require.NoError(t, r.Cancel(ended), "it has nothing to ask")
	require.Zero(t, must(t)(l.Peek(ctx, "k")).Remaining)

	// A Wait that fails has not handed the permits out, so that it gives them back even then.
	require.ErrorIs(t, r.Wait(ended), context.Canceled)
	require.Equal(t, 1, must(t)(l.Peek(ctx, "k")).Remaining)
	require.NoError(t, r.Cancel(ctx))
	require.EqualError(t, r.Wait(ctx), `ratelimit: token bucket "default", key "k": the reservation was cancelled`)
}

// TestPermitsAreNotUsedAndGivenBack: of a Cancel and a Wait at the same time, only one has
// the permits.
func TestPermitsAreNotUsedAndGivenBack(t *testing.T) {
	room := newWaitingRoom(t)
	l := Must(NewTokenBucket(room.client, PerSecond(1), 1))
	made := func() *Reservation {
		r, _, err := l.reserve(ctx, "k", reserving{n: 1, longest: time.Hour, timing: room.waiter().timing})
		require.NoError(t, err)
		return r
	}
	must(t)(l.TryAcquire(ctx, "k"))
	const cancelled = `ratelimit: token bucket "default", key "k": the reservation was cancelled`
	r := made()
	room.asleep = func(d time.Duration) {
		require.NoError(t, r.Cancel(ctx))
		room.advance(d)
	}
	require.EqualError(t, r.Wait(ctx), cancelled)
	require.Equal(t, 1, must(t)(l.Peek(ctx, "k")).Remaining)

	room.asleep = nil
	must(t)(l.TryAcquire(ctx, "k"))
	r = made()
	room.client.AddHook(fakes.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		require.EqualError(t, r.Wait(ctx), cancelled)
		return errors.Join(next(ctx, cmd), errors.New("lost"))
	}})
	require.ErrorContains(t, r.Cancel(ctx), "lost")
	require.EqualError(t, r.Wait(ctx), cancelled)
	require.NoError(t, r.Cancel(ctx), "it does not ask again")

	for _, none := range []*Reservation{nil, {}} {
		require.Zero(t, none.Delay())
		require.Zero(t, none.Result())
		require.NoError(t, none.Cancel(ctx))
		require.ErrorIs(t, none.Wait(ctx), ErrInvalidConfig)
	}
}

func TestErrorsOfWait(t *testing.T) {
	room := newWaitingRoom(t)
	w := room.waiter()
	l := Must(NewTokenBucket(room.client, PerSecond(1), 1))
	for _, row := range []struct {
		l    Limiter
		key  string
		n    int
		want error
	}{
		{nil, "k", 1, ErrInvalidConfig},
		{(*TokenBucket)(nil), "k", 1, ErrInvalidConfig},
		{&DenyCache{}, "k", 1, ErrInvalidConfig},
		{l, "", 1, ErrInvalidKey},
		{l, "k", 0, ErrInvalidPermits},
		{l, "k", 2, ErrExceedsLimit},
		{Must(NewFixedWindow(room.client, 1, time.Second)), "k", 2, ErrExceedsLimit},
	} {
		r, err := w.wait(ctx, row.l, row.key, row.n)
		require.ErrorIs(t, err, row.want)
		require.Zero(t, r)
	}
	room.server.SetError("LOADING")
	for _, l := range []Limiter{l, Must(NewFixedWindow(room.client, 1, time.Second))} {
		_, err := w.wait(ctx, l, "k", 1)
		require.ErrorContains(t, err, "LOADING")
	}
	require.Empty(t, room.slept)
}

// TestWaitersOfAFallbackKeepTheirOrder: while one sleeps, the next is promised what comes behind it. In an outage the secondary goes on in
// order, and begins without the permits that this process's waiters were promised.
func TestWaitersOfAFallbackKeepTheirOrder(t *testing.T) {
	room := newWaitingRoom(t)
	w := room.waiter()
	var all []Observation
	observed := WithObserver(func(_ context.Context, o Observation) { all = append(all, o) })
	bucket := Must(NewTokenBucket(room.client, PerSecond(1), 3, WithName("api"), observed))
	local := Must(NewLocalTokenBucket(PerSecond(1), 3, WithClock(func() time.Time { return room.now })))
	l := Must(NewFallback(bucket, local, observed))
	must(t)(w.wait(ctx, l, "k", 3))
	require.Equal(t, 3, must(t)(local.Peek(ctx, "k")).Remaining)
	all = nil
	var order []string
	room.asleep = func(d time.Duration) {
		if len(room.slept) == 1 {
			must(t)(w.wait(ctx, l, "k", 1))
			order = append(order, "second")
		}
	}
	first := must(t)(w.wait(ctx, l, "k", 1))
	require.Equal(t, []time.Duration{time.Second, 2 * time.Second}, room.slept, "not both for a second")
	require.Equal(t, []Observation{
		{Limiter: "api", Call: callWait, Outcome: OutcomeAllowed, Source: SourceRedis, Key: "k", N: 1, Taken: 1, Result: all[0].Result, Waited: 2 * time.Second, Batch: 1},
		{Limiter: "api", Call: callWait, Outcome: OutcomeAllowed, Source: SourceRedis, Key: "k", N: 1, Taken: 1, Result: first, Waited: time.Second, Batch: 1},
	}, Untimed(all), "each once")

	room.server.SetError("LOADING")
	room.slept, all = nil, nil
	room.asleep = func(d time.Duration) {
		if len(room.slept) == 1 {
			require.True(t, must(t)(w.wait(ctx, l, "k", 1)).Fallback)
		}
	}
	require.Equal(t, 1, must(t)(local.Peek(ctx, "k")).Remaining, "two were promised")
	require.True(t, must(t)(w.wait(ctx, l, "k", 1)).Fallback)
	require.Empty(t, room.slept)
	require.True(t, must(t)(w.wait(ctx, l, "k", 1)).Fallback)
	require.Equal(t, []time.Duration{time.Second, 2 * time.Second}, room.slept)
	all = slices.DeleteFunc(all, func(o Observation) bool { return o.Source == SourceRedis }) // the primary's failures
	for _, o := range all {
		require.Equal(t, []any{callWait, OutcomeAllowed, SourceFallback, "api"}, []any{o.Call, o.Outcome, o.Source, o.Limiter})
	}
	require.Len(t, all, 3)
	_, err := l.Reserve(ctx, "k", 1, 3*time.Second-time.Microsecond)
	require.ErrorIs(t, err, ErrWaitTooLong)
	var late *WaitError
	require.ErrorAs(t, err, &late)
	require.Equal(t, 3*time.Second, late.Wait)
	_, err = w.wait(ctx, l, "k", 4)
	require.ErrorIs(t, err, ErrExceedsLimit)

	closed := Must(NewFallback(bucket, DenyAll()))
	room.asleep = func(time.Duration) { room.server.SetError(""); room.advance(5 * time.Second) }
	room.slept = nil
	r := must(t)(w.wait(ctx, closed, "k", 1))
	require.False(t, r.Fallback, "who is denied by the secondary asks again, and is promised a turn when Redis is back")
	require.Equal(t, 1100*time.Millisecond, room.slept[0])
}

// TestAFallbackWaitsInOrder: a turn that the primary has promised is kept in an outage; new calls wait for the secondary.
func TestAFallbackWaitsInOrder(t *testing.T) {
	room := newWaitingRoom(t)
	w := room.waiter()
	l := Must(NewFallback(Must(NewTokenBucket(room.client, PerSecond(1), 1)), AllowAll()))
	must(t)(w.wait(ctx, l, "k", 1))
	room.asleep = func(time.Duration) { room.server.SetError("LOADING") }
	r := must(t)(w.wait(ctx, l, "k", 1))
	require.False(t, r.Fallback)
	require.Equal(t, []time.Duration{time.Second}, room.slept)
	require.Equal(t, Result{Allowed: true, Fallback: true}, must(t)(w.wait(ctx, l, "k", 1)))
	require.Len(t, room.slept, 1)
}

// TestFiftyWaiters wait for 50 a second: one call each, and the instants that they are
// given are a permit's time apart, in the order in which Redis has decided.
func TestFiftyWaiters(t *testing.T) {
	const waiters, apart = 50, 20_000 // µs
	client := redistest.Shared(t).Client(t)
	require.NoError(t, client.FlushAll(ctx).Err())
	var mu sync.Mutex
	calls := 0
	client.AddHook(fakes.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			mu.Lock()
			calls++
			mu.Unlock()
		}
		return next(ctx, cmd)
	}})
	l := Must(NewTokenBucket(client, PerSecond(50), 1))
	require.NoError(t, Preload(ctx, ClaimOf(l, "k", 1)))
	calls = 0
	type promise struct{ decided, due int64 } // by the server's clock, µs
	var all []promise
	var group sync.WaitGroup
	for range waiters {
		group.Go(func() {
			// Wait is this, and then sleeps.
			b, caches := bucketIn(l, nil)
			r, _, err := b.reserve(ctx, "k", reserving{n: 1, longest: realWaiter.left(ctx), timing: realWaiter.timing, around: caches})
			if err != nil {
				t.Error(err)
				return
			}
			wrote, _ := r.from.(*redisReservation).texts()
			decided, err := strconv.ParseInt(wrote[:16], 10, 64)
			if err != nil {
				t.Error(err)
			}
			due := decided
			if _, after, later := strings.Cut(wrote, "!"); later {
				d, err := strconv.ParseInt(after, 10, 64)
				if err != nil {
					t.Error(err)
				}
				due += d
			}
			mu.Lock()
			all = append(all, promise{decided, due})
			mu.Unlock()
		})
	}
	group.Wait()
	require.Len(t, all, waiters)
	require.LessOrEqual(t, calls, waiters*105/100)
	slices.SortFunc(all, func(a, b promise) int { return int(a.due - b.due) })
	for i := 1; i < waiters; i++ {
		require.LessOrEqual(t, all[i-1].decided, all[i].decided, "waiter %d is out of turn", i) // in one batch, they are equal
		require.Equal(t, max(all[i-1].due+apart, all[i].decided), all[i].due, "waiter %d", i)
	}
}

// TestWaitSleeps checks that Wait sleeps no less than RetryAfter.
func TestWaitSleeps(t *testing.T) {
	client := redistest.Shared(t).Client(t)
	require.NoError(t, client.FlushAll(ctx).Err())
	for _, l := range []Limiter{
		Must(NewTokenBucket(client, PerSecond(100), 1)),
		Must(NewSlidingLog(client, []Rule{{Limit: 1, Window: 10 * time.Millisecond}})),
	} {
		must(t)(Wait(ctx, l, "k"))
		asked := time.Now()
		before := must(t)(l.Peek(ctx, "k"))
		must(t)(WaitN(ctx, l, "k", 1))
		require.GreaterOrEqual(t, time.Since(asked), before.RetryAfter)
		within, cancel := context.WithTimeout(ctx, time.Hour)
		must(t)(Wait(within, l, "k"))
		cancel()
		_, err := Wait(within, l, "k")
		require.ErrorIs(t, err, context.Canceled)
	}
}
