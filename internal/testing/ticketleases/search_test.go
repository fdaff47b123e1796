package ticketleases

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

func window(change func(r *Rules)) *Rules {
	r := &Rules{Limit: 3, Span: 5, Lease: 2, Most: 1}
	change(r)
	return r
}

func bucket(change func(r *Rules)) *Rules {
	r := &Rules{Bucket: true, Limit: 3, Permit: 2, Flow: 1, Lease: 2, Most: 1}
	change(r)
	return r
}

func log(change func(r *Rules)) *Rules {
	r := &Rules{Windows: []Window{{2, 2}, {3, 5}}, Limit: 3, Lease: 2, Most: 1}
	change(r)
	return r
}

// list is a sliding window of two sub-windows.
func list(change func(r *Rules)) *Rules {
	return log(func(r *Rules) {
		r.Windows, r.Slot = []Window{{3, 4}}, 2
		change(r)
	})
}

// back is a log whose server's clock steps back.
func back(r *Rules) { r.Windows, r.Limit, r.Lease, r.Steps = []Window{{2, 3}}, 2, 6, []int8{-1} }

// TestNothingExceedsTheRule: with RATELIMIT_LONG=1 each history has a call more.
func TestNothingExceedsTheRule(t *testing.T) {
	for name, r := range map[string]*Rules{
		"a window":                    window(func(r *Rules) { r.Losses = true }),
		"a window beside another":     window(func(r *Rules) { r.Bare, r.Most = true, 2 }),
		"a window, the clock steps":   window(func(r *Rules) { r.Steps = []int8{-1, -3, 2} }),
		"a short window":              window(func(r *Rules) { r.Span, r.Lease, r.Losses = 2, 3, true }),
		"a bucket":                    bucket(func(r *Rules) { r.Losses = true }),
		"a bucket beside another":     bucket(func(r *Rules) { r.Bare, r.Most, r.Permit, r.Lease = true, 2, 3, 3 }),
		"a bucket, the clock is fast": bucket(func(r *Rules) { r.Steps = []int8{2} }),
		"a log":                       log(func(r *Rules) { r.Losses = true }),
		"a log beside another":        log(func(r *Rules) { r.Bare, r.Most = true, 2 }),
		"a log, long leases":          log(func(r *Rules) { r.Lease, r.Most = 6, 2 }),
		"a log, the clock is fast":    log(func(r *Rules) { r.Steps = []int8{2} }),
		"a list":                      list(func(r *Rules) { r.Losses = true }),
		"a list beside another":       list(func(r *Rules) { r.Bare, r.Lease = true, 5 }),
		"a list, the clock is fast":   list(func(r *Rules) { r.Steps = []int8{1, 3} }),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls := limitertest.Rounds(5, 4)
			if calls == 1 { // the short run
				calls = 3
			}
			found := Search(r, calls, 4)
			require.Zero(t, found.Excess, found.ByExcess)
			require.Zero(t, found.Leak, found.ByLeak)
			t.Logf("%d calls, %d worlds", calls, found.Worlds)
		})
	}
}

// TestTheSearchFindsWhatOtherRulesBreak: the permits of a window, and the units of a bucket.
func TestTheSearchFindsWhatOtherRulesBreak(t *testing.T) {
	raceflag.SkipSequential(t)
	for name, test := range map[string]struct {
		rules        *Rules
		excess, leak int
	}{
		"a late settlement settles the difference": {window(func(r *Rules) { r.LateAsInTime = true }), 2, 0},
		"More leaves the ticket before it":         {window(func(r *Rules) { r.KeepsOld = true }), 2, 3},
		"More joins the permits of two windows":    {window(func(r *Rules) { r.Span, r.JoinsWindows = 3, true }), 1, 0},
		"an extension begins what is gone again":   {window(func(r *Rules) { r.Revives = true }), 2, 0},
		"permits go back to another window":        {window(func(r *Rules) { r.Span, r.Lease, r.Anywhere = 2, 3, true }), 3, 0},
		"a settlement is repeated after an error":  {window(func(r *Rules) { r.Losses, r.SettlesAgain = true, true }), 0, 8},
		// The right rule. By the microsecond, only windows that open at given times begin again like that.
		"the clock steps back into a window that is over":            {window(func(r *Rules) { r.Lease, r.Steps = 4, []int8{-5} }), 2, 0},
		"a bucket gets back what it has refilled":                    {bucket(func(r *Rules) { r.InFull = true }), 5, 0},
		"a bucket, a late settlement":                                {bucket(func(r *Rules) { r.LateAsInTime = true }), 4, 0},
		"a log, a late settlement":                                   {log(func(r *Rules) { r.LateAsInTime = true }), 1, 0},
		"a log joins the permits of two entries":                     {log(func(r *Rules) { r.JoinsWindows = true }), 1, 2},
		"a log gives back to another entry":                          {log(func(r *Rules) { r.Anywhere = true }), 2, 0},
		"a log forgets by its shortest window":                       {log(func(r *Rules) { r.Shortest = true }), 3, 0},
		"a list gives back to another entry":                         {list(func(r *Rules) { r.Anywhere = true }), 3, 0},
		"a sub-window leaves with its first tick":                    {list(func(r *Rules) { r.FromTheStart = true }), 3, 0},
		"a log gives back to whatever has the instant of the ticket": {log(func(r *Rules) { back(r); r.Eraless = true }), 1, 0},
		"the right rule of that log":                                 {log(back), 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls, pause := 5, 3
			switch {
			case test.rules.Windows != nil && test.rules.Steps != nil:
				calls, pause = 6, 2
			case test.rules.Bucket || test.rules.Losses || test.rules.Steps != nil:
				calls, pause = 4, 5
			}
			found := Search(test.rules, calls, pause)
			require.Equal(t, []int{test.excess, test.leak}, []int{found.Excess, found.Leak}, "%v\n%v", found.ByExcess, found.ByLeak)
		})
	}
}
