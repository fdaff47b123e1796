package vectors

import (
	"fmt"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// A window is a count, and when its window ends. The algorithms differ in the text.
type window struct {
	m     model.Settler
	limit int
	state func() (used int, ok bool)
	left  func(now int64) int64 // of the window, or of one that would begin now, as the words have it
	text  func(now int64) any   // after a write
	ttl   func(now int64) int64 // the same
	steps func(now int64) bool  // the server's clock stepped back
	more  []int64               // words behind these
	stays bool                  // though nothing is used any more
}

func (w *window) model() model.Settler { return w.m }

func (w *window) words(now int64) []int64 {
	return append([]int64{max(int64(w.limit)-w.used(now), 0), w.left(now)}, w.more...)
}

func (w *window) allowed([]int64, int64, int, *model.Answer) {}

func (w *window) used(now int64) int64 {
	if used, ok := w.state(); ok && !w.m.Unused(now) {
		return int64(used)
	}
	return 0
}

func (w *window) repairs(now int64) bool { return w.steps(now) }
func (w *window) last() int64            { return 0 }
func (w *window) which(int) int64        { return 0 }

func (w *window) giveBack(now int64, n int, place, _ int64) { w.m.GiveBack(now, n, place) }

func (w *window) write(now, _ int64, _ bool) (any, int64) {
	if w.used(now) == 0 && !w.stays {
		return nil, 0
	}
	return w.text(now), w.ttl(now)
}

func never(int64) bool { return false }

// dated is a fixed window with a start.
func dated(m *model.ClockWindow, limit int) *window {
	long, slack, by := m.Span().Microseconds(), int64(0), ""
	if m.CallersClock {
		slack, by = skew, fmt.Sprintf("@%d", skew)
	}
	w := &window{m: m, limit: limit, steps: never, stays: m.CallersClock}
	w.state = func() (int, bool) { used, _, ok := m.State(); return used, ok }
	w.left = func(now int64) int64 { return placed(m, now) + long - now }
	w.text = func(int64) any {
		used, begun, _ := m.State()
		return fmt.Sprintf("%d/%d/%d%s", used, begun, long, by)
	}
	w.ttl = func(now int64) int64 {
		if w.used(now) == 0 {
			return 3 + slack
		}
		return evenly(min(w.left(now), long)/1000) + 3 + slack
	}
	return w
}

const (
	day      = 86_400_000_000
	midnight = start - start%day + day // the first one
)

// ofDays are the days of a calendar, with the arguments of the first day.
func ofDays(limit int, options ...ratelimit.Option) Group {
	return Group{
		Algorithm: "calendarwindow", Script: "calendarwindow", Key: "ratelimit:default:calendarwindow{k}",
		Rule: map[string]int64{"limit": int64(limit)}, Args: daysAround(limit, start, 0),
		Build: func(c ratelimit.Client) (ratelimit.Limiter, error) {
			return ratelimit.NewCalendarWindow(c, limit, ratelimit.Daily(time.UTC), options...)
		},
	}
}

// daysAround are the arguments of a call: the limit, and where the days around the clock begin, in a zone that is ahead by so much.
func daysAround(limit int, now, ahead int64) []string {
	today := (now+ahead)/day*day - ahead
	return texts(int64(limit), today-day, today, today+day, today+2*day, today+3*day)
}

// calendar is the window of a calendar of days.
func calendar(m *model.CalendarWindow, limit int) *window {
	w := &window{m: m, limit: limit, steps: never, more: []int64{day}}
	w.state = func() (int, bool) { used, _, ok := m.State(); return used, ok }
	w.left = func(now int64) int64 { return placed(m, now) - now }
	w.text = func(now int64) any {
		used, bounds, _ := m.State()
		return fmt.Sprintf("%d/%d-%d", used, now, bounds[1])
	}
	w.ttl = func(now int64) int64 { return evenly(w.left(now)/1000) + 3 }
	return w
}

// windows are fixed windows and those of a calendar.
func windows() (groups []Group) {
	add := func(g Group, w *window, cases int, back bool) {
		h := newHistory(w, 200+len(groups))
		g.Cases = h.steps(cases, start, back)
		groups = append(groups, g)
	}

	const limit, length = 5, time.Minute
	counted := model.NewFixedWindow(limit, length)
	add(Group{
		Algorithm: "fixedwindow", Script: "fixedwindow", Key: "ratelimit:default:fixedwindow{k}",
		Rule: map[string]int64{"limit": limit, "window": length.Microseconds()}, Args: texts(5_000_064, 60_000),
		Build: func(c ratelimit.Client) (ratelimit.Limiter, error) { return ratelimit.NewFixedWindow(c, limit, length) },
	}, &window{
		m: counted, limit: limit, steps: func(now int64) bool {
			_, end, ok := counted.State()
			return ok && end-now/1000 > 60_000
		},
		state: func() (int, bool) { used, _, ok := counted.State(); return used, ok },
		left: func(now int64) int64 {
			if _, end, ok := counted.State(); ok {
				return min(end-now/1000, 60_000)
			}
			return 60_000
		},
		text: func(int64) any { used, _, _ := counted.State(); return fmt.Sprintf("%d000064", used) },
		ttl:  func(now int64) int64 { _, end, _ := counted.State(); return end - now/1000 },
	}, 15, true)

	add(Group{
		Algorithm: "fixedwindow", Script: "datedwindow", Key: "ratelimit:default:fixedwindow{k}",
		Rule: map[string]int64{"limit": limit, "window": length.Microseconds(), "offset": 0}, Args: texts(limit, 60_000_000, 0),
		Build: func(c ratelimit.Client) (ratelimit.Limiter, error) {
			return ratelimit.NewFixedWindow(c, limit, length, ratelimit.WithAlignment(0))
		},
	}, dated(model.NewAlignedWindow(limit, length, 0), limit), 15, false)

	add(ofDays(limit), calendar(model.NewCalendarWindow(limit, model.Days(time.UTC)), limit), 12, false)
	for i, c := range groups[len(groups)-1].Cases {
		groups[len(groups)-1].Cases[i].Args = daysAround(limit, c.Clock, 0)
	}
	return groups
}
