package ratelimit

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// uncomparable is a user's limiter whose values cannot be compared.
type uncomparable struct {
	*scriptedLimiter
	_ []int
}

func TestDenyCacheAroundAChoice(t *testing.T) {
	const ms = time.Millisecond
	denied := deniedBy10(0, 500*ms+time.Microsecond, 900*ms)
	allowed := Result{Allowed: true, Limit: 100, Window: time.Second, Remaining: 89, ResetAfter: 900 * ms}
	type step struct {
		by    string // the plan that is picked
		n     int
		key   string
		reset bool
		asked string // what that plan's limiter is asked; "": memory answers
		want  Result
	}
	for _, test := range []struct {
		name  string
		steps []step
	}{
		{"a denial is repeated while its limiter is picked", []step{
			{by: "free", n: 1, asked: "1 of k", want: denied},
			{by: "free", n: 1, want: denied},
			{by: "free", n: 1, want: denied},
		}},
		{"a raised limit holds with the next call", []step{
			{by: "free", n: 1, asked: "1 of k", want: denied},
			{by: "pro", n: 1, asked: "1 of k", want: allowed},
			{by: "pro", n: 1, asked: "1 of k", want: allowed},
		}},
		{"what the other limiter has denied is forgotten, and not held against the first when it is picked again", []step{
			{by: "free", n: 1, asked: "1 of k", want: denied},
			{by: "pro", n: 1, asked: "1 of k", want: allowed},
			{by: "free", n: 1, asked: "1 of k", want: denied},
			{by: "free", n: 1, want: denied},
		}},
		{"a denial by each is its own", []step{
			{by: "free", n: 1, asked: "1 of k", want: denied},
			{by: "pro", n: 1, asked: "1 of k", want: denied},
			{by: "pro", n: 1, want: denied},
			{by: "free", n: 1, asked: "1 of k", want: denied},
		}},
		{"of another key nothing is forgotten", []step{
			{by: "free", n: 1, asked: "1 of k", want: denied},
			{by: "free", n: 1, key: "l", asked: "1 of l", want: denied},
			{by: "pro", n: 1, asked: "1 of k", want: allowed},
			{by: "free", n: 1, key: "l", want: denied},
		}},
		{"more permits than the picked limiter has ever decided on are asked", []step{
			{by: "pro", n: 9, key: "l", asked: "9 of l", want: allowed},
			{by: "free", n: 1, asked: "1 of k", want: denied},
			{by: "free", n: 9, asked: "9 of k", want: denied},
		}},
		{"a reset forgets, and asks the picked limiter", []step{
			{by: "free", n: 1, asked: "1 of k", want: denied},
			{by: "pro", reset: true, asked: "reset k"},
			{by: "free", n: 1, asked: "1 of k", want: denied},
		}},
		{"a limiter that cannot be compared is always asked", []step{
			{by: "odd", n: 1, asked: "1 of k", want: denied},
			{by: "odd", n: 1, asked: "1 of k", want: denied},
			{by: "free", n: 1, asked: "1 of k", want: denied},
			{by: "free", n: 1, want: denied},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			scripts := map[string]*scriptedLimiter{"free": {}, "pro": {}, "odd": {}}
			plans := map[string]Limiter{"free": scripts["free"], "pro": scripts["pro"], "odd": uncomparable{scriptedLimiter: scripts["odd"]}}
			plan := ""
			c, _ := newTestDenyCache(t, Must(NewChoice(func(context.Context, string) (Limiter, error) { return plans[plan], nil })))
			for i, s := range test.steps {
				plan = s.by
				key := s.key
				if key == "" {
					key = "k"
				}
				for _, l := range scripts {
					l.asked, l.answer = nil, func() (Result, error) { return s.want, nil }
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
					require.Equal(t, asked, l.asked, "step %d: %s", i+1, name)
				}
			}
		})
	}
}

// A denial that was on its way while another limiter was picked is its own limiter's.
func TestADenialOnItsWayIsItsOwnLimiters(t *testing.T) {
	free, pro := &scriptedLimiter{}, &scriptedLimiter{}
	plan := Limiter(free)
	c, _ := newTestDenyCache(t, Must(NewChoice(func(context.Context, string) (Limiter, error) { return plan, nil })))
	free.answer = func() (Result, error) {
		plan = pro
		return deniedBy10(0, time.Second, time.Second), nil
	}
	pro.answer = func() (Result, error) { return Result{Allowed: true, Limit: 100, Remaining: 89}, nil }
	require.False(t, must(t)(c.TryAcquire(t.Context(), "k")).Allowed)
	require.True(t, must(t)(c.TryAcquire(t.Context(), "k")).Allowed)
}

// A call picks once: the limiter that memory is asked about is the one that is asked.
func TestADenyCachePicksOnce(t *testing.T) {
	l := &scriptedLimiter{answer: func() (Result, error) { return deniedBy10(0, time.Second, time.Second), nil }}
	picks := 0
	c, _ := newTestDenyCache(t, Must(NewChoice(func(context.Context, string) (Limiter, error) { picks++; return l, nil })))
	for range 2 {
		must(t)(c.TryAcquire(t.Context(), "k"))
		must(t)(c.Peek(t.Context(), "k"))
	}
	require.NoError(t, c.Reset(t.Context(), "k"))
	require.Equal(t, 5, picks)
	require.Equal(t, []string{"1 of k", "reset k"}, l.asked)
}

// A picked limiter of this package is known by its ceiling, as one without a Choice is.
func TestAPickedLimitersCeiling(t *testing.T) {
	s := onMini(t)
	log := Must(NewSlidingLog(s.client, []Rule{{Limit: 50, Window: time.Hour}, {Limit: 7, Window: time.Second}}))
	large := Must(NewSlidingLog(s.client, []Rule{{Limit: 100, Window: time.Hour}}))
	plan := Limiter(large)
	c, _ := newTestDenyCache(t, Must(NewChoice(func(context.Context, string) (Limiter, error) { return plan, nil })))
	must(t)(c.TryAcquireN(t.Context(), "other", 40))
	plan = log
	must(t)(c.TryAcquireN(t.Context(), "k", 7))
	require.False(t, must(t)(c.TryAcquire(t.Context(), "k")).Allowed)
	require.False(t, must(t)(c.TryAcquireN(t.Context(), "k", 7)).Allowed)
	_, err := c.TryAcquireN(t.Context(), "k", 8)
	require.ErrorIs(t, err, ErrExceedsLimit)
}

func TestADenialFromMemoryAroundAChoiceAllocatesNothing(t *testing.T) {
	l := &scriptedLimiter{answer: func() (Result, error) { return deniedBy10(0, time.Hour, time.Hour), nil }}
	c := Must(NewDenyCache(Must(NewChoice(func(context.Context, string) (Limiter, error) { return l, nil }))))
	ctx := context.Background()
	must(t)(c.TryAcquire(ctx, "k"))
	require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = c.TryAcquire(ctx, "k") }))
	require.Len(t, l.asked, 1)
}
