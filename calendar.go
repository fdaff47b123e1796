package ratelimit

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tryacquire/ratelimit/internal/exact"
)

// A Calendar divides time into days, weeks or months of a time zone, for a
// [CalendarWindow]. Each window begins at the first instant of its first date in that zone: at
// midnight, or, if the clock is set forward over midnight, at that moment. So windows have
// their real lengths: a day has 23 or 25 hours when the clock is set, a February 28 days. If
// midnight comes twice, the window begins with the first one; if a zone left a date out, that
// date has no window of its own. Make a Calendar with [Daily], [Weekly] or [Monthly].
type Calendar struct {
	every cycle
	first time.Weekday // of a week
	day   int          // of a month
	loc   *time.Location
}

type cycle int

const (
	daily cycle = iota + 1
	weekly
	monthly
)

// Daily begins a window with each day in loc.
func Daily(loc *time.Location) Calendar { return Calendar{every: daily, loc: loc} }

// Weekly begins a window on the weekday first of each week in loc.
func Weekly(first time.Weekday, loc *time.Location) Calendar {
	return Calendar{every: weekly, first: first, loc: loc}
}

// Monthly begins a window on this day of each month in loc, 1 to 31. In a month that has no
// such day, the window begins on the month's last day. So 31 is always the last day.
func Monthly(day int, loc *time.Location) Calendar {
	return Calendar{every: monthly, day: day, loc: loc}
}

// String names the calendar, such as "weekly from Monday, Europe/Berlin".
func (c Calendar) String() string {
	switch c.every {
	case daily:
		return fmt.Sprintf("daily, %v", c.loc)
	case weekly:
		return fmt.Sprintf("weekly from %v, %v", c.first, c.loc)
	case monthly:
		return fmt.Sprintf("monthly from day %d, %v", c.day, c.loc)
	}
	return "no calendar"
}

// Window returns when the window of an instant begins and when it ends, which is when the next
// one begins, in the calendar's zone. An instant before 1970 counts as 1970, and one after 2112
// as 2112. Both are zero for a Calendar that no constructor accepts.
func (c Calendar) Window(at time.Time) (begin, end time.Time) {
	if c.check() != nil {
		return time.Time{}, time.Time{}
	}
	begins := c.around(min(max(at.UnixMicro(), 0), 2*exact.Micros))
	return time.UnixMicro(begins[1]).In(c.loc), time.UnixMicro(begins[2]).In(c.loc)
}

// check refuses a calendar that cannot work.
func (c Calendar) check() error {
	switch {
	case c.every == 0:
		return invalidConfig("the calendar is a zero value; make one with Daily, Weekly or Monthly")
	case c.loc == nil:
		return invalidConfig("the calendar's location is nil; give time.UTC, or what time.LoadLocation returns")
	case c.every == weekly && (c.first < time.Sunday || c.first > time.Saturday):
		return invalidConfig("Weekly: the first day is %d; it must be from time.Sunday to time.Saturday", int(c.first))
	case c.every == monthly && (c.day < 1 || c.day > 31):
		return invalidConfig("Monthly: the day is %d; it must be 1 to 31, where 31 is each month's last", c.day)
	}
	return nil
}

// around returns when five windows begin, in microseconds: the one before that of now, that
// of now, and the three after it. None begins before 1970.
func (c Calendar) around(now int64) [5]int64 {
	y, m, d := time.UnixMicro(now).In(c.loc).Date()
	i := c.index(y, m, d)
	// The date in the zone can differ from the window's when the clock is set back over
	// midnight, and two dates can begin together, if the zone leaves one out.
	var begins []int64
	k := 0 // the window of now
	for j := i - 3; len(begins) < k+4; j++ {
		begin := max(firstInstant(c.date(j), c.loc)*1_000_000, 0)
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
	switch c.every {
	case daily:
		return day
	case weekly:
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
	switch c.every {
	case daily:
		return index * secondsADay
	case weekly:
		return (index*7 + c.weekZero()) * secondsADay
	}
	return time.Date(int(index/12), time.Month(index%12+1), c.dayOf(index), 0, 0, 0, 0, time.UTC).Unix()
}

// weekZero is the first day of week 0, as a number of days since 1970-01-01, a Thursday.
func (c Calendar) weekZero() int64 { return int64(c.first - time.Thursday) }

// dayOf is the day on which a month's window begins.
func (c Calendar) dayOf(month int64) int {
	last := time.Date(int(month/12), time.Month(month%12+2), 0, 0, 0, 0, 0, time.UTC).Day()
	return min(c.day, last)
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

// calendarInstants remembers the last windows around an instant.
type calendarInstants struct {
	calendar Calendar
	last     atomic.Pointer[[5]int64]
}

func (c *calendarInstants) around(now int64) [5]int64 {
	now = min(max(now, 0), 2*exact.Micros)
	if last := c.last.Load(); last != nil && last[1] <= now && now < last[2] {
		return *last
	}
	begins := c.calendar.around(now)
	c.last.Store(&begins)
	return begins
}
