package ratelimit_test

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

var lengths = []time.Duration{2 * time.Minute, 5 * time.Minute, 10 * time.Minute}

// bansOf are bans of a limit of one permit in ten seconds.
func bansOf(c ratelimit.Client, opts ...ratelimit.Option) (*ratelimit.Bans, *ratelimit.Pause) {
	p := ratelimit.Must(ratelimit.NewPause(c, append(opts, ratelimit.WithName("banned"))...))
	l := ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.Per(1, 10*time.Second), 1, append(opts, ratelimit.WithName("api"))...))
	return ratelimit.Must(ratelimit.NewBans(l, p, lengths, time.Hour)), p
}

// TestBansGrow: one strike for each episode, of a longer pause each; after a quiet hour all begins again.
func TestBansGrow(t *testing.T) {
	limitertest.Everywhere(t, func(t *testing.T, s *limitertest.Stage) {
		s.Wipe(t)
		opts := s.Opts[:len(s.Opts):len(s.Opts)]
		b, p := bansOf(s.Client, opts...)
		another, _ := bansOf(s.Client, opts...)
		strike := func(length time.Duration) {
			t.Helper()
			require.True(t, must(t)(b.TryAcquire(ctx, "k")).Allowed)
			require.Equal(t, 10*time.Second, must(t)(b.Peek(ctx, "k")).RetryAfter, "a look is no strike")
			for _, l := range []*ratelimit.Bans{b, another, b} {
				require.Equal(t, pausedFor(length).RetryAfter, must(t)(l.TryAcquire(ctx, "k")).RetryAfter)
			}
			s.Advance(length - time.Microsecond)
			require.Equal(t, time.Microsecond, must(t)(another.TryAcquire(ctx, "k")).RetryAfter)
			s.Advance(time.Microsecond)
		}
		strike(2 * time.Minute)
		strike(5 * time.Minute)
		strike(10 * time.Minute)
		strike(10 * time.Minute)
		s.Advance(time.Hour - time.Microsecond)
		strike(10 * time.Minute)
		s.Advance(time.Hour)
		strike(2 * time.Minute)
		require.Equal(t, unlimited, must(t)(p.Peek(ctx, "k")))

		strike(5 * time.Minute)
		must(t)(b.TryAcquire(ctx, "k"))
		must(t)(b.TryAcquire(ctx, "k"))
		require.NoError(t, b.Reset(ctx, "k"), "a pardon")
		strike(2 * time.Minute)

		must(t)(b.Pause(ctx, "k", time.Hour))
		require.Equal(t, pausedFor(time.Hour), must(t)(p.Peek(ctx, "k")), "an operator's")
		require.Equal(t, time.Hour, must(t)(b.TryAcquire(ctx, "k")).RetryAfter)
		require.NoError(t, p.Reset(ctx, "k"))
		require.True(t, must(t)(b.TryAcquire(ctx, "k")).Allowed)
	})
}

// TestAnEpisodeLastsAsLongAsItsDenial: what a client may not do before RetryAfter is no strike if the pause is shorter.
func TestAnEpisodeLastsAsLongAsItsDenial(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	p := ratelimit.Must(ratelimit.NewPause(s.Client, ratelimit.WithName("banned")))
	log := ratelimit.Must(ratelimit.NewSlidingLog(s.Client, []ratelimit.Rule{{Limit: 2, Window: time.Hour}}))
	b := ratelimit.Must(ratelimit.NewBans(log, p, []time.Duration{time.Minute, 2 * time.Hour}, time.Hour))
	must(t)(b.TryAcquireN(ctx, "k", 2))
	for range 59 {
		r := must(t)(b.TryAcquire(ctx, "k"))
		require.False(t, r.Allowed)
		require.Equal(t, limitertest.Start.Add(time.Hour).Sub(s.Now), r.RetryAfter, "what lasts longer")
		s.Advance(time.Minute)
	}
	s.Advance(time.Minute)
	must(t)(b.TryAcquireN(ctx, "k", 2))
	require.Equal(t, 2*time.Hour, must(t)(b.TryAcquire(ctx, "k")).RetryAfter, "the second strike")
}

// TestStrikesAfterAClockStep: a clock that steps back delays no strike, also after a Resume, which nobody needs here.
func TestStrikesAfterAClockStep(t *testing.T) {
	for _, resumed := range []bool{false, true} {
		s := limitertest.OnHeldRedis(t)
		b, p := bansOf(s.Client)
		must(t)(b.TryAcquire(ctx, "k"))
		require.Equal(t, lengths[0], must(t)(b.TryAcquire(ctx, "k")).RetryAfter)
		s.Advance(lengths[0])
		if resumed {
			require.NoError(t, p.Resume(ctx, "k"))
		}
		s.Advance(-30 * time.Minute)
		require.Equal(t, lengths[0], must(t)(b.TryAcquire(ctx, "k")).RetryAfter, "no longer than it was to last in all")
		s.Advance(lengths[0])
		require.True(t, must(t)(b.TryAcquire(ctx, "k")).Allowed)
		require.Equal(t, lengths[1], must(t)(b.TryAcquire(ctx, "k")).RetryAfter, "resumed: %v", resumed)
	}
}

// TestDenialsAtTheSameTimeAreOneStrike, of callers of several processes.
func TestDenialsAtTheSameTimeAreOneStrike(t *testing.T) {
	server := redistest.Shared(t)
	var processes []*ratelimit.Bans
	for range 4 {
		b, _ := bansOf(server.Client(t), ratelimit.WithPrefix(t.Name()))
		processes = append(processes, b)
	}
	for range 5 {
		require.NoError(t, processes[0].Reset(ctx, "k"))
		var callers sync.WaitGroup
		for i := range 60 {
			callers.Go(func() {
				if _, err := processes[i%len(processes)].TryAcquire(ctx, "k"); err != nil {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		r := must(t)(processes[0].TryAcquire(ctx, "k"))
		require.False(t, r.Allowed)
		require.LessOrEqual(t, r.RetryAfter, lengths[0], "one strike")
		require.Greater(t, r.RetryAfter, lengths[0]-time.Minute)
	}
}

// TestBansBesideOthers: a paused key takes nothing from anybody, and only the limiter that denies brings a strike.
func TestBansBesideOthers(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	b, p := bansOf(s.Client)
	tokens := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerMinute(100), 100, ratelimit.WithName("tokens")))
	cross := func(decide func(claims ...ratelimit.Claim) (ratelimit.AllResult, error)) {
		s.Wipe(t)
		call := func(n int) ratelimit.AllResult {
			t.Helper()
			r, err := decide(ratelimit.ClaimOf(b, "k", 1), ratelimit.ClaimOf(tokens, "k", n).Estimate(), ratelimit.ClaimOf(b, "other", 1))
			require.NoError(t, err)
			require.Len(t, r.Parts, 3)
			require.Equal(t, []string{"api", "tokens", "api"}, []string{r.Parts[0].Name, r.Parts[1].Name, r.Parts[2].Name})
			return r
		}
		r := call(100)
		require.True(t, r.Allowed)
		require.NotNil(t, r.Parts[1].Ticket)
		require.NoError(t, r.Parts[1].Ticket.Settle(ctx, 70))
		s.Advance(10 * time.Second) // 46 tokens are there
		r = call(60)
		require.False(t, r.Allowed)
		require.Equal(t, "tokens", named(r))
		require.Equal(t, unlimited, must(t)(p.Peek(ctx, "k")), "another limit denied it")
		require.True(t, must(t)(b.TryAcquire(ctx, "k")).Allowed)
		r = call(1)
		require.Equal(t, lengths[0], r.RetryAfter)
		require.Equal(t, pausedFor(lengths[0]).RetryAfter, r.Parts[0].Result.RetryAfter)
		require.True(t, r.Parts[1].Result.Allowed)
		require.True(t, r.Parts[2].Result.Allowed)
		require.Equal(t, lengths[0], call(1).RetryAfter)
		require.Equal(t, 46, must(t)(tokens.Peek(ctx, "k")).Remaining)
		require.Equal(t, unlimited, must(t)(p.Peek(ctx, "other")))
		looked, err := ratelimit.Look(ctx, ratelimit.ClaimOf(b, "k", 1), ratelimit.ClaimOf(tokens, "k", 1))
		require.NoError(t, err)
		require.Equal(t, lengths[0], looked.RetryAfter)
	}
	cross(func(claims ...ratelimit.Claim) (ratelimit.AllResult, error) {
		return ratelimit.TryAcquireAll(ctx, claims...)
	})
	cross(func(claims ...ratelimit.Claim) (ratelimit.AllResult, error) {
		return ratelimit.TryAcquireAcrossSlots(ctx, claims...)
	})
	require.NoError(t, ratelimit.CheckClaims(ratelimit.ClaimOf(b, "k", 1)))
	require.NoError(t, ratelimit.Preload(ctx, ratelimit.ClaimOf(b, "k", 1)))
	var many []ratelimit.Claim
	for _, key := range []string{"{k}1", "{k}2", "{k}3", "{k}4", "{k}5"} {
		many = append(many, ratelimit.ClaimOf(b, key, 1))
	}
	_, err := ratelimit.TryAcquireAll(ctx, many...)
	require.ErrorContains(t, err, "10 limiters are too many")
	require.ErrorContains(t, ratelimit.CheckClaims(many...), "10 limiters are too many")
}

// TestBansOnce: the same id again gets its answer, also while the key is paused; a denial brings a strike.
func TestBansOnce(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	b, p := bansOf(s.Client)
	call := func(id string, allowed, repeated bool) {
		t.Helper()
		for _, l := range []ratelimit.Limiter{b, ratelimit.Must(ratelimit.NewDenyCache(ratelimit.Must(ratelimit.NewFallback(b, ratelimit.AllowAll()))))} {
			r, err := ratelimit.TryAcquireOnce(ctx, id, time.Hour, ratelimit.ClaimOf(l, "k", 1))
			require.NoError(t, err)
			require.Equal(t, []bool{allowed, repeated}, []bool{r.Allowed, r.Repeated})
			require.Len(t, r.Parts, 1)
			require.Equal(t, "api", r.Parts[0].Name)
			repeated = allowed
		}
	}
	call("a", true, false)
	call("a", true, true)
	call("b", false, false)
	require.Equal(t, pausedFor(lengths[0]), must(t)(p.Peek(ctx, "k")))
	call("a", true, true)
}

// TestBansAcrossSlots: on a Ring each key is asked on its own, and what is taken comes back.
func TestBansAcrossSlots(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	ring := ringOf(t, s.Client.(*redis.Client).Options().Addr)
	b, p := bansOf(ring)
	tokens := ratelimit.Must(ratelimit.NewTokenBucket(ring, ratelimit.PerMinute(100), 100, ratelimit.WithName("tokens")))
	call := func(n int) ratelimit.AllResult {
		t.Helper()
		r, err := ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimOf(b, "k", 1), ratelimit.ClaimOf(tokens, "else", n).Estimate(), ratelimit.ClaimOf(b, "other", 1))
		require.NoError(t, err)
		require.Len(t, r.Parts, 3)
		return r
	}
	r := call(100)
	require.True(t, r.Allowed)
	require.NoError(t, r.Parts[1].Ticket.Settle(ctx, 70))
	s.Advance(10 * time.Second) // 46 tokens are there
	require.Equal(t, "tokens", named(call(60)))
	require.Equal(t, unlimited, must(t)(p.Peek(ctx, "k")), "another limit denied it")
	require.True(t, must(t)(b.TryAcquire(ctx, "k")).Allowed, "what was taken has come back")
	for range 2 { // a strike; paused
		r = call(1)
		require.Equal(t, lengths[0], r.RetryAfter)
		require.Equal(t, []bool{false, true, true}, []bool{r.Parts[0].Result.Allowed, r.Parts[1].Result.Allowed, r.Parts[2].Result.Allowed})
	}
	require.Equal(t, 46, must(t)(tokens.Peek(ctx, "else")).Remaining)
	require.Equal(t, unlimited, must(t)(p.Peek(ctx, "other")))

	probed := ratelimit.Must(ratelimit.NewPause(ring, ratelimit.WithName("probed"), ratelimit.WithProbe(time.Minute)))
	must(t)(probed.Pause(ctx, "k", 0))
	r, err := ratelimit.TryAcquireAcrossSlots(ctx, ratelimit.ClaimOf(probed, "k", 1), ratelimit.ClaimOf(tokens, "else", 60))
	require.NoError(t, err)
	require.Equal(t, "tokens", named(r))
	require.Equal(t, 1, must(t)(probed.TryAcquire(ctx, "k")).Limit, "a call that another limit denies does not go first")
}

// named is the name of the part that denied.
func named(r ratelimit.AllResult) string {
	for _, p := range r.Parts {
		if !p.Result.Allowed {
			return p.Name
		}
	}
	return ""
}

// TestEveryOperationOfBans.
func TestEveryOperationOfBans(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	b, p := bansOf(s.Client)
	taken, r, err := b.TryAcquireUpTo(ctx, "k", 1)
	require.NoError(t, err)
	require.Equal(t, 1, taken)
	require.True(t, r.Allowed)
	taken, r, err = b.TryAcquireUpTo(ctx, "k", 1)
	require.NoError(t, err)
	require.Zero(t, taken)
	require.Equal(t, lengths[0], r.RetryAfter)
	s.Advance(time.Minute)
	taken, r, err = b.TryAcquireUpTo(ctx, "k", 1)
	require.NoError(t, err)
	require.Zero(t, taken)
	require.Equal(t, pausedFor(time.Minute), r)
	_, _, err = b.TryAcquireUpTo(ctx, "k", 0)
	require.ErrorIs(t, err, ratelimit.ErrInvalidPermits)
	ticket, r, err := b.Estimate(ctx, "k", 1)
	require.NoError(t, err)
	require.Nil(t, ticket)
	require.Equal(t, time.Minute, r.RetryAfter)
	r, err = b.Charge(ctx, "k", 3)
	require.NoError(t, err)
	require.Equal(t, 1, r.Limit)
	_, err = b.Reserve(ctx, "k", 1, time.Hour)
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	require.NoError(t, b.Resume(ctx, "k"))
	require.Equal(t, pausedFor(time.Minute), must(t)(p.Peek(ctx, "k")))

	ticket, _, err = b.Estimate(ctx, "other", 1)
	require.NoError(t, err)
	require.NoError(t, ticket.Settle(ctx, 0))
	require.True(t, must(t)(b.TryAcquire(ctx, "other")).Allowed)
	_, err = b.TryAcquireN(ctx, "other", 2)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	require.Equal(t, "api", b.Name())
}

// TestABanInAnOutage: behind a DenyCache and a Fallback, what this process knows is kept. A strike that Redis does not
// hear of leaves the denial.
func TestABanInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := ratelimittest.New(t)
		b, _ := bansOf(env.Client())
		outage := ratelimit.Must(ratelimit.NewFallback(b, ratelimit.AllowAll(), ratelimit.WithBudget(time.Second)))
		l := ratelimit.Must(ratelimit.NewDenyCache(outage))
		must(t)(l.TryAcquire(ctx, "k"))
		require.Equal(t, lengths[0], must(t)(l.TryAcquire(ctx, "k")).RetryAfter)
		env.Down()
		require.Equal(t, lengths[0], must(t)(l.TryAcquire(ctx, "k")).RetryAfter)
		require.True(t, must(t)(l.TryAcquire(ctx, "other")).Fallback)
		env.Up()
		env.Advance(lengths[0])
		require.True(t, must(t)(l.TryAcquire(ctx, "k")).Allowed)
	})
	s := limitertest.OnMiniredis(t)
	down, refused := false, 0
	client := fakes.Before(s.Client, func(_ context.Context, cmd redis.Cmder) error {
		args := cmd.Args()
		if last, ok := args[len(args)-1].([]byte); ok && down && strings.HasPrefix(string(last), "1t") { // the strike
			refused++
			return io.EOF
		}
		return nil
	})
	b, p := bansOf(client)
	must(t)(b.TryAcquire(ctx, "k"))
	down = true
	r := must(t)(b.TryAcquire(ctx, "k"))
	require.False(t, r.Allowed)
	require.Equal(t, 10*time.Second, r.RetryAfter)
	down = false
	require.Equal(t, 1, refused)
	require.Equal(t, unlimited, must(t)(p.Peek(ctx, "k")))
	require.Equal(t, lengths[0], must(t)(b.TryAcquire(ctx, "k")).RetryAfter)
}

func TestBansThatCannotWork(t *testing.T) {
	c := fakes.Offline(t)
	l := ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerSecond(1), 1))
	p := ratelimit.Must(ratelimit.NewPause(c, ratelimit.WithName("banned")))
	for _, test := range []struct {
		l       ratelimit.Limiter
		p       *ratelimit.Pause
		lengths []time.Duration
		quiet   time.Duration
		says    string
	}{
		{nil, p, lengths, time.Hour, "NewBans: the limiter is nil"},
		{ratelimit.AllowAll(), p, lengths, time.Hour, "which does not decide on Redis; put decorators around the Bans"},
		{ratelimit.Must(ratelimit.NewDenyCache(l)), p, lengths, time.Hour, "put decorators around the Bans"},
		{p, p, lengths, time.Hour, "NewBans: the limiter is a pause; give one with a limit"},
		{l, nil, lengths, time.Hour, "NewBans: the pause was not made; NewPause makes one"},
		{l, new(ratelimit.Pause), lengths, time.Hour, "NewBans: the pause was not made"},
		{l, ratelimit.Must(ratelimit.NewPause(c, ratelimit.WithProbe(time.Second))), lengths, time.Hour, `the pause "default" has WithProbe`},
		{l, ratelimit.Must(ratelimit.NewPause(fakes.Offline(t))), lengths, time.Hour, "have different clients"},
		{l, p, nil, time.Hour, "NewBans: there are 0 lengths of pauses; give 1 to 100"},
		{l, p, []time.Duration{time.Second, 0}, time.Hour, "NewBans: length 2 is 0s; it must be at least 1ms"},
		{l, p, lengths, 0, "NewBans: the quiet time is 0s; it must be at least 1ms"},
	} {
		_, err := ratelimit.NewBans(test.l, test.p, test.lengths, test.quiet)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, test.says)
	}
}
