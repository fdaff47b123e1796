package simulate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/exact"
)

// An Algorithm is what [New] makes a limiter of: a [FixedWindow], [CalendarWindow],
// [SlidingWindow], [SlidingLog], [TokenBucket] or [LeakyBucket]. Their fields are the
// arguments and the options of the constructors in package ratelimit, with the same bounds.
type Algorithm interface {
	// build checks the fields by the constructor of the limiter that is simulated.
	build() (keys, error)
}

// A FixedWindow is simulated as [ratelimit.NewFixedWindow] decides: at most Limit permits in
// each window, which opens with the first permit.
type FixedWindow struct {
	Limit  int
	Window time.Duration

	// Aligned lets windows begin at the multiples of Window since 1970 plus Offset, see
	// [ratelimit.WithAlignment]. Without Aligned, Offset is 0.
	Aligned bool
	Offset  time.Duration
}

func (f FixedWindow) build() (keys, error) {
	opts, err := withAlignment(nil, "FixedWindow", "windows", f.Aligned, f.Offset)
	if err != nil {
		return nil, err
	}
	if _, err := ratelimit.NewFixedWindow(noRedis{}, f.Limit, f.Window, opts...); err != nil {
		return nil, err
	}
	if f.Aligned {
		window := f.Window.Microseconds()
		return newTable(f.Limit, alignedWindow{f.Limit, window, (f.Offset.Microseconds()%window + window) % window}), nil
	}
	unit := time.Microsecond
	if f.Limit <= exact.Counted { // one integer counts, and the expiry of its key ends the window
		unit = time.Millisecond
	}
	return newTable(f.Limit, firstWindow{f.Limit, int64(f.Window / unit), unit.Microseconds()}), nil
}

// withAlignment adds the option.
func withAlignment(opts []ratelimit.Option, of, what string, aligned bool, offset time.Duration) ([]ratelimit.Option, error) {
	if aligned {
		return append(opts, ratelimit.WithAlignment(offset)), nil
	}
	if offset != 0 {
		return nil, fmt.Errorf("%w: %s: the Offset is %v, and only aligned %s have one; set Aligned", ratelimit.ErrInvalidConfig, of, offset, what)
	}
	return opts, nil
}

// A CalendarWindow is simulated as [ratelimit.NewCalendarWindow] decides: at most Limit
// permits in each day, week or month.
type CalendarWindow struct {
	Limit    int
	Calendar ratelimit.Calendar
}

func (c CalendarWindow) build() (keys, error) {
	if _, err := ratelimit.NewCalendarWindow(noRedis{}, c.Limit, c.Calendar); err != nil {
		return nil, err
	}
	return newTable(c.Limit, &calendarWindow{limit: c.Limit, calendar: c.Calendar}), nil
}

// A SlidingWindow is simulated as [ratelimit.NewSlidingWindow] decides: at most Limit permits
// in any interval of one Window.
type SlidingWindow struct {
	Limit  int
	Window time.Duration

	// SubWindows is the number of sub-windows, see [ratelimit.WithSubWindows]; 0 is the
	// limiter's own default.
	SubWindows int

	// Storage is where the limiter keeps what it counts. List, the default, and Hash decide
	// alike; ZSet is exact and has no sub-windows.
	Storage ratelimit.Storage
}

func (s SlidingWindow) build() (keys, error) {
	opts := []ratelimit.Option{ratelimit.WithStorage(s.Storage)}
	if s.SubWindows != 0 {
		opts = append(opts, ratelimit.WithSubWindows(s.SubWindows))
	}
	if _, err := ratelimit.NewSlidingWindow(noRedis{}, s.Limit, s.Window, opts...); err != nil {
		return nil, err
	}
	resolution := int64(1)
	switch {
	case s.Storage == ratelimit.StorageZSet:
	case s.SubWindows == 0:
		resolution = s.Window.Microseconds() / defaultSubWindows
	default:
		resolution = s.Window.Microseconds() / int64(s.SubWindows)
	}
	return newTable(s.Limit, newLog([]ratelimit.Rule{{Limit: s.Limit, Window: s.Window}}, resolution)), nil
}

// defaultSubWindows is how many [ratelimit.NewSlidingWindow] takes by default.
const defaultSubWindows = 40

// A SlidingLog is simulated as [ratelimit.NewSlidingLog] decides: no interval of a rule's
// window holds more permits than that rule's limit, for all Rules at once.
type SlidingLog struct {
	Rules []ratelimit.Rule

	// Resolution merges permits that are this close together, see [ratelimit.WithResolution];
	// 0 is exact.
	Resolution time.Duration
}

func (l SlidingLog) build() (keys, error) {
	var opts []ratelimit.Option
	if l.Resolution != 0 {
		opts = append(opts, ratelimit.WithResolution(l.Resolution))
	}
	if _, err := ratelimit.NewSlidingLog(noRedis{}, l.Rules, opts...); err != nil {
		return nil, err
	}
	log := newLog(l.Rules, max(l.Resolution.Microseconds(), 1))
	return newTable(log.rules[0].limit, log), nil // no rule with a longer window has a lower limit
}

// A TokenBucket is simulated as [ratelimit.NewTokenBucket] decides: at most Burst permits and
// those of the Rate in any interval.
type TokenBucket struct {
	Rate  ratelimit.Rate
	Burst int

	// RefillEvery is how far apart the steps are in which permits come, see
	// [ratelimit.WithRefillEvery]; 0 is continuously.
	RefillEvery time.Duration

	// Aligned lets the steps fall on the multiples of RefillEvery since 1970 plus Offset, see
	// [ratelimit.WithAlignment]. Without Aligned, Offset is 0.
	Aligned bool
	Offset  time.Duration
}

func (t TokenBucket) build() (keys, error) {
	var opts []ratelimit.Option
	if t.RefillEvery != 0 {
		opts = append(opts, ratelimit.WithRefillEvery(t.RefillEvery))
	}
	opts, err := withAlignment(opts, "TokenBucket", "steps", t.Aligned, t.Offset)
	if err != nil {
		return nil, err
	}
	if _, err := ratelimit.NewTokenBucket(noRedis{}, t.Rate, t.Burst, opts...); err != nil {
		return nil, err
	}
	b := newBucket(t.Rate, t.Burst, t.RefillEvery)
	if t.Aligned {
		b.Align(t.Offset)
	}
	return newTable(t.Burst, b), nil
}

// A LeakyBucket is simulated as [ratelimit.NewLeakyBucket] decides: permits are poured in if
// they fit under the Capacity, and drain at the Rate.
type LeakyBucket struct {
	Rate     ratelimit.Rate
	Capacity int
}

func (l LeakyBucket) build() (keys, error) {
	if _, err := ratelimit.NewLeakyBucket(noRedis{}, l.Rate, l.Capacity); err != nil {
		return nil, err
	}
	return newTable(l.Capacity, newBucket(l.Rate, l.Capacity, 0)), nil // it decides as a token bucket does
}

// noRedis is the client of limiters that are made only to check their arguments.
type noRedis struct{}

func (noRedis) Process(context.Context, redis.Cmder) error {
	return errors.New("simulate: there is no Redis")
}
