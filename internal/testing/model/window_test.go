package model

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFixedWindow(t *testing.T) {
	table(t, "milliseconds", NewFixedWindow(3, 100*ms), 3, 100*ms, []row{
		{5_999, 1, true, allowed(3, 0)}, // never used
		{5_999, 2, false, allowed(1, 100*ms)},
		{6_000, 1, true, allowed(1, 99*ms)},
		{6_999, 2, false, denied(1, 99*ms, 99*ms)},
		{6_999, 1, false, allowed(0, 99*ms)},
		{104_999, 1, false, denied(0, 1*ms, 1*ms)},
		{105_000, 1, false, allowed(2, 100*ms)}, // [5 ms, 105 ms) is over
		{205_000, 3, false, allowed(0, 100*ms)},
		{304_000, 1, false, denied(0, 1*ms, 1*ms)},
		{305_500, 1, false, allowed(2, 100*ms)}, // from 305 ms
		{404_999, 3, false, denied(2, 1*ms, 1*ms)},
		{405_000, 3, true, allowed(3, 0)},
	})
	table(t, "clock set back", NewFixedWindow(3, 100*ms), 3, 100*ms, []row{
		{500_000, 2, false, allowed(1, 100*ms)}, // to 600 ms
		{499_999, 2, true, denied(1, 100*ms, 100*ms)},
		{599_999, 2, true, denied(1, 1*ms, 1*ms)}, // peek repaired nothing
		{499_999, 2, false, denied(1, 100*ms, 100*ms)},
		{598_999, 2, true, denied(1, 1*ms, 1*ms)}, // now to 599 ms
		{599_000, 2, true, allowed(3, 0)},
		{100_000, 1, false, allowed(0, 100*ms)}, // to 200 ms
		{199_999, 1, false, denied(0, 1*ms, 1*ms)},
		{150_000, 1, false, denied(0, 50*ms, 50*ms)}, // back within the window
		{200_000, 1, false, allowed(2, 100*ms)},
	})
}

func TestClockWindow(t *testing.T) {
	table(t, "first permit", NewClockWindow(2, 100*us), 2, 100*us, []row{
		{7, 1, true, allowed(2, 0)},
		{7, 1, false, allowed(1, 100*us)},
		{106, 2, false, denied(1, 1*us, 1*us)},
		{106, 1, false, allowed(0, 1*us)},
		{107, 1, false, allowed(1, 100*us)},
		{106, 2, true, denied(1, 100*us, 100*us)}, // back
		{206, 2, true, denied(1, 1*us, 1*us)},     // peek: still [107, 207)
		{106, 2, false, denied(1, 100*us, 100*us)},
		{205, 2, false, denied(1, 1*us, 1*us)}, // [106, 206)
		{206, 2, false, allowed(0, 100*us)},
		{-50, 1, false, denied(0, 100*us, 100*us)},
		{49, 1, false, denied(0, 1*us, 1*us)},
		{50, 1, false, allowed(1, 100*us)},
	})
	table(t, "aligned", NewAlignedWindow(2, 100*us, 0), 2, 100*us, []row{
		{250, 1, true, allowed(2, 0)},
		{250, 1, false, allowed(1, 50*us)},
		{299, 2, false, denied(1, 1*us, 1*us)},
		{300, 2, false, allowed(0, 100*us)},
		{399, 1, false, denied(0, 1*us, 1*us)},
		{299, 1, false, denied(0, 101*us, 101*us)}, // back over its start: it is still the latest
		{300, 1, false, denied(0, 100*us, 100*us)},
		{400, 1, false, allowed(1, 100*us)},
		{130, 2, true, denied(1, 70*us, 70*us)}, // farther back: [100, 200) with its count
		{130, 1, false, allowed(0, 70*us)},
		{199, 1, false, denied(0, 1*us, 1*us)},
		{-1, 1, false, denied(0, 1*us, 1*us)}, // [-100, 0)
		{-101, 1, false, denied(0, 101*us, 101*us)},
		{0, 1, false, allowed(1, 100*us)},
	})
	table(t, "aligned with an offset", NewAlignedWindow(1, 100*us, 30*us), 1, 100*us, []row{
		{29, 1, false, allowed(0, 1*us)}, // [-70, 30)
		{30, 1, false, allowed(0, 100*us)},
		{129, 1, false, denied(0, 1*us, 1*us)},
		{130, 1, false, allowed(0, 100*us)},
	})
	table(t, "an offset beyond a window or below 0", NewAlignedWindow(1, 100*us, -470*us), 1, 100*us, []row{
		{29, 1, false, allowed(0, 1*us)},
		{30, 1, false, allowed(0, 100*us)},
	})
	callers := NewClockWindow(2, 100*us)
	callers.CallersClock = true
	table(t, "callers whose clocks differ", callers, 2, 100*us, []row{
		{100, 1, false, allowed(1, 100*us)},
		{60, 1, true, allowed(1, 140*us)},
		{60, 1, false, allowed(0, 140*us)}, // in [100, 200)
		{-500, 1, false, denied(0, 700*us, 700*us)},
		{199, 1, false, denied(0, 1*us, 1*us)},
		{200, 1, false, allowed(1, 100*us)},
	})
}

func TestSlidingLog(t *testing.T) {
	exact := []row{
		{1000, 1, true, allowed(3, 0)},
		{1000, 1, false, allowed(2, 100*us)},
		{1039, 1, true, allowed(2, 61*us)},
		{1040, 2, false, allowed(0, 100*us)},
		{1041, 1, false, denied(0, 59*us, 99*us)},
		{1041, 2, false, denied(0, 99*us, 99*us)},
		{1099, 1, false, denied(0, 1*us, 41*us)},
		{1100, 1, false, allowed(0, 100*us)},
		{1139, 2, false, denied(0, 1*us, 61*us)},
		{1140, 3, true, denied(2, 60*us, 60*us)},
		{1140, 2, true, allowed(2, 60*us)},
		{1140, 2, false, allowed(0, 100*us)},
		{1500, 3, false, allowed(0, 100*us)},
		{1500, 3, false, denied(0, 100*us, 100*us)},
	}
	table(t, "one rule", NewSlidingLog([]Rule{{3, 100 * us}}, us), 3, 100*us, exact)
	table(t, "zset", NewSlidingZSet(3, 100*us), 3, 100*us, exact)
	table(t, "sub-windows of a microsecond", NewSlidingWindow(3, 100*us, 100), 3, 100*us, exact)

	// Slots of 20: a permit counts until the last instant of its slot has left.
	slots := []row{
		{1000, 1, true, allowed(3, 0)},
		{1000, 1, false, allowed(2, 119*us)}, // recorded at 1019
		{1000, 1, true, allowed(2, 119*us)},
		{1019, 1, false, allowed(1, 100*us)},
		{1020, 1, false, allowed(0, 119*us)}, // at 1039
		{1118, 1, false, denied(0, 1*us, 21*us)},
		{1119, 3, true, denied(2, 20*us, 20*us)},
		{1119, 2, false, allowed(0, 100*us)}, // in slot 1100, at 1119
		{1138, 1, false, denied(0, 1*us, 81*us)},
		{1139, 1, false, allowed(0, 100*us)},
	}
	table(t, "log in slots", NewSlidingLog([]Rule{{3, 100 * us}}, 20*us), 3, 100*us, slots)
	table(t, "sub-windows", NewSlidingWindow(3, 100*us, 5), 3, 100*us, slots)
}

func TestSlidingLogOfSeveralRules(t *testing.T) {
	table(t, "two rules", NewSlidingLog([]Rule{{4, 100 * us}, {2, 10 * us}}, us), 0, 0, []row{
		{0, 1, false, allowed(1, 100*us).of(2, 10*us)},
		{0, 1, false, allowed(0, 100*us).of(2, 10*us)},
		{9, 1, false, denied(0, 1*us, 91*us).of(2, 10*us)},
		{10, 1, false, allowed(1, 100*us).of(2, 10*us)}, // 1 left of both: the smaller window
		{20, 1, false, allowed(0, 100*us).of(4, 100*us)},
		{21, 1, false, denied(0, 79*us, 99*us).of(4, 100*us)},
		{21, 2, true, denied(0, 79*us, 99*us).of(4, 100*us)}, // the short rule is violated as well, until 30
		{99, 2, false, denied(0, 1*us, 21*us).of(4, 100*us)},
		{100, 2, false, allowed(0, 100*us).of(2, 10*us)}, // 0 left of both
		{101, 1, false, denied(0, 9*us, 99*us).of(2, 10*us)},
		{101, 2, false, denied(0, 19*us, 99*us).of(4, 100*us)}, // 9 against 19
	})
	// Both make room at 100: the permit of 90 leaves one window when that of 0 leaves the other.
	table(t, "a tie of waits", NewSlidingLog([]Rule{{2, 100 * us}, {1, 10 * us}}, us), 0, 0, []row{
		{0, 1, false, allowed(0, 100*us).of(1, 10*us)},
		{90, 1, false, allowed(0, 100*us).of(1, 10*us)},
		{95, 1, false, denied(0, 5*us, 95*us).of(1, 10*us)},
		{100, 1, false, allowed(0, 100*us).of(1, 10*us)},
	})
	// What the named rule has left, not the least that any has left.
	table(t, "remaining of the rule named", NewSlidingLog([]Rule{{5, 10 * us}, {8, 100 * us}}, us), 0, 0, []row{
		{0, 5, false, allowed(0, 100*us).of(5, 10*us)},
		{1, 4, false, denied(3, 99*us, 99*us).of(8, 100*us)},
		{1, 3, false, denied(0, 9*us, 99*us).of(5, 10*us)},
	})
}

func TestSlidingLogWhenTheClockIsSetBack(t *testing.T) {
	one := []row{
		{1000, 1, false, allowed(2, 100*us)},
		{1050, 1, false, allowed(1, 100*us)},
		{1020, 2, true, denied(1, 80*us, 100*us)}, // 1050 is 1020, but a peek writes nothing
		{1149, 3, true, denied(2, 1*us, 1*us)},
		{1020, 2, false, denied(1, 80*us, 100*us)}, // now it is
		{1119, 3, true, denied(2, 1*us, 1*us)},
		{1120, 3, true, allowed(3, 0)},
		{500, 1, false, allowed(0, 100*us)}, // all at 500
		{599, 1, false, denied(0, 1*us, 1*us)},
		{600, 3, false, allowed(0, 100*us)},
		{-300, 1, false, denied(0, 100*us, 100*us)},
		{-200, 1, false, allowed(2, 100*us)},
	}
	table(t, "log", NewSlidingLog([]Rule{{3, 100 * us}}, us), 3, 100*us, one)
	table(t, "sub-windows of a microsecond", NewSlidingWindow(3, 100*us, 100), 3, 100*us, one)

	slots := []row{
		{1019, 1, false, allowed(2, 100*us)},      // recorded at 1019
		{1000, 1, false, allowed(1, 119*us)},      // back within the slot: no difference
		{999, 2, true, denied(1, 100*us, 100*us)}, // in [980, 1000)
		{999, 1, false, allowed(0, 100*us)},
		{1098, 1, false, denied(0, 1*us, 1*us)},
		{1099, 3, false, allowed(0, 100*us)}, // in [1080, 1100), recorded at 1099
	}
	table(t, "log in slots", NewSlidingLog([]Rule{{3, 100 * us}}, 20*us), 3, 100*us, slots)
	table(t, "sub-windows", NewSlidingWindow(3, 100*us, 5), 3, 100*us, slots)

	// The permit of 0 has left the window when that of 100 is written: it is deleted, unless kept.
	for _, keep := range []bool{false, true} {
		log, window := NewSlidingLog([]Rule{{3, 100 * us}}, us), NewSlidingWindow(3, 100*us, 100)
		log.Keep, window.Keep = keep, keep
		want := allowed(1, 100*us)
		if keep {
			want = allowed(0, 100*us)
		}
		rows := []row{
			{0, 1, false, allowed(2, 100*us)},
			{100, 1, false, allowed(2, 100*us)},
			{99, 1, false, want},
		}
		table(t, "forgetting, log", log, 3, 100*us, rows)
		table(t, "forgetting, sub-windows", window, 3, 100*us, rows)
	}
}

func TestSlidingLogOfCallersWhoseClocksDiffer(t *testing.T) {
	one := []row{
		{1000, 1, false, allowed(2, 100*us)},
		{1050, 1, false, allowed(1, 100*us)},
		{1020, 1, true, allowed(1, 130*us)},
		{1020, 1, false, allowed(0, 130*us)}, // at 1050
		{1020, 1, false, denied(0, 80*us, 130*us)},
		{1099, 1, false, denied(0, 1*us, 51*us)},
		{1100, 1, false, allowed(0, 100*us)},
		{900, 1, false, denied(0, 250*us, 300*us)}, // nothing moves
		{1149, 1, false, denied(0, 1*us, 51*us)},
		{1150, 2, true, allowed(2, 50*us)},
	}
	slots := []row{
		{1000, 2, false, allowed(1, 119*us)}, // recorded at 1019
		{985, 1, false, allowed(0, 134*us)},  // as at 1000
		{985, 1, false, denied(0, 134*us, 134*us)},
		{1118, 1, false, denied(0, 1*us, 1*us)},
		{1119, 3, false, allowed(0, 100*us)},
		{1098, 1, false, denied(0, 121*us, 121*us)}, // in the slot before
	}
	log, window := NewSlidingLog([]Rule{{3, 100 * us}}, us), NewSlidingWindow(3, 100*us, 100)
	log.CallersClock, window.CallersClock = true, true
	table(t, "log", log, 3, 100*us, one)
	table(t, "sub-windows of a microsecond", window, 3, 100*us, one)
	log, window = NewSlidingLog([]Rule{{3, 100 * us}}, 20*us), NewSlidingWindow(3, 100*us, 5)
	log.CallersClock, window.CallersClock = true, true
	table(t, "log in slots", log, 3, 100*us, slots)
	table(t, "sub-windows", window, 3, 100*us, slots)
}

func TestSlidingLogsOfOneKeyForgetNothingForEachOther(t *testing.T) {
	long := NewSlidingLog([]Rule{{3, 100 * us}}, us)
	short := long.Beside([]Rule{{1, 10 * us}}, us)
	for i, r := range []struct {
		m    *SlidingLog
		at   int64
		want Answer
	}{
		{long, 0, allowed(2, 100*us)},
		{short, 5, denied(0, 5*us, 5*us)},
		{short, 10, allowed(0, 10*us)}, // the permit of 0 is kept until 100
		{short, 20, allowed(0, 10*us)},
		{long, 25, denied(0, 75*us, 75*us)},
		{long, 99, denied(0, 1*us, 1*us)},
		{long, 100, allowed(2, 100*us)}, // nobody needed those of 10 and 20 any more
		{short, 109, denied(0, 1*us, 1*us)},
		{short, 110, allowed(0, 10*us)},
		{long, 115, allowed(0, 100*us)},
		{long, 115, denied(0, 85*us, 100*us)},
		{short, 125, allowed(0, 10*us)},
		{short, 135, allowed(0, 10*us)},
		{long, 199, denied(0, 16*us, 16*us)}, // of 100, 110, 115, 125 and 135 three have to leave
		{long, 210, denied(0, 5*us, 5*us)},
		{long, 215, allowed(2, 100*us)},
	} {
		want := r.want.of(r.m.rules[0].Limit, r.m.rules[0].Window)
		require.Equal(t, want, r.m.Take(r.at, 1, false), "row %d at %d", i, r.at)
	}
}

// Coarse slots end later than fine ones, and that is no step back.
func TestSlidingLogsOfOneKeyWithDifferentSlots(t *testing.T) {
	coarse := NewSlidingLog([]Rule{{3, 100 * us}}, 20*us)
	fine := coarse.Beside([]Rule{{3, 100 * us}}, us)
	for i, r := range []struct {
		m    *SlidingLog
		at   int64
		want Answer
	}{
		{coarse, 1000, allowed(2, 119*us)}, // recorded at 1019
		{fine, 1005, allowed(1, 114*us)},   // with it
		{coarse, 1001, allowed(0, 118*us)},
		{fine, 1019, denied(0, 100*us, 100*us)},
		{fine, 999, denied(0, 100*us, 100*us)}, // a step back: all is at 999
		{fine, 1098, denied(0, 1*us, 1*us)},
		{fine, 1099, allowed(2, 100*us)},
	} {
		require.Equal(t, r.want.of(3, 100*us), r.m.Take(r.at, 1, false), "row %d at %d", i, r.at)
	}
}

func TestReset(t *testing.T) {
	for _, c := range configs {
		m := c.new()
		fresh := m.Take(1_000_000, 1, true)
		for range 50 {
			m.Take(1_000_000, 1, false)
		}
		require.False(t, m.Unused(1_000_000), "%s: the full limit is available after permits were taken", c.name)
		m.Reset()
		got := m.Take(1_000_000, 1, true)
		require.Equal(t, fresh, got, "%s after Reset", c.name)
		require.True(t, m.Unused(1_000_000), "%s after Reset", c.name)
	}
}
