package ratelimit

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tryacquire/ratelimit/internal/algorithms"
)

// An Option configures a limiter. It is a [PolicyOption] too, because some options are for both:
// [WithName], [WithObserver] and [WithMaxKeys]. A constructor refuses an option that it does not
// have, and one that is given twice, with an error that wraps ErrInvalidConfig.
type Option interface {
	PolicyOption
	forLimiters()
}

// A PolicyOption configures what goes around limiters: [NewFallback], [NewHoldFallback],
// [NewDenyCache] and [NewLeased].
type PolicyOption interface{ set(*settings) }

// constructors is a set of constructors that take options.
type constructors uint16

const (
	newFixedWindow constructors = 1 << iota
	newCalendarWindow
	newSlidingWindow
	newSlidingLog
	newTokenBucket
	newLeakyBucket
	newFairTokenBucket
	newInFlight
	newPause
	newLocalTokenBucket
	newLocalInFlight
	newFallback
	newHoldFallback
	newDenyCache
	newLeased

	ofWindows    = newFixedWindow | newCalendarWindow | newSlidingWindow | newSlidingLog
	onTheirRedis = ofWindows | newTokenBucket | newLeakyBucket | newFairTokenBucket | newInFlight | newPause
	ofLimiters   = onTheirRedis | newLocalTokenBucket | newLocalInFlight
	ofFallbacks  = newFallback | newHoldFallback
	everywhere   = ofLimiters | ofFallbacks | newDenyCache | newLeased
)

// constructorNames are in the order of the constants.
var constructorNames = [...]string{
	"NewFixedWindow", "NewCalendarWindow", "NewSlidingWindow", "NewSlidingLog", "NewTokenBucket", "NewLeakyBucket",
	"NewFairTokenBucket", "NewInFlight", "NewPause", "NewLocalTokenBucket", "NewLocalInFlight", "NewFallback", "NewHoldFallback", "NewDenyCache", "NewLeased",
}

// optionsOf says which constructors have an option.
var optionsOf = map[string]constructors{
	"WithName":         everywhere,
	"WithObserver":     everywhere,
	"WithPrefix":       onTheirRedis,
	"WithClock":        onTheirRedis | newLocalTokenBucket,
	"WithMaxSkew":      onTheirRedis,
	"WithoutMerging":   onTheirRedis,
	"WithHeadroom":     onTheirRedis &^ (newFairTokenBucket | newInFlight | newPause),
	"WithAlignment":    newFixedWindow | newTokenBucket,
	"WithStorage":      newSlidingWindow,
	"WithSubWindows":   newSlidingWindow,
	"WithResolution":   newSlidingLog,
	"WithRefillEvery":  newTokenBucket,
	"WithExactReturns": newTokenBucket | newLeakyBucket,
	"WithTicketLease":  newFixedWindow | newCalendarWindow | newSlidingWindow | newSlidingLog | newTokenBucket | newLeakyBucket,
	"WithEmptyStart":   newLocalTokenBucket,
	"WithLastAnswers":  newLocalTokenBucket,
	"WithMaxKeys":      newLocalTokenBucket | newDenyCache | newLeased,
	"WithMaxSlice":     newLeased,
	"WithMaxDenial":    newDenyCache,
	"WithBudget":       ofFallbacks,
	"WithBreaker":      ofFallbacks,
	"WithProbe":        newPause,
}

// String is the names of the constructors, as a sentence has them.
func (c constructors) String() string {
	var names []string
	for rest := c; rest != 0; rest &= rest - 1 {
		names = append(names, constructorNames[bits.TrailingZeros16(uint16(rest))])
	}
	if last := len(names) - 1; last > 0 {
		names = []string{strings.Join(names[:last], ", "), names[last]}
	}
	return strings.Join(names, " or ")
}

// option is the one kind of Option, and optionOfPolicies of a PolicyOption that is none.
type option struct{ optionOfPolicies }

type optionOfPolicies struct {
	name  string
	apply func(*settings)
}

func (option) forLimiters() {}

func (o optionOfPolicies) set(s *settings) {
	if has := optionsOf[o.name]; has&s.by == 0 {
		s.refuse("%v: %s is not one of its options; leave it out, or give it to %v", s.by, o.name, has)
		return
	}
	o.apply(s)
	s.once(o.name)
}

func limiterOption(name string, apply func(*settings)) Option {
	return option{optionOfPolicies{name, apply}}
}

func policyOption(name string, apply func(*settings)) PolicyOption {
	return optionOfPolicies{name, apply}
}

// WithName gives the limiter a name; without it the name is "default", and of a decorator that of the limiter
// inside. It is part of the keys and of errors. It must not be empty, must hold no colon and no brace, and must
// not be the id of an algorithm, such as "tokenbucket".
//
// The name identifies state: limiters of one algorithm with the same name and prefix share the state of their
// keys. Use the same name in all instances of a service, and for a limiter whose rule has changed. Two rules that
// must hold at the same time need two names. docs/plans.md says what rules of one name allow together.
func WithName(name string) Option {
	return limiterOption("WithName", func(s *settings) {
		if strings.Contains(name, ":") {
			s.refuse("WithName: %q holds a colon, which separates the parts of a key; put it into WithPrefix", name)
		}
		s.checkKeyPart("WithName", "name", name, defaultName)
		s.name = name
	})
}

// WithPrefix puts the limiter's keys under prefix instead of "ratelimit": prefix:name:algorithm{key}, or
// prefix:name:algorithm:key if the key has a hash tag. It separates services, environments or tests that share one
// Redis. It may hold colons, but no brace, and no segment may be the id of an algorithm.
func WithPrefix(prefix string) Option {
	return limiterOption("WithPrefix", func(s *settings) {
		s.checkKeyPart("WithPrefix", "prefix", prefix, defaultPrefix)
		s.prefix = prefix
	})
}

// WithClock decides by the caller's clock instead of the server's, for services whose Redis forbids TIME in
// scripts, and for tests. The clock is read to the microsecond, from any goroutine. It must read a time between
// 1970 and 2112; otherwise the call returns ErrInvalidConfig.
//
// No call moves the state of a key back in time, whatever the clocks of the processes read; [WithMaxSkew] says how
// far they may be apart. Keys still expire by the server's clock. Calls of several limiters with different limits
// are merged only if the option of the first of them is one value, as it is for the limiters of
// [TokenBucket.With].
func WithClock(now func() time.Time) Option {
	clock := &callerClock{now}
	return limiterOption("WithClock", func(s *settings) {
		if now == nil {
			s.refuse("WithClock: the clock is nil; leave the option out for the server's clock")
			return
		}
		s.clock = clock
	})
}

// A callerClock is the clock of one WithClock. Functions cannot be compared, and pointers to it can.
type callerClock struct{ now func() time.Time }

// WithMaxSkew goes with [WithClock]. d is how far the clocks of the processes that share a key may be apart, plus
// the time that a call takes to arrive. It is 0 to 24h, and 1s without this option. Every key lives longer by d.
// In return, processes within d of each other together get at most what the rule allows in t + d, in any interval
// t. Let all limiters of a key have WithClock, or none, except while a change is rolled out.
func WithMaxSkew(d time.Duration) Option {
	return limiterOption("WithMaxSkew", func(s *settings) {
		if d < 0 || d > mostMaxSkew {
			s.refuse("WithMaxSkew: %v is not between 0 and %v", d, mostMaxSkew)
		}
		s.maxSkew, s.skewed = d, true
	})
}

// WithoutMerging sends every call on its own. Use it for a Redis behind a proxy that routes a script by its first
// key, for services that do not want calls to share an execution's error, and for hooks of the client that need a
// caller's context. docs/performance.md says when calls are sent together, and which.
func WithoutMerging() Option {
	return limiterOption("WithoutMerging", func(s *settings) {
		s.unmerged = true
	})
}

// WithAlignment starts fixed windows at multiples of the window since the Unix epoch plus offset, in UTC, rather
// than at the first permit. With a window of a day and an offset of -2h, windows start at midnight of UTC+2.
// offset is a whole number of microseconds. When the clock steps back over the start of a window, that window goes
// on.
//
// The steps of [WithRefillEvery], without which a token bucket refuses this option, fall on such multiples of d instead:
// 100 more at each full hour, of which up to a burst of 500 are kept. When the server's clock steps back over a step, its
// tokens are missing until the step comes again, so that it counts once. docs/plans.md says what such a bucket allows
// together with others on the same keys.
func WithAlignment(offset time.Duration) Option {
	return limiterOption("WithAlignment", func(s *settings) {
		s.aligned, s.offset = true, offset
	})
}

// checkOffset refuses an offset that no script can count.
func (s *settings) checkOffset() error {
	if s.offset%time.Microsecond != 0 {
		return invalidConfig("WithAlignment: %v is not a whole number of microseconds", s.offset)
	}
	return nil
}

// Storage is how a sliding window is kept in Redis.
type Storage int // the place in algorithms.Storages

const (
	// StorageList keeps the running totals of sub-windows in a list.
	StorageList Storage = iota
	// StorageHash keeps the running totals in a hash. It decides exactly as StorageList does. A denial costs Redis a
	// little less, everything else more.
	StorageHash
	// StorageZSet keeps every permit in a sorted set. It is exact, at about 120 bytes
	// a permit.
	StorageZSet
)

// String is the storage's name.
func (s Storage) String() string {
	if all := algorithms.Storages(); s >= 0 && int(s) < len(all) {
		return all[s].Storage
	}
	return "unknown storage"
}

// WithStorage chooses how a sliding window is kept: [StorageList] (the default),
// [StorageHash] or [StorageZSet]. Each storage has keys of its own, so that after a change of the storage all
// keys are unused.
func WithStorage(storage Storage) Option {
	return limiterOption("WithStorage", func(s *settings) {
		if all := algorithms.Storages(); storage < 0 || int(storage) >= len(all) {
			s.refuse("WithStorage: %d is not a storage; the last is Storage%s", int(storage), all[len(all)-1].Storage)
		}
		s.storage = storage
	})
}

// WithSubWindows divides a sliding window into n sub-windows, 1 to 100,000; without it there are 40. Each must be
// a whole number of microseconds. With more, permits become available more evenly, and a key takes more memory:
// List up to 1 kB with 40 and 0.4 kB with 10, Hash 1.6 and 0.9. Under a steady demand of twice a limit of 50 or
// more, 40 allow 97 % of the limit, 10 allow 91 %. ZSet does not accept this option.
func WithSubWindows(n int) Option {
	return limiterOption("WithSubWindows", func(s *settings) {
		if n < 1 || n > maxSubWindows {
			s.refuse("WithSubWindows: %d is not between 1 and %d", n, maxSubWindows)
		}
		s.subWindows = n
	})
}

// WithResolution merges the entries of a sliding log that fall into the same interval of d, so that it has at most
// one for each d of the longest window. d is a whole number of microseconds, at most the shortest window. A merged
// entry counts until the last instant of its interval has left the window: the log never allows more.
func WithResolution(d time.Duration) Option {
	return limiterOption("WithResolution", func(s *settings) {
		if d < time.Microsecond || d%time.Microsecond != 0 {
			s.refuse("WithResolution: %v is not a whole number of microseconds from 1µs up", d)
		}
		s.resolution = d
	})
}

// WithRefillEvery adds tokens in steps, every d, rather than continuously. Each adds what the rate yields in d.
// They count from the first permit that left the bucket less than full, or see [WithAlignment]. d is a whole number of microseconds, from
// 1ms up.
func WithRefillEvery(d time.Duration) Option {
	return limiterOption("WithRefillEvery", func(s *settings) {
		if d < time.Millisecond || d%time.Microsecond != 0 {
			s.refuse("WithRefillEvery: %v is not a whole number of microseconds from 1ms up", d)
		}
		s.refillEvery = d
	})
}

// WithMaxKeys bounds the memory of a [LocalTokenBucket], a [DenyCache] or a [Leased]: n is 1 to 2^26, and 65,536
// without it. A LocalTokenBucket keeps at most n keys, and drops some a little before. A DenyCache has room for the
// denials of n keys at one time, and a Leased for slices of n keys, rounded up to a power of two.
func WithMaxKeys(n int) Option {
	return limiterOption("WithMaxKeys", func(s *settings) {
		if n < 1 || n > mostMaxKeys {
			s.refuse("WithMaxKeys: %d is not between 1 and %d; leave the option out for %d", n, mostMaxKeys, defaultMaxKeys)
		}
		s.maxKeys = n
	})
}

// spare is what every TTL is longer by, in milliseconds: as an even number, because the
// scripts add it to an odd one (see bucket.lua).
func (s *settings) spare() string {
	return strconv.FormatInt((s.maxSkew.Milliseconds()+1)/2*2, 10)
}

// mark is how the state of a bucket says whose clock wrote it: nothing for the server's,
// "@" for a caller's, with spare if it is not that of defaultMaxSkew.
func (s *settings) mark() string {
	switch {
	case s.clock == nil:
		return ""
	case s.maxSkew == defaultMaxSkew:
		return "@"
	}
	return "@" + s.spare()
}

const (
	defaultMaxSkew    = time.Second
	mostMaxSkew       = 24 * time.Hour
	defaultSubWindows = 40
	defaultMaxKeys    = 1 << 16
	mostMaxKeys       = 1 << 26
	maxSubWindows     = 100_000
)

// settings is what the options of one constructor add up to.
type settings struct {
	by constructors // one

	name      string // "" of a policy: not given
	observers []Observer
	maxKeys   int // 0: not given

	// of limiters
	prefix      string
	clock       *callerClock // nil: the server's
	maxSkew     time.Duration
	skewed      bool // maxSkew is given
	unmerged    bool
	aligned     bool
	offset      time.Duration
	storage     Storage
	subWindows  int // 0: not given
	resolution  time.Duration
	refillEvery time.Duration
	headroom    int
	exactly     bool          // WithExactReturns
	ticketLease time.Duration // 0: none
	probe       time.Duration
	empty       bool // WithEmptyStart, WithLastAnswers
	follow      bool // WithLastAnswers

	// of policies
	budget    time.Duration // 0: none
	breaker   *Breaker      // nil: none
	maxDenial time.Duration
	maxSlice  int // 0: not given

	given []string
	err   error
}

// fail keeps the first error.
func (s *settings) fail(err error) { s.err = cmp.Or(s.err, err) }

func (s *settings) refuse(format string, args ...any) { s.fail(invalidConfig(format, args...)) }

// checkClock refuses a skew of the server's clock.
func (s *settings) checkClock() error {
	if s.clock == nil && s.skewed {
		return invalidConfig("WithMaxSkew: the server's clock decides, and has no skew; use it with WithClock")
	}
	return nil
}

// once refuses an option that is given twice: one of them would be ignored.
func (s *settings) once(name string) {
	if slices.Contains(s.given, name) {
		s.refuse("%s is given twice", name)
	}
	s.given = append(s.given, name)
}

// collect applies the options of a constructor in order.
func collect[O PolicyOption](by constructors, opts []O) (settings, error) {
	s := settings{by: by, prefix: defaultPrefix, maxSkew: defaultMaxSkew, maxDenial: math.MaxInt64}
	if by&ofLimiters != 0 {
		s.name = defaultName
	}
	for i, o := range opts {
		if any(o) == nil {
			s.refuse("%v: option %d is nil", by, i+1)
			break
		}
		o.set(&s)
	}
	return s, s.err
}

// WithHeadroom leaves the last x permits of each key to the other limiters of the same algorithm, name and prefix:
// this limiter allows a call only if x permits are left after it. Give callers of low priority a limiter with this
// option, and more important callers one with a smaller x or without it. x is 0 or more, and less than the limit
// (of a [SlidingLog], of every rule).
//
// Limit in the Result is the whole limit, Remaining what is left for this limiter, and RetryAfter when it allows
// the same call. A call for more than Limit − x permits returns ErrExceedsLimit.
func WithHeadroom(x int) Option {
	return limiterOption("WithHeadroom", func(s *settings) {
		if x < 0 {
			s.refuse("WithHeadroom: %d is below 0; leave the option out to use the whole limit", x)
		}
		s.headroom = x
	})
}

// checkHeadroom refuses a headroom that leaves this limiter nothing of a limit, which the
// error calls what.
func (s *settings) checkHeadroom(what string, limit int) error {
	if s.headroom >= limit {
		return invalidConfig("WithHeadroom: %d leaves this limiter nothing of the %s %d; choose at most %d",
			s.headroom, what, limit, limit-1)
	}
	return nil
}
