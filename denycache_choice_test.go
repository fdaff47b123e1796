package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// uncomparable is a user's limiter whose values cannot be compared.
type uncomparable struct {
	*limitertest.Stub
	_ []int
}

func TestDenyCacheAroundAChoice(t *testing.T) {
	const ms = time.Millisecond
	denied := deniedBy10(0, 500*ms+time.Microsecond, 900*ms)
	allowed := ratelimit.Result{Allowed: true, Limit: 100, Window: time.Second, Remaining: 89, ResetAfter: 900 * ms}
	type step struct {
		by    string // the plan that is picked
		n     int
		key   string
		reset bool
		asked string // what that plan's limiter is asked; "": memory answers
		want  ratelimit.Result
	}
	for _, test := range []struct {
		name  string
		steps []step
	}{
		{"a denial is repeated while its limiter is picked", []step{
			{by: "free", n: 1, asked: "k 1", want: denied},
			{by: "free", n: 1, want: denied},
			{by: "free", n: 1, want: denied},
		}},
		{"a raised limit holds with the next call", []step{
			{by: "free", n: 1, asked: "k 1", want: denied},
			{by: "pro", n: 1, asked: "k 1", want: allowed},
			{by: "pro", n: 1, asked: "k 1", want: allowed},
		}},
		{"what the other limiter has denied is forgotten, and not held against the first when it is picked again", []step{
			{by: "free", n: 1, asked: "k 1", want: denied},
			{by: "pro", n: 1, asked: "k 1", want: allowed},
			{by: "free", n: 1, asked: "k 1", want: denied},
			{by: "free", n: 1, want: denied},
		}},
		{"a denial by each is its own", []step{
			{by: "free", n: 1, asked: "k 1", want: denied},
			{by: "pro", n: 1, asked: "k 1", want: denied},
			{by: "pro", n: 1, want: denied},
			{by: "free", n: 1, asked: "k 1", want: denied},
		}},
		{"of another key nothing is forgotten", []step{
			{by: "free", n: 1, asked: "k 1", want: denied},
			{by: "free", n: 1, key: "l", asked: "l 1", want: denied},
			{by: "pro", n: 1, asked: "k 1", want: allowed},
			{by: "free", n: 1, key: "l", want: denied},
		}},
		{"more permits than the picked limiter has ever decided on are asked", []step{
			{by: "pro", n: 9, key: "l", asked: "l 9", want: allowed},
			{by: "free", n: 1, asked: "k 1", want: denied},
			{by: "free", n: 9, asked: "k 9", want: denied},
		}},
		{"a reset forgets, and asks the picked limiter", []step{
			{by: "free", n: 1, asked: "k 1", want: denied},
			{by: "pro", reset: true, asked: "reset k"},
			{by: "free", n: 1, asked: "k 1", want: denied},
		}},
		{"a limiter that cannot be compared is always asked", []step{
			{by: "odd", n: 1, asked: "k 1", want: denied},
			{by: "odd", n: 1, asked: "k 1", want: denied},
			{by: "free", n: 1, asked: "k 1", want: denied},
			{by: "free", n: 1, want: denied},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			scripts := map[string]*limitertest.Stub{"free": {}, "pro": {}, "odd": {}}
			plans := map[string]ratelimit.Limiter{"free": scripts["free"], "pro": scripts["pro"], "odd": uncomparable{Stub: scripts["odd"]}}
			plan := ""
			c, _ := newTestDenyCache(t, ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) { return plans[plan], nil })))
			for i, s := range test.steps {
				plan = s.by
				key := s.key
				if key == "" {
					key = "k"
				}
				for _, l := range scripts {
					l.Result = s.want
					l.Asked() // forgets the calls of the steps before
				}
				if s.reset {
					require.NoError(t, c.Reset(t.Context(), key))
				} else {
					require.Equal(t, s.want, must(t)(c.TryAcquireN(t.Context(), key, s.n)), "step %d", i+1)
				}
				for name, l := range scripts {
					var asked []string
					if name == s.by && s.asked != "" {
						asked = []string{s.asked}
					}
					require.Equal(t, asked, l.Asked(), "step %d: %s", i+1, name)
				}
			}
		})
	}
}

// A denial that was on its way while another limiter was picked is its own limiter's.
func TestADenialOnItsWayIsItsOwnLimiters(t *testing.T) {
	free, pro := &limitertest.Stub{}, &limitertest.Stub{}
	plan := ratelimit.Limiter(free)
	c, _ := newTestDenyCache(t, ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) { return plan, nil })))
	free.Answer = func(context.Context, string, int) (ratelimit.Result, error) {
		plan = pro
		return deniedBy10(0, time.Second, time.Second), nil
	}
	pro.Result = ratelimit.Result{Allowed: true, Limit: 100, Remaining: 89}
	require.False(t, must(t)(c.TryAcquire(t.Context(), "k")).Allowed)
	require.True(t, must(t)(c.TryAcquire(t.Context(), "k")).Allowed)
}

// A call picks once: the limiter that memory is asked about is the one that is asked.
func TestADenyCachePicksOnce(t *testing.T) {
	l := &limitertest.Stub{Result: deniedBy10(0, time.Second, time.Second)}
	picks := 0
	c, _ := newTestDenyCache(t, ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) { picks++; return l, nil })))
	for range 2 {
		must(t)(c.TryAcquire(t.Context(), "k"))
		must(t)(c.Peek(t.Context(), "k"))
	}
	require.NoError(t, c.Reset(t.Context(), "k"))
	require.Equal(t, 5, picks)
	require.Equal(t, []string{"k 1", "reset k"}, l.Asked())
}

// A picked limiter of this package is known by its ceiling, as one without a Choice is.
func TestAPickedLimitersCeiling(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	log := ratelimit.Must(ratelimit.NewSlidingLog(s.Client, []ratelimit.Rule{{Limit: 50, Window: time.Hour}, {Limit: 7, Window: time.Second}}))
	large := ratelimit.Must(ratelimit.NewSlidingLog(s.Client, []ratelimit.Rule{{Limit: 100, Window: time.Hour}}))
	plan := ratelimit.Limiter(large)
	c, _ := newTestDenyCache(t, ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) { return plan, nil })))
	must(t)(c.TryAcquireN(t.Context(), "other", 40))
	plan = log
	must(t)(c.TryAcquireN(t.Context(), "k", 7))
	require.False(t, must(t)(c.TryAcquire(t.Context(), "k")).Allowed)
	require.False(t, must(t)(c.TryAcquireN(t.Context(), "k", 7)).Allowed)
	_, err := c.TryAcquireN(t.Context(), "k", 8)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
}

func TestADenialFromMemoryAroundAChoiceAllocatesNothing(t *testing.T) {
	l := &limitertest.Stub{Result: deniedBy10(0, time.Hour, time.Hour)}
	c := ratelimit.Must(ratelimit.NewDenyCache(ratelimit.Must(ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) { return l, nil }))))
	ctx := context.Background()
	must(t)(c.TryAcquire(ctx, "k"))
	require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = c.TryAcquire(ctx, "k") }))
	require.Len(t, l.Asked(), 1)
}
