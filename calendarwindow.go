package ratelimit

import (
	_ "embed"
	"strconv"
	"time"

	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/script"
)

var (
	//go:embed scripts/calendarwindow.lua
	calendarWindowText string

	calendarWindowScripts = newScripts(script.Parse("calendarwindow.lua", calendarWindowText), 18)
)

// A CalendarWindow allows up to limit permits in each day, week or month of a time zone,
// for quotas and billing: up to twice that across the boundary of two windows. Window in a
// Result is the length of this window, 23 hours on a day that has 23. RetryAfter and
// ResetAfter are the time until the window ends, to the microsecond.
//
// # Clocks and time zone data
//
// The server's clock picks the window, as it decides for every limiter. Where windows
// begin is computed by the calling process, from its time zone data. Its clock may be wrong
// by up to a window; one that is further off costs a second round trip, once: Redis replies
// what time it is, having done nothing.
//
// The data of processes may differ, as after a law changed when clocks are set. Together
// they then get at most the limit between any two successive boundaries, whosever they are:
// where midnight by the old data is an hour from midnight by the new, at most the limit in
// that hour and the limit in the rest of the day. The same holds for two calendars under
// one name.
//
// # A changed rule
//
// Several rules under one name share one counter, and what was used carries over. After a
// change of the limit, the window goes on with its count. After a change of the calendar,
// the count goes on if the last permit was taken since the new rule's window began: from
// days to months, what was used today counts in this month; from months to days, what was
// used this month counts for the rest of today, if any of it was used today. Of a longer
// and a shorter window in use at the same time, the next of the shorter forgets the count
// that the longer one still had: together they allow at most the largest limit in each
// shortest window. Until a longer rule has taken a permit, it sees the counter end with the
// shorter window. Two rules that are to hold at the same time need two names.
//
// When the server's clock steps back over the beginning of a window, that window goes on,
// as with [WithAlignment]: nothing is allowed twice, and a denial may last longer by the step.
//
// The state is one string of some 60 bytes; a decision is O(1).
type CalendarWindow struct{ *core }

// NewCalendarWindow returns a window of a calendar. limit is 1 to 1,000,000,000. Name the
// zone, so that all processes use the same: [time.Local] is what each machine is set to.
// The error wraps ErrInvalidConfig. Redis is not asked.
func NewCalendarWindow(c Client, limit int, cal Calendar, opts ...CalendarWindowOption) (*CalendarWindow, error) {
	s, err := collect(opts)
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
	inner, err := newCore(c, s, algorithm{
		title: "calendar window", id: idCalendarWindow, most: own,
		scripts:  calendarWindowScripts,
		args:     []string{strconv.Itoa(own)},
		instants: (&calendarInstants{calendar: cal}).around,
		words:    calendarWords, cost: redisexec.Cost{Key: 8, Run: 1}, explainer: calendarExplainer{int64(limit), int64(own)},
	})
	if err != nil {
		return nil, err
	}
	return &CalendarWindow{inner}, nil
}

// The words of a calendar window's reply: those of a fixed window, and its length.
const (
	wordLength    = fixedWords // of the window, microseconds
	calendarWords = fixedWords + 1
)

// calendarExplainer explains the replies of a calendar window of this limit, of which it
// may use its own, see WithHeadroom.
type calendarExplainer struct{ limit, own int64 }

func (c calendarExplainer) explain(words []int64, n, taken int64, allowed bool) Result {
	f := fixed{limit: c.limit, own: c.own, window: micros(words[wordLength]), unit: time.Microsecond}
	return f.explain(words, n, taken, allowed)
}
