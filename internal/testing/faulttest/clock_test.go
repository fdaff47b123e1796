package faulttest

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

const (
	hourStep   = time.Hour
	clockLimit = 4
	// Far more than the tests take. It divides the step, so that a calendar
	// window is as far from its boundary after a step as before.
	clockWindow = 30 * time.Minute
)

// blocks is the longest that one permit of an exhausted key can be away.
func (q quota) blocks() time.Duration {
	switch q.name {
	case "SlidingWindow Hash", "SlidingWindow List":
		return clockWindow + clockWindow/10
	case "SlidingWindow of one sub-window":
		return 2 * clockWindow
	case "SlidingLog with a resolution":
		return clockWindow + clockWindow/20
	case "TokenBucket", "TokenBucket in an All", "LeakyBucket", "TokenBucket stepped":
		return clockWindow / clockLimit
	}
	return clockWindow
}

// drain takes single permits until one is denied, and returns how many were
// allowed and the denial. Limits in the loop only guard against a limiter that never denies.
func drain(t testing.TB, l ratelimit.Limiter, key string) (allowed int, denial ratelimit.Result) {
	t.Helper()
	for allowed <= 10*clockLimit {
		r := must(t)(l.TryAcquire(ctx, key))
		if !r.Allowed {
			return allowed, r
		}
		allowed++
	}
	require.Fail(t, "no call is denied", "%d permits allowed of a limit of %d", allowed, clockLimit)
	return
}

// A steppedServer is a server whose clock is stepped.
type steppedServer struct {
	*redistest.Server
	t testing.TB
}

// blocked requires a denial that lasts no longer than the rule, and that the
// promised instants hold by the stepped clock: the clock is stepped to them.
func (s steppedServer) blocked(l ratelimit.Limiter, q quota, key string, denial ratelimit.Result) {
	s.t.Helper()
	require.False(s.t, denial.Allowed)
	require.Positive(s.t, denial.RetryAfter)
	require.LessOrEqual(s.t, denial.RetryAfter, q.blocks())
	require.LessOrEqual(s.t, denial.ResetAfter, 2*clockWindow)

	// Any call repairs the TTL after the step, even one that is denied.
	client := s.Client(s.t)
	names := client.Keys(ctx, q.name+":default:*{"+key+"}").Val()
	require.Len(s.t, names, 1)
	ttl := client.PTTL(ctx, names[0]).Val()
	require.Positive(s.t, ttl)
	require.LessOrEqual(s.t, ttl, denial.ResetAfter+time.Second)

	s.StepClock(denial.RetryAfter)
	r := must(s.t)(l.TryAcquire(ctx, key))
	require.True(s.t, r.Allowed, "at RetryAfter by the stepped clock: %+v", r)
	_, denial = drain(s.t, l, key)
	s.StepClock(denial.ResetAfter)
	again, _ := drain(s.t, l, key)
	require.Equal(s.t, clockLimit, again, "the full limit is available at ResetAfter by the stepped clock")
}

// TestASteppedClockGivesNoNewQuota steps the clock that decides by an hour, for every limiter with
// a window of half an hour.
func TestASteppedClockGivesNoNewQuota(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Faketime())
	client := server.Client(t)
	for _, q := range quotas() {
		t.Run(q.name, func(t *testing.T) {
			l, err := q.build(client, clockLimit, clockWindow, ratelimit.WithPrefix(q.name))
			require.NoError(t, err)
			s := steppedServer{server, t}

			// Used up, then back: no fresh quota.
			allowed, _ := drain(t, l, "back")
			require.Equal(t, clockLimit, allowed)
			s.StepClock(-hourStep)
			require.False(t, must(t)(l.Peek(ctx, "back")).Allowed)
			fresh, denial := drain(t, l, "back")
			require.Zero(t, fresh, "permits allowed a second time after a step back")
			s.blocked(l, q, "back", denial)

			// Half used, then back: windows have the other half still. A bucket
			// cannot know how long ago it was taken from, and may be empty.
			must(t)(l.TryAcquireN(ctx, "half", clockLimit/2))
			s.StepClock(-hourStep)
			half, denial := drain(t, l, "half")
			require.LessOrEqual(t, half, clockLimit/2)
			if q.kind == anyWindow || q.kind == perWindow {
				require.Equal(t, clockLimit/2, half)
			}
			s.blocked(l, q, "half", denial)

			// Used up, then forward by more than a window: one quota, by the clock.
			drain(t, l, "forward")
			s.StepClock(hourStep)
			forward, _ := drain(t, l, "forward")
			require.Equal(t, clockLimit, forward)
			s.StepClock(-hourStep) // and back where it came from
			fresh, denial = drain(t, l, "forward")
			require.Zero(t, fresh)
			s.blocked(l, q, "forward", denial)

			// To and fro: only the way forward counts, here a quarter of a window.
			drain(t, l, "zigzag")
			zigzag := 0
			for range 5 {
				s.StepClock(-hourStep)
				n, _ := drain(t, l, "zigzag")
				s.StepClock(clockWindow / 20)
				more, d := drain(t, l, "zigzag")
				zigzag += n + more
				denial = d
			}
			switch {
			case q.kind == anyWindow || q.kind == perWindow:
				require.Zero(t, zigzag)
			default: // a quarter of the rate, and never more for the steps back
				require.LessOrEqual(t, zigzag, clockLimit/4)
			}
			s.blocked(l, q, "zigzag", denial)
			t.Logf("allowed after a step of an hour: back 0 of %d used up, %d of the %d left; forward %d; to and fro five times %d",
				clockLimit, half, clockLimit/2, forward, zigzag)
		})
	}
}

// TestAFailoverToAnotherClockKeepsTheRule promotes a replica whose clock is an hour off.
func TestAFailoverToAnotherClockKeepsTheRule(t *testing.T) {
	t.Parallel()
	for name, jump := range map[string]time.Duration{"back": -hourStep, "forward": hourStep} {
		t.Run(name, func(t *testing.T) {
			master, replica := redistest.Start(t, redistest.Args("--repl-diskless-sync-delay", "0")), redistest.Start(t, redistest.Faketime())
			s := steppedServer{replica, t}
			client, promoted := master.Client(t), replica.Client(t)
			replica.StepClock(jump)
			require.NoError(t, promoted.ReplicaOf(ctx, "127.0.0.1", strconv.Itoa(master.Port())).Err())
			eventually(t, "replication", func() bool { return client.Wait(ctx, 1, time.Second).Val() == 1 })
			for _, q := range quotas() {
				l, err := q.build(client, clockLimit, clockWindow, ratelimit.WithPrefix(q.name))
				require.NoError(t, err)
				allowed, _ := drain(t, l, "k")
				require.Equal(t, clockLimit, allowed)
			}
			require.Equal(t, int64(1), client.Wait(ctx, 1, 10*time.Second).Val(), "all of it is replicated")
			master.Kill()
			require.NoError(t, promoted.ReplicaOf(ctx, "NO", "ONE").Err())
			for _, q := range quotas() { // before the clock is moved on
				l, err := q.build(promoted, clockLimit, clockWindow, ratelimit.WithPrefix(q.name))
				require.NoError(t, err)
				fresh, denial := drain(t, l, "k")
				if jump < 0 {
					require.Zero(t, fresh, "%s: permits allowed a second time after a jump back", q.name)
				} else {
					require.Equal(t, clockLimit, fresh, "%s: an hour later by the clock that decides", q.name)
				}
				require.LessOrEqual(t, denial.RetryAfter, q.blocks(), q.name)
			}
			for _, q := range quotas() {
				l, err := q.build(promoted, clockLimit, clockWindow, ratelimit.WithPrefix(q.name))
				require.NoError(t, err)
				must(t)(l.TryAcquire(ctx, "k"))
				_, denial := drain(t, l, "k")
				s.blocked(l, q, "k", denial)
			}
			t.Logf("%d limiters, the new master's clock %v off: %s", len(quotas()), jump,
				map[bool]string{true: "nothing more", false: "one quota each"}[jump < 0])
		})
	}
}
