package ratelimit_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// settling is what every limiter on Redis can do.
type settling interface {
	ratelimit.Limiter
	ratelimit.Settler
	ratelimit.PartialTaker
}

// A heldTicket is a ticket, and where the model has its permits.
type heldTicket struct {
	*ratelimit.Ticket
	n     int
	place int64
}

// TestSettlingDecidesAsTheModels drives every limiter and its model through the same random
// histories of estimates, settlements, charges, partial takes, ordinary calls, looks and
// resets, by clocks that step.
func TestSettlingDecidesAsTheModels(t *testing.T) {
	raceflag.Skip(t)
	rigs(t, 3, func(t *testing.T, r *rig, rng *rand.Rand, f limitertest.Family) {
		p, err := f.Draw(rng, r.client, r.opts...)
		require.NoError(t, err)
		m, l := p.Model().(model.Settler), p.Limiter.(settling)
		credited, _ := m.(model.Creditor)
		callers := r.opts != nil
		// With entries that have left the windows and are not removed yet, the model differs after a
		// step of the server's clock: they count again. So they do by a caller's clock that is behind
		// the last entry, if its slot is long: that call is decided as at the beginning of the slot,
		// when they had not left.
		few := rng.IntN(2) == 0 && ratelimit.RemoveFew(t, l)
		long := f.Name == "SlidingLog" && p.Bound.Slot > time.Microsecond
		scenario := model.NewScenario(rng, model.ShapeOf(m, !few || callers && !long))
		var tickets []heldTicket
		var want model.Answer
		var before int64
		var at string
		same := func(got ratelimit.Result, err error) {
			t.Helper()
			require.NoError(t, err, at)
			require.Equal(t, limitertest.ResultOf(want), got, at)
		}
		tooMuch := func(n int) { // n may be refused: a debt of 15 times the capacity or of 71 years
			t.Helper()
			rate := p.Bound.Rate
			owed := m.Take(before, 1, true).ResetAfter.Seconds() + float64(n)/float64(rate.Count)*rate.Period.Seconds()
			require.Greater(t, owed, min(16*m.Span().Seconds(), 0x1p51/1e6), at)
		}
		for i := range 100 {
			step := scenario.Next(want)
			if step.Now > latest {
				return
			}
			if step.Now < before {
				if m.Unused(before) {
					require.NoError(t, l.Reset(ctx, "k"))
					m.Reset()
				}
				if p.Bound.Rate.Count == 0 && !callers { // permits that moved are for another test
					tickets = nil
				}
			}
			before = step.Now
			r.set(step.Now)
			if !r.keys() {
				m.Reset()
			}
			at = fmt.Sprintf("%s: step %d: %+v, few %v", p.About, i, step, few)
			if step.Op == model.Reset {
				require.NoError(t, l.Reset(ctx, "k"))
				m.Reset()
				tickets = nil
				continue
			}
			switch op := rng.IntN(10); {
			case op < 3:
				at += ", estimate"
				ticket, got, err := l.Estimate(ctx, "k", step.N)
				want = m.Take(step.Now, step.N, false)
				same(got, err)
				require.Equal(t, want.Allowed, ticket != nil, at)
				if want.Allowed {
					tickets = append(tickets, heldTicket{ticket, step.N, m.Place(step.Now)})
				}
			case op < 6 && len(tickets) > 0:
				j := rng.IntN(len(tickets))
				held := tickets[j]
				tickets = append(tickets[:j], tickets[j+1:]...)
				if strings.HasPrefix(f.Name, "FixedWindow") && hardlyApart(m.Place(step.Now), held.place) {
					continue // the window was removed, and the next one opened within 2 ms: the scripts take them for one
				}
				actual := []int{0, held.n - 1, rng.IntN(held.n + 1), held.n, held.n + 1, held.n + 1 + rng.IntN(held.n)}[rng.IntN(6)]
				at += fmt.Sprintf(", settle %d of %d from %d", actual, held.n, held.place)
				err := held.ByTheServersClock().Settle(ctx, actual)
				if errors.Is(err, ratelimit.ErrTooMuchDebt) {
					tooMuch(actual - held.n)
					continue
				}
				require.NoError(t, err, at)
				switch {
				case actual < held.n:
					m.GiveBack(step.Now, held.n-actual, held.place)
				case actual > held.n:
					m.Charge(step.Now, actual-held.n)
				}
				require.ErrorIs(t, held.Settle(ctx, 0), ratelimit.ErrSettled)
			case op == 6 && rng.IntN(3) == 0:
				n := 1 + rng.IntN(min(2*m.Max(), 10_000))
				at += fmt.Sprintf(", charge %d", n)
				got, err := l.Charge(ctx, "k", n)
				if errors.Is(err, ratelimit.ErrTooMuchDebt) {
					tooMuch(n)
					continue
				}
				want = m.Charge(step.Now, n)
				same(got, err)
			case op == 6 && credited != nil:
				n := 1 + rng.IntN(min(2*m.Max(), 10_000))
				at += fmt.Sprintf(", credit %d", n)
				given, err := l.Credit(ctx, "k", n)
				require.NoError(t, err, at)
				require.Equal(t, credited.Credit(step.Now, n), given, at)
			case op == 7:
				n := min(step.N+rng.IntN(3), 200)
				at += fmt.Sprintf(", up to %d", n)
				taken, got, err := l.TryAcquireUpTo(ctx, "k", n)
				want = model.Answer{}
				most := 0
				for range min(n, m.Max()+1) {
					one := m.Take(step.Now, 1, false)
					if one.Allowed || most == 0 {
						want = one
					}
					if !one.Allowed {
						want.RetryAfter = one.RetryAfter
						break
					}
					most++
				}
				same(got, err)
				require.Equal(t, most, taken, at)
			default:
				got, err := l.TryAcquireN(ctx, "k", step.N)
				want = m.Take(step.Now, step.N, false)
				same(got, err)
			}
			if rng.IntN(2) == 0 {
				at += ", then peek"
				want = m.Take(step.Now, 1, true)
				same(l.Peek(ctx, "k"))
			}
		}
	})
}

// hardlyApart is true for two places of windows, milliseconds or microseconds, that differ by 2 ms at most.
func hardlyApart(a, b int64) bool {
	apart := max(a, b) - min(a, b)
	if a < 1e14 {
		apart *= 1000
	}
	return 0 < apart && apart <= 2000
}
