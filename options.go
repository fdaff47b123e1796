package ratelimit

import (
	"strconv"
	"strings"
	"time"
)

// An Option applies to every algorithm, and to [InFlight], which refuses only
// [WithHeadroom]. The options of a single algorithm have types of their own, so that they
// do not compile with another.
type Option interface {
	FixedWindowOption
	SlidingWindowOption
	SlidingLogOption
	BucketOption
	forEvery()
}

// A CommonOption is [WithName] or [WithObserver], an option of limiters, of the decorators that
// report calls, and of a [Breaker].
type CommonOption interface {
	Option
	FallbackOption
	DenyCacheOption
	setCommon(*settings)
}

// A FixedWindowOption is an [Option] or [WithAlignment].
type FixedWindowOption interface {
	set(*settings)
	forFixedWindow()
}

// A SlidingWindowOption is an [Option], [WithStorage] or [WithSubWindows].
type SlidingWindowOption interface {
	set(*settings)
	forSlidingWindow()
}

// A SlidingLogOption is an [Option] or [WithResolution].
type SlidingLogOption interface {
	set(*settings)
	forSlidingLog()
}

// A BucketOption is an option of both buckets: an [Option] or [WithExactReturns].
type BucketOption interface {
	TokenBucketOption
	forLeakyBucket()
}

// A TokenBucketOption is a [BucketOption] or [WithRefillEvery].
type TokenBucketOption interface {
	set(*settings)
	forTokenBucket()
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
func WithName(name string) CommonOption {
	return everywhere{common{func(s *settings) {
		if strings.Contains(name, ":") {
			s.refuse("WithName: %q holds a colon, which separates the parts of a key; put it into WithPrefix", name)
		}
		s.checkKeyPart("WithName", "name", name, defaultName)
		s.once("WithName")
		s.name = name
	}}}
}

// WithPrefix puts the limiter's keys under prefix instead of "ratelimit". The name of a
// key in Redis is prefix:name:algorithm{key}, or prefix:name:algorithm:key if the key has a
// hash tag. Use a prefix to separate services, environments or tests that share one Redis.
// It may hold colons, but no brace, and none of its segments may be the id of an algorithm,
// such as "tokenbucket".
func WithPrefix(prefix string) Option {
	return common{func(s *settings) {
		s.checkKeyPart("WithPrefix", "prefix", prefix, defaultPrefix)
		s.once("WithPrefix")
		s.prefix = prefix
	}}
}

// WithOptions combines several options into one, so that a []Option can be passed to any
// constructor:
//
//	ratelimit.NewTokenBucket(client, rate, burst, ratelimit.WithOptions(opts...))
func WithOptions(opts ...Option) Option {
	return common{func(s *settings) { apply(s, opts) }}
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
// one value, as it is for the limiters of a [TokenBuckets].
func WithClock(now func() time.Time) Option {
	clock := &callerClock{now}
	return common{func(s *settings) {
		s.once("WithClock")
		if now == nil {
			s.refuse("WithClock: the clock is nil; leave the option out for the server's clock")
			return
		}
		s.clock = clock
	}}
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
	return common{func(s *settings) {
		if d < 0 || d > mostMaxSkew {
			s.refuse("WithMaxSkew: %v is not between 0 and %v", d, mostMaxSkew)
		}
		s.once("WithMaxSkew")
		s.maxSkew, s.skewed = d, true
	}}
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
	return common{func(s *settings) {
		s.once("WithoutMerging")
		s.unmerged = true
	}}
}

// WithAlignment starts fixed windows at multiples of the window since the Unix
// epoch plus offset, in UTC, rather than at the first permit. With a window of a day
// and an offset of -2h, windows start at midnight of UTC+2. offset is a whole number of
// microseconds.
//
// After the clock steps back over the start of a window, the permits taken in that
// window still count: nothing is allowed twice, and a denial may last longer than the
// window by as much as the clock stepped back.
func WithAlignment(offset time.Duration) FixedWindowOption {
	return fixedWindowOnly{func(s *settings) {
		s.once("WithAlignment")
		s.aligned, s.offset = true, offset
	}}
}

// Storage is how a sliding window is kept in Redis.
type Storage int

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
	switch s {
	case StorageHash:
		return "Hash"
	case StorageList:
		return "List"
	case StorageZSet:
		return "ZSet"
	}
	return "unknown storage"
}

// WithStorage chooses how a sliding window is kept: [StorageHash] (the default),
// [StorageList] or [StorageZSet]. Each storage has keys of its own, so that after a change of the storage all
// keys are unused.
func WithStorage(storage Storage) SlidingWindowOption {
	return slidingWindowOnly{func(s *settings) {
		if storage < StorageHash || storage > StorageZSet {
			s.refuse("WithStorage: %d is not one of StorageHash, StorageList and StorageZSet", int(storage))
		}
		s.once("WithStorage")
		s.storage = storage
	}}
}

// WithSubWindows divides a sliding window into n sub-windows; without it there are 40. n is 1
// to 100,000, and each sub-window a whole number of microseconds. With more
// sub-windows, permits become available more evenly, and a key takes more memory, but a
// decision takes no more time. Under a steady demand of twice a limit of 50 or more, 40
// sub-windows allow 97 % of the limit, and 10 allow 91 %. A key with all sub-windows in use
// takes up to about 1.6 kB with 40, and 0.9 kB with 10 (List: 1 kB and 0.4 kB). ZSet is exact
// and does not accept this option.
func WithSubWindows(n int) SlidingWindowOption {
	return slidingWindowOnly{func(s *settings) {
		if n < 1 || n > maxSubWindows {
			s.refuse("WithSubWindows: %d is not between 1 and %d", n, maxSubWindows)
		}
		s.once("WithSubWindows")
		s.subWindows = n
	}}
}

// WithResolution merges the entries of a sliding log that fall into the same interval
// of d, so that its memory is at most one entry for each d of the longest window. d is a whole
// number of microseconds, at most the shortest window. A merged entry counts until the
// last instant of its interval has left the window, so that the log never allows more, and
// may allow less for at most d.
func WithResolution(d time.Duration) SlidingLogOption {
	return slidingLogOnly{func(s *settings) {
		if d < time.Microsecond || d%time.Microsecond != 0 {
			s.refuse("WithResolution: %v is not a whole number of microseconds from 1µs up", d)
		}
		s.once("WithResolution")
		s.resolution = d
	}}
}

// WithRefillEvery adds tokens in steps, every d, rather than continuously. Each step
// adds what the rate yields in d. The steps count from the first permit that left the
// bucket less than full. d is a whole number of microseconds, from 1ms up.
func WithRefillEvery(d time.Duration) TokenBucketOption {
	return tokenBucketOnly{func(s *settings) {
		if d < time.Millisecond || d%time.Microsecond != 0 {
			s.refuse("WithRefillEvery: %v is not a whole number of microseconds from 1ms up", d)
		}
		s.once("WithRefillEvery")
		s.refillEvery = d
	}}
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
func WithMaxKeys(n int) interface {
	LocalOption
	DenyCacheOption
} {
	return maxKeys{func(s *settings) {
		if n < 1 || n > mostMaxKeys {
			s.refuse("WithMaxKeys: %d is not between 1 and %d; leave the option out for %d", n, mostMaxKeys, defaultMaxKeys)
		}
		s.once("WithMaxKeys")
		s.maxKeys = n
	}}
}

type maxKeys struct{ setter }

func (m maxKeys) setDenyCache(s *denyCacheSettings) { m.set(&s.settings) }

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
	prefix      string
	name        string
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
	maxKeys     int  // 0: not given
	observers   []Observer

	given []string
	err   error
}

// refuse keeps the first error.
func (s *settings) refuse(format string, args ...any) {
	if s.err == nil {
		s.err = invalidConfig(format, args...)
	}
}

// checkClock refuses a skew of the server's clock.
func (s *settings) checkClock() error {
	if s.clock == nil && s.skewed {
		return invalidConfig("WithMaxSkew: the server's clock decides, and has no skew; use it with WithClock")
	}
	return nil
}

// once refuses an option that is given twice: one of them would be ignored.
func (s *settings) once(name string) {
	for _, g := range s.given {
		if g == name {
			s.refuse("%s is given twice", name)
		}
	}
	s.given = append(s.given, name)
}

// collect applies the options in order.
func collect[O interface {
	comparable
	set(*settings)
}](opts []O) (settings, error) {
	s := settings{prefix: defaultPrefix, name: defaultName, maxSkew: defaultMaxSkew}
	apply(&s, opts)
	return s, s.err
}

func apply[O interface {
	comparable
	set(*settings)
}](s *settings, opts []O) {
	var none O
	for i, o := range opts {
		if o == none {
			s.refuse("option %d is nil", i+1)
			return
		}
		o.set(s)
	}
}

type setter func(*settings)

func (f setter) set(s *settings) { f(s) }

type (
	common            struct{ setter }
	fixedWindowOnly   struct{ setter }
	slidingWindowOnly struct{ setter }
	slidingLogOnly    struct{ setter }
	tokenBucketOnly   struct{ setter }
	bucketOnly        struct{ setter }
)

func (common) forEvery()                    {}
func (common) forFixedWindow()              {}
func (common) forSlidingWindow()            {}
func (common) forSlidingLog()               {}
func (common) forTokenBucket()              {}
func (common) forLeakyBucket()              {}
func (fixedWindowOnly) forFixedWindow()     {}
func (slidingWindowOnly) forSlidingWindow() {}
func (slidingLogOnly) forSlidingLog()       {}
func (tokenBucketOnly) forTokenBucket()     {}
func (bucketOnly) forTokenBucket()          {}
func (bucketOnly) forLeakyBucket()          {}
