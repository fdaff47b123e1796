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

// A PolicyOption configures what goes around limiters: [NewFallback], [NewHoldFallback]
// and [NewDenyCache].
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
	newInFlight
	newLocalTokenBucket
	newLocalInFlight
	newFallback
	newHoldFallback
	newDenyCache

	ofWindows    = newFixedWindow | newCalendarWindow | newSlidingWindow | newSlidingLog
	onTheirRedis = ofWindows | newTokenBucket | newLeakyBucket | newInFlight
	ofLimiters   = onTheirRedis | newLocalTokenBucket | newLocalInFlight
	ofFallbacks  = newFallback | newHoldFallback
	everywhere   = ofLimiters | ofFallbacks | newDenyCache
)

// constructorNames are in the order of the constants.
var constructorNames = [...]string{
	"NewFixedWindow", "NewCalendarWindow", "NewSlidingWindow", "NewSlidingLog", "NewTokenBucket", "NewLeakyBucket",
	"NewInFlight", "NewLocalTokenBucket", "NewLocalInFlight", "NewFallback", "NewHoldFallback", "NewDenyCache",
}

// optionsOf says which constructors have an option.
var optionsOf = map[string]constructors{
	"WithName":         everywhere,
	"WithObserver":     everywhere,
	"WithPrefix":       onTheirRedis,
	"WithClock":        onTheirRedis | newLocalTokenBucket,
	"WithMaxSkew":      onTheirRedis,
	"WithoutMerging":   onTheirRedis,
	"WithHeadroom":     onTheirRedis &^ newInFlight,
	"WithAlignment":    newFixedWindow,
	"WithStorage":      newSlidingWindow,
	"WithSubWindows":   newSlidingWindow,
	"WithResolution":   newSlidingLog,
	"WithRefillEvery":  newTokenBucket,
	"WithExactReturns": newTokenBucket | newLeakyBucket,
	"WithEmptyStart":   newLocalTokenBucket,
	"WithLastAnswers":  newLocalTokenBucket,
	"WithMaxKeys":      newLocalTokenBucket | newDenyCache,
	"WithMaxDenial":    newDenyCache,
	"WithBudget":       ofFallbacks,
	"WithBreaker":      ofFallbacks,
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

// WithName gives the limiter a name; without it the name is "default". The name is
// part of the limiter's keys and of its errors. It must not be empty, must hold no
// colon and no brace, and must not be the id of an algorithm, such as "tokenbucket".
//
// The name identifies state. Limiters of one algorithm with the same name and prefix share
// the state of their keys. Use the same name in all instances of a service, and for a
// limiter whose rule has changed. Two rules that must hold at the same time, such as 5 a
// second and 100 an hour, need two names; with one name, each reads the other's state as
// its own, from an older rule. That is right while a changed rule is rolled out: the old
// and the new rule together allow at most the largest burst + the fastest rate × t in any
// interval t. With sliding windows and logs, a call is allowed only if its own rule holds
// over all permits that any of the rules still needs. A fixed window has one counter:
// there the rules together allow at most the largest limit in each shortest window, and a
// longer window is forgotten when a shorter one begins. Windows with WithAlignment also
// end at each other's boundaries.
//
// A [DenyCache], a [Fallback], a [Breaker] and a [LocalTokenBucket] keep nothing in Redis:
// their names are only for [WithObserver]. Without the option, a DenyCache and a Fallback have
// the name of the limiter inside them.
func WithName(name string) Option {
	return limiterOption("WithName", func(s *settings) {
		if strings.Contains(name, ":") {
			s.refuse("WithName: %q holds a colon, which separates the parts of a key; put it into WithPrefix", name)
		}
		s.checkKeyPart("WithName", "name", name, defaultName)
		s.name = name
	})
}

// WithPrefix puts the limiter's keys under prefix instead of "ratelimit". The name of a
// key in Redis is prefix:name:algorithm{key}, or prefix:name:algorithm:key if the key has a
// hash tag. Use a prefix to separate services, environments or tests that share one Redis.
// It may hold colons, but no brace, and none of its segments may be the id of an algorithm,
// such as "tokenbucket".
func WithPrefix(prefix string) Option {
	return limiterOption("WithPrefix", func(s *settings) {
		s.checkKeyPart("WithPrefix", "prefix", prefix, defaultPrefix)
		s.prefix = prefix
	})
}

// WithClock decides by the caller's clock instead of the server's, for services
// whose Redis forbids TIME in scripts, and for tests. The clock is read to the
// microsecond, once for each execution and from any goroutine. It must read a time
// between 1970 and 2112; otherwise the call returns ErrInvalidConfig.
//
// The clocks of the processes that share a key may differ, and calls may arrive in
// another order than that in which they read their clocks. No call moves the state of a
// key back in time: a call whose clock is behind the state is decided at the state's
// instant. So a process whose clock is ahead refills the key for all of them, and a
// process whose clock is behind waits for the rule and for its lag. [WithMaxSkew] says
// how far the clocks may be apart.
//
// Keys still expire by the server's clock, which counts the time for which they are
// needed even while the caller's clock stands still, as in a test on a real server.
//
// Calls of several limiters with different limits are merged only if the option of the first of them is
// one value, as it is for the limiters of [TokenBucket.With].
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

// WithMaxSkew goes with [WithClock]. d is how far the clocks of the processes that share a key may
// be apart, plus the time that a call takes to arrive. It is 0 to 24h, and 1s without this option.
//
// Every key lives longer by d. In return, processes within d of each other together get at most
// what the rule allows in t + d, in any interval t. If the clocks are further apart, what they differ by
// beyond d can be used again each time that the key has expired. A Reset deletes the state's
// instant too: after it, the whole difference can be used again.
//
// Let all limiters of a key have WithClock, or none, except while a change is rolled out. A limiter
// without it makes no allowance for skew: its writes keep the longer lifetime of a bucket and of a
// window that a caller's clock began, and of nothing else. So a process whose clock is behind the
// server's can use that difference again each time that the key expires, and each time that this
// limiter gives back the last permits of a window or a log. Its decisions cost Redis a little more.
func WithMaxSkew(d time.Duration) Option {
	return limiterOption("WithMaxSkew", func(s *settings) {
		if d < 0 || d > mostMaxSkew {
			s.refuse("WithMaxSkew: %v is not between 0 and %v", d, mostMaxSkew)
		}
		s.maxSkew, s.skewed = d, true
	})
}

// WithoutMerging sends every call on its own. Without this option, a call is sent on its
// own while fewer than eight calls of limiters of this algorithm and client are in flight to
// the same server. Calls that arrive while more are in flight wait, and are sent together:
// when others return, when 64 calls wait, or after half a millisecond. docs/performance.md
// says which calls are merged with which.
//
// Use it for a Redis behind a proxy that routes a script by its first key, and for services
// that do not want calls to share an execution's error. Use it also for hooks of the client
// that need a caller's context: an execution for several calls has a context of its own,
// without the callers' values.
func WithoutMerging() Option {
	return limiterOption("WithoutMerging", func(s *settings) {
		s.unmerged = true
	})
}

// WithAlignment starts fixed windows at multiples of the window since the Unix
// epoch plus offset, in UTC, rather than at the first permit. With a window of a day
// and an offset of -2h, windows start at midnight of UTC+2. offset is a whole number of
// microseconds.
//
// After the clock steps back over the start of a window, the permits taken in that
// window still count: nothing is allowed twice, and a denial may last longer than the
// window by as much as the clock stepped back.
func WithAlignment(offset time.Duration) Option {
	return limiterOption("WithAlignment", func(s *settings) {
		s.aligned, s.offset = true, offset
	})
}

// Storage is how a sliding window is kept in Redis.
type Storage int // the place in algorithms.Storages

const (
	// StorageHash keeps the running totals of sub-windows in a hash.
	StorageHash Storage = iota
	// StorageList keeps the running totals in a list. It decides exactly as StorageHash does.
	StorageList
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

// WithStorage chooses how a sliding window is kept: [StorageHash] (the default),
// [StorageList] or [StorageZSet]. Each storage has keys of its own, so that after a change of the storage all
// keys are unused.
func WithStorage(storage Storage) Option {
	return limiterOption("WithStorage", func(s *settings) {
		if all := algorithms.Storages(); storage < 0 || int(storage) >= len(all) {
			s.refuse("WithStorage: %d is not a storage; the last is Storage%s", int(storage), all[len(all)-1].Storage)
		}
		s.storage = storage
	})
}

// WithSubWindows divides a sliding window into n sub-windows; without it there are 40. n is 1
// to 100,000, and each sub-window a whole number of microseconds. With more
// sub-windows, permits become available more evenly, and a key takes more memory, but a
// decision takes no more time. Under a steady demand of twice a limit of 50 or more, 40
// sub-windows allow 97 % of the limit, and 10 allow 91 %. A key with all sub-windows in use
// takes up to about 1.6 kB with 40, and 0.9 kB with 10 (List: 1 kB and 0.4 kB). ZSet is exact
// and does not accept this option.
func WithSubWindows(n int) Option {
	return limiterOption("WithSubWindows", func(s *settings) {
		if n < 1 || n > maxSubWindows {
			s.refuse("WithSubWindows: %d is not between 1 and %d", n, maxSubWindows)
		}
		s.subWindows = n
	})
}

// WithResolution merges the entries of a sliding log that fall into the same interval
// of d, so that its memory is at most one entry for each d of the longest window. d is a whole
// number of microseconds, at most the shortest window. A merged entry counts until the
// last instant of its interval has left the window, so that the log never allows more, and
// may allow less for at most d.
func WithResolution(d time.Duration) Option {
	return limiterOption("WithResolution", func(s *settings) {
		if d < time.Microsecond || d%time.Microsecond != 0 {
			s.refuse("WithResolution: %v is not a whole number of microseconds from 1µs up", d)
		}
		s.resolution = d
	})
}

// WithRefillEvery adds tokens in steps, every d, rather than continuously. Each step
// adds what the rate yields in d. The steps count from the first permit that left the
// bucket less than full. d is a whole number of microseconds, from 1ms up.
func WithRefillEvery(d time.Duration) Option {
	return limiterOption("WithRefillEvery", func(s *settings) {
		if d < time.Millisecond || d%time.Microsecond != 0 {
			s.refuse("WithRefillEvery: %v is not a whole number of microseconds from 1ms up", d)
		}
		s.refillEvery = d
	})
}

// WithMaxKeys bounds the memory of a [LocalTokenBucket] or a [DenyCache]; without it, they have
// room for 65,536 keys. n is 1 to 2^26.
//
// A LocalTokenBucket keeps at most n keys, divided by their hash into up to 64 shards of equal
// size. Some keys are dropped a little before n keys are in use, because one shard is full
// before the others.
//
// A DenyCache has room for the denials of n keys, rounded up to a power of two, which is at
// least 4. Choose n for the number of keys that are denied at one time, not for all keys.
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
	exactly     bool // WithExactReturns
	empty       bool // WithEmptyStart, WithLastAnswers
	follow      bool // WithLastAnswers

	// of policies
	budget    time.Duration // 0: none
	breaker   *Breaker      // nil: none
	maxDenial time.Duration

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

// WithHeadroom leaves the last x permits of each key to the other limiters of the same
// algorithm, name and prefix: this limiter allows a call only if x permits are left after
// it. Give callers of low priority a limiter with this option, and more important callers a
// limiter with a smaller x or without the option:
//
//	rate, name := ratelimit.PerSecond(100), ratelimit.WithName("api")
//	online := ratelimit.Must(ratelimit.NewTokenBucket(client, rate, 200, name))
//	batch := ratelimit.Must(ratelimit.NewTokenBucket(
//		client, rate, 200, name, ratelimit.WithHeadroom(50)))
//
// All these limiters take from one limit, and permits that one of them takes count for all.
// Limit in the Result is that limit, Remaining what is left for this limiter, at most Limit −
// x, and RetryAfter when it allows the same call. A call for more than Limit − x permits
// returns ErrExceedsLimit. x is 0 or more, and less than the limit: for a [SlidingLog], less
// than the limit of every rule, because each rule's last x permits are left.
//
// The option makes no call more expensive, of this limiter or of the others. For an [InFlight], use
// the same name and a limit that is lower by x instead.
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
