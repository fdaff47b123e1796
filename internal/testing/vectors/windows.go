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
	left  func(now int64) int64          // of the window, or of one that would begin now, as the words have it
	text  func(now int64, back bool) any // after a write, or a giveback
	ttl   func(now int64) int64          // the same
	steps func(now int64) bool           // the server's clock stepped back
	more  []int64                        // words behind these
	stays bool                           // though nothing is used any more
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

func (w *window) write(now, _ int64, back bool) (any, int64) {
	if w.used(now) == 0 && !w.stays {
		return nil, 0
	}
	return w.text(now, back), w.ttl(now)
}

// windows are fixed windows and those of a calendar.
func windows() (groups []Group) {
	never := func(int64) bool { return false }
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
		text: func(int64, bool) any { used, _, _ := counted.State(); return fmt.Sprintf("%d000064", used) },
		ttl:  func(now int64) int64 { _, end, _ := counted.State(); return end - now/1000 },
	}, 15, true)

	aligned := model.NewAlignedWindow(limit, length, 0)
	add(Group{
		Algorithm: "fixedwindow", Script: "datedwindow", Key: "ratelimit:default:fixedwindow{k}",
		Rule: map[string]int64{"limit": limit, "window": length.Microseconds(), "offset": 0}, Args: texts(limit, 60_000_000, 0),
		Build: func(c ratelimit.Client) (ratelimit.Limiter, error) {
			return ratelimit.NewFixedWindow(c, limit, length, ratelimit.WithAlignment(0))
		},
	}, &window{
		m: aligned, limit: limit, steps: never,
		state: func() (int, bool) { used, _, ok := aligned.State(); return used, ok },
		left:  func(now int64) int64 { return 60_000_000 - now%60_000_000 },
		text: func(int64, bool) any {
			used, begun, _ := aligned.State()
			return fmt.Sprintf("%d/%d/60000000", used, begun)
		},
		ttl: func(now int64) int64 {
			_, begun, _ := aligned.State()
			return evenly((begun+60_000_000-now)/1000) + 3
		},
	}, 15, false)

	const day = 86_400_000_000
	calendar := model.NewCalendarWindow(limit, model.Days(time.UTC))
	taken := int64(0) // when the last permit was
	end := func(now int64) int64 { return now - now%day + day }
	add(Group{
		Algorithm: "calendarwindow", Script: "calendarwindow", Key: "ratelimit:default:calendarwindow{k}",
		Rule: map[string]int64{"limit": limit}, Args: texts(limit),
		Build: func(c ratelimit.Client) (ratelimit.Limiter, error) {
			return ratelimit.NewCalendarWindow(c, limit, ratelimit.Daily(time.UTC))
		},
	}, &window{
		m: calendar, limit: limit, steps: never, more: []int64{day},
		state: func() (int, bool) { used, _, ok := calendar.State(); return used, ok },
		left:  func(now int64) int64 { return end(now) - now },
		text: func(now int64, back bool) any {
			if !back {
				taken = now
			}
			used, _, _ := calendar.State()
			return fmt.Sprintf("%d/%d-%d", used, taken, end(now))
		},
		ttl: func(now int64) int64 { return evenly((end(now)-now)/1000) + 3 },
	}, 12, false)
	for i, c := range groups[len(groups)-1].Cases { // where the windows around the clock begin
		next := end(c.Clock)
		groups[len(groups)-1].Cases[i].Args = texts(limit, next-2*day, next-day, next, next+day, next+2*day)
	}
	return groups
}
