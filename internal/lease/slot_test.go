package lease

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

// TestSlicesAreWorthWhatIsLeftOfASlot: 1,000 calls a second are 250 in a slot. Towards its end there are fewer.
func TestSlicesAreWorthWhatIsLeftOfASlot(t *testing.T) {
	table := NewTable(Rule{Limit: 100_000, Refill: 10 * time.Second, Window: true, Slot: 250 * ms}, 64)
	now := time.Duration(0)
	var flight *Flight
	for ; now < 4*time.Second; now += ms {
		a := table.Take("k", 1, at(now))
		if a.Verdict == Direct {
			continue
		}
		require.Equal(t, Ask, a.Verdict)
		if flight = a.Flight; flight.Long > 0 {
			flight.Lost(errLost)
			continue
		}
		flight.Landed(Reply{Taken: 1, Left: 9000, ResetAfter: time.Second}, at(now))
	}
	k := table.known("k")
	worth := func(now time.Duration) int {
		return table.worth(k, 1000, 0, at(now))
	}
	require.Equal(t, 234, worth(now), "it is not known when slots end")
	k.turn = now + 100*ms
	for left, want := range map[time.Duration]int{0: 90, 50 * ms: 42, 99 * ms: 0, 100 * ms: 234, 349 * ms: 0, 351 * ms: 233, 1100 * ms: 234} {
		require.Equal(t, want, worth(now+left), "%v later", left)
	}
	k.turn = now + time.Hour
	require.Equal(t, 234, worth(now), "no slot lasts longer")
	require.Equal(t, 250*ms, table.rule.Long())
	require.Equal(t, 10*time.Second, Rule{Slot: time.Minute}.Long())
}

// TestAnswersSayWhichLimitTheyAreAbout: that of the slice, and of the denial.
func TestAnswersSayWhichLimitTheyAreAbout(t *testing.T) {
	table := spent(t)
	a := table.Take("k", 1, at(1))
	a.Flight.Landed(Reply{Taken: 2, Of: 1, Lasts: 250 * ms, Left: 700, Ends: 80 * ms}, at(2))
	require.Equal(t, Outcome{Got: true, Of: 1, Left: 1, RetryAfter: 1000, ResetAfter: 1000}, a.Flight.Outcome())
	require.Equal(t, time.Duration(2)+80*ms, table.known("k").turn)
	require.Equal(t, 1, table.Take("k", 1, at(2)).Of)
	a = table.Take("k", 3, at(3))
	a.Flight.Ahead.Lost(errLost)
	a.Flight.Landed(Reply{Of: 2, RetryAfter: time.Second, ResetAfter: time.Second}, at(4))
	require.Equal(t, 2, a.Flight.Outcome().Of)
	require.Equal(t, Answer{Verdict: Denied, Of: 2, RetryAfter: time.Second + 3 - 5, ResetAfter: time.Second + 3 - 5}, table.Take("k", 3, at(5)))

	table = spent(t) // most calls find a slice of which much is left
	table.Take("k", 1, at(1)).Flight.Landed(Reply{Taken: 100, Of: 1, Lasts: 250 * ms, Left: 700}, at(2))
	require.Equal(t, Answer{Verdict: Allowed, Of: 1, Left: 98}, table.Take("k", 1, at(2)))
	require.Equal(t, Answer{Verdict: Allowed, Of: 1, Left: 97}, table.TakeAtOnce("k", 1, at(2)))
}
