package ratelimit

import (
	_ "embed"
	"strconv"
	"time"

	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/keyname"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/script"
)

var (
	//go:embed scripts/calendarwindow.lua
	calendarWindowText string

	calendarWindowScripts = newScripts(script.Parse("calendarwindow.lua", calendarWindowText))
)

// A CalendarWindow allows up to limit permits in each day, week or month of a time zone, for
// quotas and billing. In an interval across the boundary of two windows it can allow up to
// twice the limit. Window in a Result is the real length of the current window, such as 23
// hours. RetryAfter and ResetAfter are the time until it ends, to the microsecond.
//
// # Clocks and time zone data
//
// The server's clock picks the window, as it decides for every limiter. The calling process
// computes when windows begin, from its time zone data. Its clock may be wrong by up to a
// window. If it is wrong by more, the first call takes a second round trip, because Redis first
// replies what time it is, and takes nothing. Later calls know the difference.
//
// The time zone data of processes may differ, for example after a law has changed when clocks
// are set. The processes together then get at most the limit between any two successive
// boundaries, of either process's data. If midnight by the old data is an hour from midnight by
// the new data, they get at most the limit in that hour, and the limit in the rest of the day.
// The same holds for two calendars under one name.
//
// # A changed rule
//
// Rules under one name share one counter, and what was used carries over:
//
//   - After a change of the limit, the window goes on with its count.
//   - After a change of the calendar, the count goes on if its last permit was taken since the
//     new rule's window began. Otherwise it begins again. From days to months, what was used
//     today counts in this month. From months to days, what was used this month counts today,
//     if any of it was used today.
//   - After a change to longer windows, the current count still ends with the shorter window,
//     unless the new rule takes a permit in it.
//   - While rules with longer and with shorter windows are both in use, a new count begins with
//     the next shorter window, for the longer rule too.
//
// Together the rules allow at most the largest limit in each shortest window. Two rules that are
// to hold at the same time need two names.
//
// When the server's clock steps back over the beginning of a window, that window goes on,
// as with [WithAlignment]: nothing is allowed twice, and a denial may last longer by the step.
//
// The state is one string of some 40 bytes; a decision is O(1).
type CalendarWindow struct{ core }

func (l *CalendarWindow) kind() kind { return kindOnRedis(l, &l.core) }

// NewCalendarWindow returns a limiter whose windows are those of cal. limit is 1 to 1,000,000,000.
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
	l := &CalendarWindow{}
	if err := l.build(c, s, algorithm{
		title: "calendar window", id: keyname.CalendarWindow, most: own,
		scripts:  calendarWindowScripts,
		args:     []string{strconv.Itoa(own)},
		instants: (&calendarInstants{calendar: cal}).around,
		words:    calendarWords, cost: redisexec.Cost{Key: 8, Run: 1}, explainer: calendarExplainer{int64(limit), int64(own)},
	}); err != nil {
		return nil, err
	}
	return l, nil
}

// The words of a calendar window's reply: those of a fixed window, and its length.
const (
	wordLength    = fixedWords // of the window, microseconds
	calendarWords = fixedWords + 1
)

// calendarExplainer explains the replies of a calendar window. own is the part of limit that
// this limiter may use, see WithHeadroom.
type calendarExplainer struct{ limit, own int64 }

func (c calendarExplainer) Explain(words []int64, n, taken int64, allowed bool) decision.Result {
	f := fixed{limit: c.limit, own: c.own, window: exact.Duration(words[wordLength]), unit: time.Microsecond}
	return f.Explain(words, n, taken, allowed)
}
