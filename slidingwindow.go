package ratelimit

import (
	"time"

	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/scripts"
	"github.com/tryacquire/ratelimit/internal/windows"
)

// A SlidingWindow allows at most limit permits in any interval of one window.
//
// With the storages List and Hash it counts by sub-windows, forty unless [WithSubWindows] gives another number. A
// sub-window counts until its last instant has left the window: that never allows more than the limit, and makes a
// permit available again up to one sub-window late. A decision is O(1) amortised.
//
// The storage ZSet is exact. It keeps about 120 bytes for each permit, and a decision for n permits takes some 2
// µs of Redis's time a permit, so its limit is at most 10,000. A [SlidingLog] is as exact, takes an eighth of the
// memory, and accepts any limit and n.
//
// Limiters with other windows may use the same key, while a change is rolled out or by plan. A call is allowed
// only if its own rule holds over all permits that are kept.
type SlidingWindow struct{ limiterCore }

func (l *SlidingWindow) kind() kind { return kindOnRedis(l, &l.core) }

// maxZSet is the highest limit with ZSet. The script keeps at most as many members for a longer
// window.
const maxZSet = maxStored

// NewSlidingWindow returns a sliding window. The bounds of limit and window are those of
// a [Rule]; with ZSet the limit is at most 10,000, and otherwise each sub-window is a
// whole number of microseconds. The error wraps ErrInvalidConfig. Redis is not asked.
func NewSlidingWindow(c Client, limit int, window time.Duration, opts ...Option) (*SlidingWindow, error) {
	s, err := collect(newSlidingWindow, opts)
	if err != nil {
		return nil, err
	}
	if err := checkRule(Rule{limit, window}); err != nil {
		return nil, err
	}
	if err := s.checkHeadroom("limit", limit); err != nil {
		return nil, err
	}
	log := windows.Log{Rules: []windows.Rule{{Limit: limit, Window: window}}, Headroom: s.headroom}
	in := algorithms.Storages()[s.storage]
	of := scripts.Of(in.Files[0].Name)
	var a algorithm
	switch s.storage {
	case StorageZSet:
		if s.subWindows > 0 {
			return nil, invalidConfig("WithSubWindows: the storage ZSet is exact and has no sub-windows; leave the option out")
		}
		if limit > maxZSet {
			return nil, invalidConfig("the limit is %d; with the storage ZSet it must be at most %d; a SlidingLog is as exact, for any limit", limit, maxZSet)
		}
		a = algorithm{
			id: in.ID, scripts: of, most: log.Own(0),
			args: exact.Texts(int64(log.Own(0)), window.Microseconds()),
			cost: redisexec.Cost{Key: 12, Run: 10, Permit: 3, Back: 45}, explainer: log,
			mostCharge: maxZSet,
			which:      func(last, n int64) int64 { return last - n + 1 }, // the number of the first member
		}
	default:
		subWindows := int64(s.subWindows)
		if subWindows == 0 {
			subWindows = defaultSubWindows
		}
		if window.Microseconds()%subWindows != 0 {
			return nil, invalidConfig("the window %v is not divisible into %d sub-windows of whole microseconds; "+
				"choose another number with WithSubWindows", window, subWindows)
		}
		log.Resolution = window.Microseconds() / subWindows
		a = logAlgorithm(in.ID, of, log, s.clock != nil)
	}
	if a, err = a.withTickets(&s); err != nil {
		return nil, err
	}
	l := &SlidingWindow{}
	if err := l.build(c, s, a); err != nil {
		return nil, err
	}
	return l, nil
}
