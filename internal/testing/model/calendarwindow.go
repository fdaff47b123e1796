package model

import "time"

// A Calendar says in which window an instant is.
type Calendar struct {
	Loc *time.Location

	// Window is the number of a date's window. Later dates have no smaller number.
	Window func(y int, m time.Month, d int) int
}

// Days is a calendar of days.
func Days(loc *time.Location) Calendar { return Calendar{loc, daysSince1970} }

// Weeks is a calendar of weeks that begin on this day.
func Weeks(first time.Weekday, loc *time.Location) Calendar {
	return Calendar{loc, func(y int, m time.Month, d int) int {
		days := daysSince1970(y, m, d)
		for time.Date(1970, 1, 1+days, 0, 0, 0, 0, time.UTC).Weekday() != first {
			days--
		}
		return days
	}}
}

// Months is a calendar of months that begin on this day, or on the last of a shorter month.
func Months(day int, loc *time.Location) Calendar {
	return Calendar{loc, func(y int, m time.Month, d int) int {
		begins := day
		for time.Date(y, m, begins, 0, 0, 0, 0, time.UTC).Month() != m { // there is no such day
			begins--
		}
		if d < begins {
			return y*12 + int(m) - 1
		}
		return y*12 + int(m)
	}}
}

func daysSince1970(y int, m time.Month, d int) int {
	return int(time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Unix() / 86_400)
}

// quarter is how far apart the instants are at which a date can begin: since 1975, all
// zones are ahead of UTC by whole quarters of an hour, and clocks are set on a quarter.
const quarter = 15 * 60

// A CalendarWindow allows limit permits in each window of a calendar. It walks by quarters
// of an hour to where a window begins and ends. A date that has begun does not end when the
// clock in the zone is set back over its midnight.
type CalendarWindow struct {
	CallersClock bool

	limit    int
	calendar Calendar
	begun    bool // false: never used
	used     int
	window   [2]int64
	near     [][2]int64 // windows that the walk has found
}

// NewCalendarWindow returns the model of an unused key.
func NewCalendarWindow(limit int, calendar Calendar) *CalendarWindow {
	checkPositive("limit", limit)
	return &CalendarWindow{limit: limit, calendar: calendar}
}

// Take implements [Model].
func (c *CalendarWindow) Take(now int64, n int, peek bool) Answer {
	checkPermits(n, c.limit)
	return c.decide(now, n, peek, false)
}

// decide is Take. If charge is true, the permits are taken whether they are there or not.
func (c *CalendarWindow) decide(now int64, n int, peek, charge bool) Answer {
	used, window, repaired := c.used, c.window, false
	own := c.at(now)
	switch {
	case c.Unused(now):
		used, window = 0, own
	case c.CallersClock || now >= window[0] || own[1] == window[0]:
		// The window stays as it is, although the clock may be just before it: if it began
		// again, it could allow its limit twice.
	default:
		window, repaired = own, true
	}
	answer := Answer{Limit: c.limit, Window: micros(window[1] - window[0]), ResetAfter: micros(window[1] - now)}
	if c.CallersClock && own != window && own[1] != window[0] { // a clock that is windows behind
		answer.Window = micros(own[1] - own[0])
	}
	used = answer.count(used, n, peek, charge)
	if !peek && (answer.Allowed || repaired) {
		c.begun, c.used, c.window = true, used, window
	}
	return answer
}

// at is the window of an instant, in microseconds.
func (c *CalendarWindow) at(now int64) [2]int64 {
	for _, w := range c.near {
		if w[0] <= now && now < w[1] {
			return w
		}
	}
	step := func(second int64) int { // the window of an instant, by its date alone
		return c.calendar.Window(time.Unix(second, 0).In(c.calendar.Loc).Date())
	}
	// The latest window that has begun by an instant is found from three days before it.
	second := floorDiv(now, 1_000_000)
	begin := second - second%quarter
	latest := step(begin)
	for back := begin; back > begin-3*86_400; back -= quarter {
		latest = max(latest, step(back))
	}
	for begin > 0 && c.latest(begin-quarter, step) == latest {
		begin -= quarter
	}
	end := second - second%quarter + quarter
	for step(end) <= latest {
		end += quarter
	}
	w := [2]int64{begin * 1_000_000, end * 1_000_000}
	c.near = append(c.near, w)
	return w
}

func (c *CalendarWindow) latest(second int64, step func(int64) int) int {
	latest := step(second)
	for back := second; back > second-2*3600; back -= quarter { // no clock was set back by more over midnight
		latest = max(latest, step(back))
	}
	return latest
}

// Reset implements [Model].
func (c *CalendarWindow) Reset() { c.begun = false }

// Unused implements [Model].
func (c *CalendarWindow) Unused(now int64) bool { return !c.begun || now >= c.window[1] }

// Max implements [Model].
func (c *CalendarWindow) Max() int { return c.limit }

// Span implements [Model].
func (c *CalendarWindow) Span() time.Duration {
	w := c.at(1_700_000_000_000_000)
	return micros(w[1] - w[0])
}
