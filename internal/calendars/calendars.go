// Package calendars says when the days, weeks and months of a time zone begin.
package calendars

import (
	"sync/atomic"
	"time"

	"github.com/tryacquire/ratelimit/internal/exact"
)

// A Calendar divides time into windows. Each begins at the first instant of its first date in the zone.
type Calendar struct {
	Every Cycle
	First time.Weekday // of a week
	Day   int          // of a month, 1 to 31; in a month without that day, its last
	Loc   *time.Location
}

// A Cycle is how long a window is.
type Cycle int

// 0 is no cycle.
const (
	Daily Cycle = iota + 1
	Weekly
	Monthly
)

// Around returns when five windows begin, in microseconds: the one before that of now, that
// of now, and the three after it. None begins before 1970.
func (c Calendar) Around(now int64) [5]int64 {
	y, m, d := time.UnixMicro(now).In(c.Loc).Date()
	i := c.index(y, m, d)
	// The date in the zone can differ from the window's when the clock is set back over
	// midnight, and two dates can begin together, if the zone leaves one out.
	var begins []int64
	k := 0 // the window of now
	for j := i - 3; len(begins) < k+4; j++ {
		begin := max(firstInstant(c.date(j), c.Loc)*1_000_000, 0)
		if n := len(begins); n > 0 && begin <= begins[n-1] {
			continue
		}
		if begin <= now {
			k = len(begins)
		}
		begins = append(begins, begin)
	}
	return [5]int64{begins[max(k-1, 0)], begins[k], begins[k+1], begins[k+2], begins[k+3]}
}

const secondsADay = 24 * 60 * 60

// index is the number of the window of a date. Windows are numbered in order.
func (c Calendar) index(y int, m time.Month, d int) int64 {
	day := time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix() / secondsADay // since 1970
	switch c.Every {
	case Daily:
		return day
	case Weekly:
		return floorDiv(day-c.weekZero(), 7)
	}
	month := int64(y)*12 + int64(m) - 1
	if d < c.dayOf(month) {
		month--
	}
	return month
}

// date is the midnight of a window's first date, in seconds since 1970 as if it were in UTC.
func (c Calendar) date(index int64) int64 {
	switch c.Every {
	case Daily:
		return index * secondsADay
	case Weekly:
		return (index*7 + c.weekZero()) * secondsADay
	}
	return time.Date(int(index/12), time.Month(index%12+1), c.dayOf(index), 0, 0, 0, 0, time.UTC).Unix()
}

// weekZero is the first day of week 0, as a number of days since 1970-01-01, a Thursday.
func (c Calendar) weekZero() int64 { return int64(c.First - time.Thursday) }

// dayOf is the day on which a month's window begins.
func (c Calendar) dayOf(month int64) int {
	last := time.Date(int(month/12), time.Month(month%12+2), 0, 0, 0, 0, 0, time.UTC).Day()
	return min(c.Day, last)
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// firstInstant is the first second since 1970 at which clocks in loc read wall or later,
// where wall is seconds since 1970 as if in UTC. [time.Date] does not say which instant it
// returns for a time that comes twice or not at all, and [time.Time.ZoneBounds] is not used
// because it can return an end that is not after the time that was asked about.
func firstInstant(wall int64, loc *time.Location) int64 {
	offset := func(at int64) int64 {
		_, seconds := time.Unix(at, 0).In(loc).Zone()
		return int64(seconds)
	}
	// No zone is so far from UTC, and none sets its clocks twice within two days.
	const furthest = 26 * 60 * 60
	before, after := wall-furthest, wall+furthest
	old := offset(before)
	if old == offset(after) {
		return wall - old
	}
	for after-before > 1 { // to the second at which clocks are set
		if middle := before + (after-before)/2; offset(middle) == old {
			before = middle
		} else {
			after = middle
		}
	}
	if wall-old < after {
		return wall - old
	}
	return max(wall-offset(after), after)
}

// Windows remembers the last windows around an instant.
type Windows struct {
	Calendar Calendar
	last     atomic.Pointer[[5]int64]
}

// Around is [Calendar.Around] for any instant: one before 1970 counts as 1970, and one after 2112 as 2112.
func (w *Windows) Around(now int64) [5]int64 {
	now = InRange(now)
	if last := w.last.Load(); last != nil && last[1] <= now && now < last[2] {
		return *last
	}
	begins := w.Calendar.Around(now)
	w.last.Store(&begins)
	return begins
}

// InRange is now, or the nearest instant from 1970 to 2112.
func InRange(now int64) int64 { return min(max(now, 0), 2*exact.Micros) }
