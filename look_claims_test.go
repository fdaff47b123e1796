package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// A looked is a limiter in a policy, or in none.
type looked struct {
	name  string
	claim func(key string, n int) ratelimit.Claim
}

// drawLooked returns random limiters of one to three names that can decide together: on Redis, or in memory.
func drawLooked(t *testing.T, rng *rand.Rand, s *limitertest.Stage) (all []looked) {
	kinds := append(limitertest.Kinds(), limitertest.Kind{Name: "CalendarWindow", Build: func(c ratelimit.Client, limit int, _ time.Duration, o ...ratelimit.Option) (ratelimit.Limiter, error) {
		return ratelimit.NewCalendarWindow(c, limit, ratelimit.Daily(limitertest.EndOfDay), o[0])
	}})
	around := append([]limitertest.Composition{{Name: "bare", Around: func(_ testing.TB, _ *limitertest.Stage, l ratelimit.Limiter) ratelimit.Limiter { return l }}}, policies...)
	inMemory := rng.IntN(4) == 0
	for i := range 1 + rng.IntN(3) {
		name := ratelimit.WithName(fmt.Sprint("n", i))
		limit, at := 1+rng.IntN(6), rng.IntN(len(kinds)+1)
		if at == len(kinds) {
			var h ratelimit.Holder = ratelimit.Must(ratelimit.NewInFlight(s.Client, limit, 20*time.Second, name))
			if inMemory {
				h = ratelimit.Must(ratelimit.NewLocalInFlight(limit, name))
			}
			switch inner := h; rng.IntN(3) {
			case 0:
				h = ratelimit.Must(ratelimit.NewHoldChoice(func(context.Context, string) (ratelimit.Holder, error) { return inner, nil }))
			case 1:
				h = ratelimit.Must(ratelimit.NewHoldFallback(h, ratelimit.DenyHolds()))
			}
			all = append(all, looked{fmt.Sprintf("%T of %d", h, limit), func(key string, n int) ratelimit.Claim { return ratelimit.ClaimHold(h, key, n) }})
			continue
		}
		var l ratelimit.Limiter
		var keys limitertest.Keys
		about := "LocalTokenBucket"
		if inMemory {
			l = ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.Per(limit, time.Second), limit, name, ratelimit.WithClock(func() time.Time { return s.Now })))
		} else {
			built, err := kinds[at].Build(s.Client, limit, time.Second, name)
			require.NoError(t, err)
			l, about, keys = built, kinds[at].Name, kinds[at].Keys
		}
		for range rng.IntN(3) {
			p := around[rng.IntN(len(around))]
			if p.Name == "DenyCache" && inMemory || p.Name == "DenyCache" && strings.HasPrefix(about, "Shadow") || strings.Contains(about, "DenyCache") || strings.Contains(about, "Fallback") {
				continue
			}
			l, about = p.Around(t, s, l), p.Name+" around "+about
		}
		all = append(all, looked{fmt.Sprintf("%s of %d", about, limit), func(key string, n int) ratelimit.Claim { return ratelimit.ClaimOf(l, keys.Of(key), n) }})
	}
	return all
}

// contents is everything in Redis, to the byte, with the time that each key has left.
func contents(t *testing.T, s *limitertest.Stage) map[string]string {
	all := everything(t, s)
	for key := range all {
		switch left := s.Admin.PTTL(ctx, key).Val(); left {
		case 0, -2: // a key in its last millisecond: the server deletes it when it comes to it
			delete(all, key)
		default:
			all[key] += fmt.Sprint(" ", left)
		}
	}
	return all
}

// TestALookAnswersWhatACallWouldAnswer: random limiters, policies, numbers of permits and states. A look changes nothing
// in Redis. If the call is denied, its answer is the look's in every field; if it is allowed, it takes exactly as much from what the
// look has seen. What a Leased answers in this process is not compared: a look asks Redis.
func TestALookAnswersWhatACallWouldAnswer(t *testing.T) {
	for server, stage := range map[string]struct {
		open        func(testing.TB) *limitertest.Stage
		usual, full int
	}{"miniredis": {limitertest.OnMiniredis, 30, 2000}, "Redis": {limitertest.OnHeldRedis, 10, 200}} {
		t.Run(server, func(t *testing.T) {
			s := stage.open(t)
			rng := model.Seeded(limitertest.Seed(t))
			allowed, denied, exact := 0, 0, 0
			for range max(10, limitertest.Rounds(stage.full, stage.usual)) { // of one round, all may be denied
				s.Wipe(t)
				limiters := drawLooked(t, rng, s)
				var steps []string
				var last ratelimit.AllResult
				for range 25 {
					switch pause := rng.IntN(6); {
					case pause == 0:
						s.Advance(time.Duration(rng.Int64N(int64(400 * time.Millisecond))).Truncate(time.Microsecond))
					case pause == 1:
						s.Advance(last.RetryAfter)
					case pause == 2 && last.RetryAfter > time.Millisecond:
						s.Advance(last.RetryAfter - time.Millisecond)
					}
					var claims []ratelimit.Claim
					var ns []int
					about := fmt.Sprint(s.Now.UnixMicro())
					for _, l := range limiters {
						for range 1 + rng.IntN(8)/7 { // now and then twice
							n, key := 1+rng.IntN(3), "a"
							switch rng.IntN(20) {
							case 0:
								n = 0
							case 1:
								n = 7
							case 2, 3:
								key = "b"
							}
							claim := l.claim(key, n)
							if rng.IntN(8) == 0 && !strings.Contains(l.name, "*ratelimit.") { // holds have no estimates
								claim = claim.Estimate()
								about += ", an estimate"
							}
							claims, ns = append(claims, claim), append(ns, n)
							about += fmt.Sprintf(", %d of %s by %s", n, key, l.name)
						}
					}
					before := contents(t, s)
					look, err := ratelimit.Look(ctx, claims...)
					require.Equal(t, before, contents(t, s), about)
					call, callErr := ratelimit.TryAcquireAll(ctx, claims...)
					steps = append(steps, fmt.Sprintf("%s: %+v, %v", about, look, err))
					story := strings.Join(steps[max(0, len(steps)-6):], "\n")
					require.Equal(t, callErr == nil, err == nil, "%s\n%v\n%v", story, err, callErr)
					if err != nil {
						for _, what := range []error{ratelimit.ErrInvalidConfig, ratelimit.ErrInvalidPermits, ratelimit.ErrExceedsLimit} {
							require.Equal(t, errors.Is(callErr, what), errors.Is(err, what), "%s\n%v\n%v", story, err, callErr)
						}
						last = ratelimit.AllResult{}
						continue
					}
					last = call
					if call.Leased { // answered in this process, which the look does not ask
						continue
					}
					require.Equal(t, call.Allowed, look.Allowed, story)
					if !call.Allowed {
						denied++
						remembered := false
						for _, p := range call.Parts {
							remembered = remembered || p.Unknown
						}
						for i, p := range call.Parts { // of a DenyCache, which may have learned it from the look
							if remembered && !p.Unknown {
								require.Equal(t, p.Result, look.Parts[i].Result, story)
							}
							if strings.Contains(about, "DenyCache") { // memory does not say who denied
								call.Parts[i], look.Parts[i] = ratelimit.OfBucket(false, p), ratelimit.OfBucket(false, look.Parts[i])
							}
						}
						if !remembered {
							require.Equal(t, call, look, story)
						}
						// Memory may know of a denial for fewer permits only, and holds in memory end when they are released.
						timed := !strings.Contains(about, "DenyCache") && !strings.Contains(about, "LocalInFlight") && !strings.Contains(about, "hold")
						if timed && len(claims) == 1 && rng.IntN(2) == 0 && look.RetryAfter > time.Millisecond {
							exact++
							s.Advance(look.RetryAfter - time.Millisecond)
							early, err := ratelimit.Look(ctx, claims...)
							require.NoError(t, err)
							require.False(t, early.Allowed, story)
							s.Advance(time.Millisecond)
							due, err := ratelimit.Look(ctx, claims...)
							require.NoError(t, err)
							require.True(t, due.Allowed, story)
						}
						continue
					}
					allowed++
					for i, p := range look.Parts {
						got := call.Parts[i]
						require.Nil(t, p.Hold)
						require.Nil(t, p.Ticket)
						require.Zero(t, p.Result.RetryAfter, story)
						require.Equal(t, []any{got.Name, got.Key, got.Unknown, true, got.Result.Window}, []any{p.Name, p.Key, p.Unknown, p.Result.Allowed, p.Result.Window}, story)
						if len(claims) == 1 {
							require.Equal(t, got.Result.Remaining, p.Result.Remaining-ns[i], story)
						}
						require.LessOrEqual(t, p.Result.ResetAfter, got.Result.ResetAfter, story)
					}
					if rng.IntN(3) == 0 {
						require.NoError(t, call.Finish(ctx, nil))
					}
				}
			}
			t.Logf("%d allowed, %d denied, of %d the instant", allowed, denied, exact)
			require.Positive(t, allowed)
			require.Positive(t, denied)
		})
	}
}

// TestALookInAnOutage: the secondary answers for so many permits, and a call of more than the primary can ever allow is a
// mistake whether it is up or down.
func TestALookInAnOutage(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	require.NoError(t, client.Close())
	breaker := &ratelimit.Breaker{Failures: 1, ProbeEvery: time.Hour}
	now := limitertest.Start
	local := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 5, ratelimit.WithClock(func() time.Time { return now })))
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1), 10, ratelimit.WithName("bucket")))
	f := ratelimit.Must(ratelimit.NewFallback(bucket, local, ratelimit.WithBreaker(breaker)))
	for range 2 { // the breaker is closed, and then open
		for n, want := range map[int]ratelimit.Result{
			1: {Allowed: true, Limit: 5, Window: 5 * time.Second, Remaining: 5, Fallback: true},
			5: {Allowed: true, Limit: 5, Window: 5 * time.Second, Remaining: 5, Fallback: true},
		} {
			look, err := ratelimit.Look(ctx, ratelimit.ClaimOf(f, "k", n))
			require.NoError(t, err)
			require.Equal(t, ratelimit.AllResult{Result: want, Parts: []ratelimit.PartResult{ratelimit.OfBucket(true, ratelimit.PartResult{Name: "bucket", Key: "k", Result: want})}}, look)
		}
		for n, want := range map[int]error{0: ratelimit.ErrInvalidPermits, 11: ratelimit.ErrExceedsLimit} {
			_, err := ratelimit.Look(ctx, ratelimit.ClaimOf(f, "k", n))
			require.ErrorIs(t, err, want)
		}
	}
	require.True(t, must(t)(local.TryAcquireN(ctx, "k", 3)).Allowed)
	look, err := ratelimit.Look(ctx, ratelimit.ClaimOf(f, "k", 5), ratelimit.ClaimOf(f, "other", 2))
	require.NoError(t, err)
	require.Equal(t, []time.Duration{3 * time.Second, 0}, []time.Duration{look.Parts[0].Result.RetryAfter, look.Parts[1].Result.RetryAfter})
	require.Equal(t, 3*time.Second, look.RetryAfter)
	look, err = ratelimit.Look(ctx, ratelimit.ClaimOf(f, "k", 7)) // which the primary may allow, and the secondary never
	require.NoError(t, err)
	require.False(t, look.Allowed)
	require.True(t, look.Fallback)
	require.Equal(t, 2, must(t)(local.Peek(ctx, "k")).Remaining)
}

// TestALookAtWhatIsNone: mistakes, and limiters that can look for one permit only.
func TestALookAtWhatIsNone(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	minute := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 3, time.Minute, ratelimit.WithName("minute")))
	day := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 5, 24*time.Hour, ratelimit.WithName("day")))
	both := ratelimit.Must(ratelimit.NewAll(minute, day))
	stub := limitertest.Allowing()
	claims := func(n int) (all []ratelimit.Claim) {
		for range n {
			all = append(all, ratelimit.ClaimOf(minute, "k", 1))
		}
		return all
	}
	for name, c := range map[string]struct {
		claims []ratelimit.Claim
		want   error
	}{
		"none":                    {nil, ratelimit.ErrInvalidConfig},
		"zero":                    {[]ratelimit.Claim{{}}, ratelimit.ErrInvalidConfig},
		"no key":                  {[]ratelimit.Claim{ratelimit.ClaimOf(minute, "", 1)}, ratelimit.ErrInvalidKey},
		"no permits":              {[]ratelimit.Claim{ratelimit.ClaimOf(minute, "k", 0)}, ratelimit.ErrInvalidPermits},
		"too many":                {[]ratelimit.Claim{ratelimit.ClaimOf(minute, "k", 4)}, ratelimit.ErrExceedsLimit},
		"too many together":       {claims(4), ratelimit.ErrExceedsLimit},
		"an All beside another":   {[]ratelimit.Claim{ratelimit.ClaimOf(both, "k", 1), ratelimit.ClaimOf(day, "k", 1)}, ratelimit.ErrInvalidConfig},
		"an estimate of an All":   {[]ratelimit.Claim{ratelimit.ClaimOf(both, "k", 1).Estimate()}, ratelimit.ErrInvalidConfig},
		"an estimate of a hold":   {[]ratelimit.Claim{ratelimit.ClaimHold(ratelimit.Must(ratelimit.NewInFlight(s.Client, 3, time.Minute)), "k", 1).Estimate()}, ratelimit.ErrInvalidConfig},
		"no permits of AllowAll":  {[]ratelimit.Claim{ratelimit.ClaimOf(ratelimit.AllowAll(), "k", 0)}, ratelimit.ErrInvalidPermits},
		"no permits of a user's":  {[]ratelimit.Claim{ratelimit.ClaimOf(stub, "k", 0)}, ratelimit.ErrInvalidPermits},
		"several of a user's own": {[]ratelimit.Claim{ratelimit.ClaimOf(stub, "k", 2)}, ratelimit.ErrInvalidConfig},
	} {
		_, err := ratelimit.Look(ctx, c.claims...)
		require.ErrorIs(t, err, c.want, name)
	}
	require.True(t, must(t)(both.TryAcquireN(ctx, "k", 2)).Allowed)
	for n, allowed := range []bool{1: true, 2: false, 3: false} {
		if n == 0 {
			continue
		}
		look, err := ratelimit.Look(ctx, ratelimit.ClaimOf(both, "k", n))
		require.NoError(t, err)
		require.Equal(t, allowed, look.Allowed, n)
		require.Len(t, look.Parts, 1)
		require.Equal(t, "minute+day", look.Parts[0].Name)
		look, err = ratelimit.Look(ctx, both.Claims("k", n)...)
		require.NoError(t, err)
		require.Equal(t, []bool{allowed, true}, []bool{look.Parts[0].Result.Allowed, look.Parts[1].Result.Allowed}, n)
	}
	look, err := ratelimit.Look(ctx, ratelimit.ClaimOf(ratelimit.AllowAll(), "k", 1).Estimate(), ratelimit.ClaimHold(ratelimit.AllowHolds(), "k", 1), ratelimit.ClaimOf(day, "k", 3).Estimate())
	require.NoError(t, err)
	require.True(t, look.Allowed)
	for _, p := range look.Parts {
		require.Nil(t, p.Ticket, p.Name)
		require.Nil(t, p.Hold, p.Name)
	}
	look, err = ratelimit.Look(ctx, ratelimit.ClaimOf(stub, "k", 1))
	require.NoError(t, err)
	require.True(t, look.Allowed)
}

// TestALookIsObservedAsAPeek, with the permits of its claims.
func TestALookIsObservedAsAPeek(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	type seen struct {
		limiter string
		n       int
		source  ratelimit.Source
		outcome ratelimit.Outcome
	}
	var all []seen
	observed := ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) {
		if o.Call == "peek" {
			all = append(all, seen{o.Limiter, o.N, o.Source, o.Outcome})
		}
	})
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1), 5, ratelimit.WithName("bucket"), observed))
	running := ratelimit.Must(ratelimit.NewInFlight(s.Client, 5, time.Minute, ratelimit.WithName("running"), observed))
	local := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 5, ratelimit.WithName("local"), observed))
	cache := cached(t, s, bucket)
	for _, claims := range [][]ratelimit.Claim{
		{ratelimit.ClaimOf(bucket, "k", 3)}, {ratelimit.ClaimHold(running, "k", 2)}, {ratelimit.ClaimOf(local, "k", 4)}, {ratelimit.ClaimOf(bucket, "k", 3), ratelimit.ClaimHold(running, "k", 2)}, {ratelimit.ClaimOf(bucket, "k", 6)},
	} {
		_, _ = ratelimit.Look(ctx, claims...)
	}
	require.True(t, must(t)(cache.TryAcquireN(ctx, "k", 5)).Allowed)
	require.False(t, must(t)(cache.TryAcquireN(ctx, "k", 2)).Allowed)
	look, err := ratelimit.Look(ctx, ratelimit.ClaimOf(cache, "k", 2)) // from memory, which is not observed here
	require.NoError(t, err)
	require.Equal(t, 2*time.Second, look.RetryAfter)
	redis, memory, done := ratelimit.SourceRedis, ratelimit.SourceLocal, ratelimit.OutcomeDone
	require.Equal(t, []seen{
		{"bucket", 3, redis, done}, {"running", 2, redis, done}, {"local", 4, memory, done},
		{"bucket", 3, redis, done}, {"running", 2, redis, done}, {"bucket", 6, 0, ratelimit.OutcomeFailed},
	}, all)
}
