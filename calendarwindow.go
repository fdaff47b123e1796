package ratelimit

import (
	"fmt"
	"strconv"
	"time"

	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/calendars"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/scripts"
	"github.com/tryacquire/ratelimit/internal/windows"
)

// A CalendarWindow allows up to limit permits in each day, week or month of a time zone, for quotas and billing.
// In an interval across the boundary of two windows it can allow up to twice the limit. Window in a Result is the
// real length of the current window, such as 23 hours. RetryAfter and ResetAfter are the time until it ends, to
// the microsecond.
//
// The server's clock picks the window. The calling process computes when windows begin, from its time zone data;
// if its clock is wrong by more than a window, its first call takes a second round trip. Rules under one name
// share one counter, and together allow at most the largest limit in each shortest window; the same holds for
// processes with other time zone data. docs/plans.md says what a change of the calendar carries over.
//
// When the server's clock steps back over the beginning of a window, that window goes on: nothing is allowed
// twice, and a denial may last longer by the step. The state is one string of some 40 bytes; a decision is O(1).
type CalendarWindow struct{ limiterCore }

func (l *CalendarWindow) kind() kind { return kindOnRedis(l, &l.core) }

// NewCalendarWindow returns a limiter whose windows are those of cal. limit has the bounds of a [Rule]'s.
// Use the same zone in all processes, and load it by its name: [time.Local] depends on the
// settings of each machine. The error wraps ErrInvalidConfig. Redis is not asked.
func NewCalendarWindow(c Client, limit int, cal Calendar, opts ...Option) (*CalendarWindow, error) {
	s, err := collect(newCalendarWindow, opts)
	if err != nil {
		return nil, err
	}
	if err := checkCount("the limit", limit); err != nil {
		return nil, err
	}
	if err := cal.check(); err != nil {
		return nil, err
	}
	if err := s.checkHeadroom("limit", limit); err != nil {
		return nil, err
	}
	own := limit - s.headroom
	a, err := algorithm{
		id: algorithms.CalendarWindow, scripts: scripts.Of("calendarwindow"), most: own,
		args:     []string{strconv.Itoa(own)},
		instants: (&calendars.Windows{Calendar: cal.of}).Around,
		cost:     redisexec.Cost{Key: 8, Run: 1}, explainer: windows.Calendar{Limit: int64(limit), Own: int64(own)},
		credits: true, window: true,
	}.withTickets(&s)
	if err != nil {
		return nil, err
	}
	l := &CalendarWindow{}
	if err := l.build(c, s, a); err != nil {
		return nil, err
	}
	return l, nil
}

// A Calendar divides time into days, weeks or months of a time zone, for a
// [CalendarWindow]. Each window begins at the first instant of its first date in that zone: at
// midnight, or, if the clock is set forward over midnight, at that moment. So windows have
// their real lengths: a day has 23 or 25 hours when the clock is set, a February 28 days. If
// midnight comes twice, the window begins with the first one; if a zone left a date out, that
// date has no window of its own. Make a Calendar with [Daily], [Weekly] or [Monthly].
type Calendar struct{ of calendars.Calendar }

// Daily begins a window with each day in loc.
func Daily(loc *time.Location) Calendar {
	return Calendar{calendars.Calendar{Every: calendars.Daily, Loc: loc}}
}

// Weekly begins a window on the weekday first of each week in loc.
func Weekly(first time.Weekday, loc *time.Location) Calendar {
	return Calendar{calendars.Calendar{Every: calendars.Weekly, First: first, Loc: loc}}
}

// Monthly begins a window on this day of each month in loc, 1 to 31. In a month that has no
// such day, the window begins on the month's last day. So 31 is always the last day.
func Monthly(day int, loc *time.Location) Calendar {
	return Calendar{calendars.Calendar{Every: calendars.Monthly, Day: day, Loc: loc}}
}

// String names the calendar, such as "weekly from Monday, Europe/Berlin".
func (c Calendar) String() string {
	switch c.of.Every {
	case calendars.Daily:
		return fmt.Sprintf("daily, %v", c.of.Loc)
	case calendars.Weekly:
		return fmt.Sprintf("weekly from %v, %v", c.of.First, c.of.Loc)
	case calendars.Monthly:
		return fmt.Sprintf("monthly from day %d, %v", c.of.Day, c.of.Loc)
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
	begins := c.of.Around(calendars.InRange(at.UnixMicro()))
	return time.UnixMicro(begins[1]).In(c.of.Loc), time.UnixMicro(begins[2]).In(c.of.Loc)
}

// check refuses a calendar that cannot work.
func (c Calendar) check() error {
	switch {
	case c.of.Every == 0:
		return invalidConfig("the calendar is a zero value; make one with Daily, Weekly or Monthly")
	case c.of.Loc == nil:
		return invalidConfig("the calendar's location is nil; give time.UTC, or what time.LoadLocation returns")
	case c.of.Every == calendars.Weekly && (c.of.First < time.Sunday || c.of.First > time.Saturday):
		return invalidConfig("Weekly: the first day is %d; it must be from time.Sunday to time.Saturday", int(c.of.First))
	case c.of.Every == calendars.Monthly && (c.of.Day < 1 || c.of.Day > 31):
		return invalidConfig("Monthly: the day is %d; it must be 1 to 31, where 31 is each month's last", c.of.Day)
	}
	return nil
}
