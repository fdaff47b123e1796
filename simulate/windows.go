package simulate

import (
	"time"

	"github.com/tryacquire/ratelimit"
)

// counted decides on n permits of a window of which used are taken, and that has so long left.
// It returns how many are taken then.
func counted(limit int, window, left time.Duration, used, n int64, peek bool) (ratelimit.Result, int64) {
	r := ratelimit.Result{Limit: limit, Window: window, ResetAfter: left}
	if r.Allowed = used+n <= int64(limit); !r.Allowed {
		r.RetryAfter = left
	}
	if peek && used == 0 {
		r.ResetAfter = 0
	}
	if r.Allowed && !peek {
		used += n
	}
	r.Remaining = limit - int(used)
	return r, used
}

// A firstWindow is a fixed window that opens with the first permit. It counts in whole units of
// time: Redis's expiry, which ends it unless the limit is large, has whole milliseconds.
type firstWindow struct {
	limit  int
	window int64 // in units, as are the instants below
	unit   int64 // microseconds
}

type firstWindowState struct {
	used int64 // 0: never used
	end  int64 // since 1970
}

func (f firstWindow) decide(s *firstWindowState, now, n int64, peek bool) ratelimit.Result {
	at := now / f.unit
	used, left, repaired := s.used, s.end-at, false
	switch {
	case f.unused(s, now):
		used, left = 0, f.window
	case left > f.window: // the clock was set back
		left, repaired = f.window, true
	}
	r, used := counted(f.limit, micros(f.window*f.unit), micros(left*f.unit), used, n, peek)
	if !peek && (r.Allowed || repaired) {
		s.used, s.end = used, at+left
	}
	return r
}

func (f firstWindow) unused(s *firstWindowState, now int64) bool {
	return s.used == 0 || now/f.unit >= s.end
}

// An alignedWindow is a fixed window that begins at offset plus a multiple of the window.
type alignedWindow struct {
	limit          int
	window, offset int64 // microseconds; 0 ≤ offset < window
}

type alignedWindowState struct {
	used  int64 // 0: never used
	start int64
}

func (a alignedWindow) decide(s *alignedWindowState, now, n int64, peek bool) ratelimit.Result {
	used, start, own, repaired := s.used, s.start, a.start(now), false
	switch {
	case a.unused(s, now):
		used, start = 0, own
	case now < start && own+a.window != start: // the clock was set back, further than to the window before
		start, repaired = own, true
	}
	r, used := counted(a.limit, micros(a.window), micros(start+a.window-now), used, n, peek)
	if !peek && (r.Allowed || repaired) {
		s.used, s.start = used, start
	}
	return r
}

func (a alignedWindow) start(now int64) int64 {
	since := now - a.offset
	if since < 0 {
		return a.offset - a.window // offset < window, and now is not before 1970
	}
	return a.offset + since/a.window*a.window
}

func (a alignedWindow) unused(s *alignedWindowState, now int64) bool {
	return s.used == 0 || now >= s.start+a.window
}

// A calendarWindow begins when a day, week or month does.
type calendarWindow struct {
	limit      int
	calendar   ratelimit.Calendar
	begin, end int64 // the window that was asked for last
}

type calendarWindowState struct {
	used       int64 // 0: never used
	begin, end int64
}

func (c *calendarWindow) decide(s *calendarWindowState, now, n int64, peek bool) ratelimit.Result {
	if now < c.begin || now >= c.end {
		begin, end := c.calendar.Window(time.UnixMicro(now))
		c.begin, c.end = begin.UnixMicro(), end.UnixMicro()
	}
	used, begin, end, repaired := s.used, s.begin, s.end, false
	switch {
	case c.unused(s, now):
		used, begin, end = 0, c.begin, c.end
	case now < begin && c.end != begin: // the clock was set back, further than to the window before
		begin, end, repaired = c.begin, c.end, true
	}
	r, used := counted(c.limit, micros(end-begin), micros(end-now), used, n, peek)
	if !peek && (r.Allowed || repaired) {
		s.used, s.begin, s.end = used, begin, end
	}
	return r
}

func (c *calendarWindow) unused(s *calendarWindowState, now int64) bool {
	return s.used == 0 || now >= s.end
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }
