package ratelimit

import (
	"cmp"
	"container/heap"
	"context"
	"hash/maphash"
	"math"
	"math/bits"
	"strings"
	"sync"
	"time"

	"github.com/tryacquire/ratelimit/internal/gcra"
	"github.com/tryacquire/ratelimit/internal/recent"
)

// A LocalTokenBucket is a token bucket for each key in the memory of this process. It
// is made to be the secondary of a [Fallback]: it asks no server, so it cannot fail. It
// decides exactly as a [TokenBucket] of the same rate and burst, but shares nothing
// with other processes.
//
// To keep a limit over all instances of a service, divide rate and burst by the number
// of instances, rounded down, but to no less than 1: a limit of 100 per second with a
// burst of 200 over 8 instances becomes PerSecond(12) and 25. Because of the rounding,
// the instances together allow at most the limit while traffic is spread evenly, and
// less otherwise: a key whose calls all reach one instance gets an eighth. If the limit
// is smaller than the number of instances, each instance gets 1, and together they
// allow more. Then state the rate per minute, because PerMinute divides further than
// PerSecond; the burst is at least 1. Because buckets start full, a key can have the
// burst once more when an outage begins.
//
// It keeps at most 65,536 keys, or as many as [WithMaxKeys] says, at about 150
// bytes each plus the key. When there is no room for a new key, the key whose bucket is
// the nearest to full is dropped, and its next bucket starts full. Keys with a full bucket
// are dropped first, which makes no difference for them, and then those with the fewest
// permits missing. A key gets more than its rate only if there is not enough room for all
// keys whose buckets are not full. New keys evict other new keys first, so a flood of new
// keys does not free the keys that are denied.
//
// With [WithEmptyStart] or [WithLastAnswers] an outage does not begin with a second burst for every key,
// as long as there is room for all keys whose buckets are not full. When one of them was dropped, as in a
// flood of new keys, keys that are not there begin full for as long as a bucket takes to refill: otherwise
// the flood would deny everybody else.
//
// Its clock is monotonic, and does not follow changes of the wall clock. With [WithClock],
// a clock that steps back stands still for the keys in use until it has caught up.
//
// A call takes less than a microsecond and allocates only for a new key. It is
// safe for concurrent use, starts no goroutine and needs no closing.
type LocalTokenBucket struct {
	*localTable
	bucket *gcra.Bucket
	name   string
	watch  *watch            // nil: nobody observes
	empty  bool              // a new key's bucket is empty
	follow bool              // the answers of a Fallback's primary, see WithLastAnswers
	plain  *LocalTokenBucket // the same without watch; nil: nobody observes
}

func (l *LocalTokenBucket) kind() kind {
	return kind{self: l, role: inMemory, bucket: true, most: l.ceiling()}
}

// It does not use golang.org/x/time/rate, which counts in float64: RetryAfter would
// sometimes be off by a microsecond, and Remaining by a permit. Each key would have a
// mutex and a clock reading of its own, and nothing would show which keys to drop.

// A localTable is the keys, which limiters of several rules can share, see [LocalTokenBucket.With].
type localTable struct {
	local
	made   int64        // its number among those of this process that have locks
	now    func() int64 // microseconds
	seed   maphash.Seed
	shards []localShard // their number is a power of two
	limits *recent.Cache[bucketLimit, *LocalTokenBucket]
}

// localShard is one part of the keys. Calls for keys of other shards do not wait for
// it. The bucket of each key is in both a map and a heap.
type localShard struct {
	mu    sync.Mutex // guards all of it, and orders the readings of the clock
	keys  map[string]*localBucket
	queue localQueue
	most  int

	lacking int64    // until then keys may be missing that were dropped although their bucket was not full
	dropped int64    // the latest instant at which a key was dropped; a new key's state begins no earlier
	_       [64]byte // keeps the next shard's mutex off this one's cache line
}

// localBucket is what was missing from a key's bucket at an instant. So the bucket refills
// without a write; only a call that takes permits writes.
type localBucket struct {
	key     string
	rule    *gcra.Bucket // of the limiter that wrote it, by which the levels count
	at      int64
	missing gcra.Level
	own     gcra.Level // the part of missing that was taken here, and is in no answer of a primary
	full    int64      // the instant at which nothing is missing any more
	order   int64      // those with the least are dropped first: full, or before that for a key that has begun empty and taken nothing
	due     int64      // the instant at which the last promised permit is due; see Reserve

	cancelled []localReceipt // of reservations behind which others have reserved
	place     int            // its index in the queue
}

// WithEmptyStart begins with an empty bucket for each new key, instead of a full one. As the
// secondary of a [Fallback], it allows at most rate × T of a key in an outage of length T, if the
// key is new to it, where a bucket that begins full allows burst + rate × T. Nothing is paid for
// while the primary answers. The price is false denials: the first calls of each key are denied,
// until its rate has brought a permit. See [LocalTokenBucket] for what a flood of new keys does.
//
// Beside a primary of the same rate and burst in all, an interval t with one outage in it then has
// at most burst + rate × t + min(burst, rate × T) permits, and what was in flight when the outage
// began. Without this option it has another burst. Each further outage in the interval adds as
// much, and up to a burst, because a key that an earlier outage has left begins with what it has
// refilled since.
func WithEmptyStart() Option {
	return limiterOption("WithEmptyStart", func(s *settings) { s.empty = true })
}

// WithLastAnswers is for the secondary of a [Fallback]: while the primary answers, it notes how
// much of the limit each answer has left, and begins an outage with the same share of its own
// burst. What comes back to the primary by [Ticket.Settle] and [Reservation.Cancel] counts too. The
// bucket may be inside a [Choice], or the secondary of the secondary. A key without such an answer
// begins empty, see [WithEmptyStart]. It denies fewer calls
// wrongly than WithEmptyStart does, and allows more: with three instances of burst 10 and a limit
// of 30 in all, one may just have used up all 30, while the last answers of the other two say that
// everything is left; they then allow 20 more. With n instances that is at most burst × (n − 1)/n
// more than with WithEmptyStart. What the secondary has allowed itself stays counted, so flapping
// brings no further burst.
//
// Each answer of the primary costs about 150 ns, and the memory of a key.
func WithLastAnswers() Option {
	return limiterOption("WithLastAnswers", func(s *settings) { s.empty, s.follow = true, true })
}

const (
	mostLocalShards = 64
	leastShardKeys  = 256 // with fewer, one shard is full long before the others
)

// NewLocalTokenBucket returns a limiter that holds up to burst permits for each
// key and adds rate.Count of them every rate.Period, evenly.
//
// The error wraps ErrInvalidConfig and names the value: the bounds are those of
// [NewTokenBucket], and an option that does not apply or is given twice is refused.
func NewLocalTokenBucket(rate Rate, burst int, opts ...Option) (*LocalTokenBucket, error) {
	s, err := collect(newLocalTokenBucket, opts)
	if err != nil {
		return nil, err
	}
	return newLocal(&s).limits.Get(bucketLimit{rate, burst})
}

// newLocal is a limiter with these options, whose rule is missing.
func newLocal(s *settings) *LocalTokenBucket {
	keys := cmp.Or(s.maxKeys, defaultMaxKeys)
	shards := 1
	for shards < mostLocalShards && keys/(2*shards) >= leastShardKeys {
		shards *= 2
	}
	t := &localTable{made: limitersMade.Add(1), seed: maphash.MakeSeed(), shards: make([]localShard, shards)}
	for i := range t.shards {
		t.shards[i].keys = make(map[string]*localBucket)
		t.shards[i].most = keys / shards
		t.shards[i].dropped, t.shards[i].lacking = math.MinInt64, math.MinInt64 // none: a clock may begin before 1970
	}
	if s.clock != nil {
		// Instants within 36,000 years of 1970 can be added and subtracted.
		clock := s.clock
		t.now = func() int64 { return min(max(clock.now().UnixMicro(), -1<<60), 1<<60) }
	} else {
		start := time.Now() // it has a monotonic reading, which a change of the wall clock does not affect
		t.now = func() int64 { return time.Since(start).Microseconds() }
	}
	l := &LocalTokenBucket{localTable: t, name: s.name, watch: s.watch(s.name), empty: s.empty, follow: s.follow}
	t.limits = recent.New(maxLimits, l.of)
	return l
}

// With returns the bucket of another rate and burst, with l's name, options and keys, for limits that come with each
// call: after its limit has changed, a key goes on from what it has used, as with [TokenBucket.With]. The error for a
// limit that cannot work is that of [NewLocalTokenBucket].
func (l *LocalTokenBucket) With(rate Rate, burst int) (*LocalTokenBucket, error) {
	if l.localTable == nil {
		return nil, errUnmade
	}
	return l.limits.Get(bucketLimit{rate, burst})
}

// of is a limiter of another rule with the same keys and options.
func (l *LocalTokenBucket) of(limit bucketLimit) (*LocalTokenBucket, error) {
	b, err := newBucket(limit.rate, limit.burst, "burst", new(settings))
	if err != nil {
		return nil, err
	}
	made := *l
	made.bucket = b
	if made.watch != nil {
		plain := made
		plain.watch = nil
		made.plain = &plain
	}
	return &made, nil
}

// TryAcquire is TryAcquireN(ctx, key, 1).
func (l *LocalTokenBucket) TryAcquire(ctx context.Context, key string) (Result, error) {
	return l.decide(ctx, key, 1, true)
}

// decideObserved is decide for an observed limiter.
//
//go:noinline
func (l *LocalTokenBucket) decideObserved(ctx context.Context, key string, n int, take bool) (Result, error) {
	began := l.watch.begin()
	r, err := l.plain.decide(ctx, key, n, take)
	o := Observation{Call: callPeek, Key: key, N: n, Result: r, Err: err}
	if take {
		o.Call = callAcquire
	}
	l.report(ctx, began, o)
	return r, err
}

// report reports a call. Nothing was asked if there is an error.
func (l *LocalTokenBucket) report(ctx context.Context, began time.Time, o Observation) {
	if o.Err == nil {
		o.Source = SourceLocal
	}
	l.watch.end(ctx, began, o)
}

// TryAcquireN takes n permits from key, all or none. It returns ErrInvalidKey for a
// key that is empty or too long, ErrInvalidPermits for n below 1, ErrExceedsLimit for n
// above the burst, and the context's error if the context has ended. There is one
// other error: ErrInvalidConfig for a limiter that NewLocalTokenBucket did not make.
func (l *LocalTokenBucket) TryAcquireN(ctx context.Context, key string, n int) (Result, error) {
	return l.decide(ctx, key, n, true)
}

// Peek returns what key has left now, and neither takes a permit nor stores the key. Its
// errors are those of TryAcquire.
func (l *LocalTokenBucket) Peek(ctx context.Context, key string) (Result, error) {
	return l.peekN(ctx, key, 1)
}

func (l *LocalTokenBucket) peekN(ctx context.Context, key string, n int) (Result, error) {
	return l.decide(ctx, key, n, false)
}

// Reset drops key, whose bucket is then full. It returns ErrInvalidKey for a key that is
// empty or too long, and the context's error if the context has ended.
func (l *LocalTokenBucket) Reset(ctx context.Context, key string) error {
	if l == nil || l.watch == nil {
		return l.reset(ctx, key)
	}
	began := l.watch.begin()
	err := l.reset(ctx, key)
	l.report(ctx, began, Observation{Call: callReset, Key: key, Err: err})
	return err
}

func (l *LocalTokenBucket) reset(ctx context.Context, key string) error {
	if l == nil || l.bucket == nil {
		return errUnmade
	}
	if err := checkLocal(ctx, key, 1); err != nil {
		return err
	}
	s := l.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch b := s.keys[key]; {
	case l.empty: // a key that is not there would begin empty
		var state localState
		l.load(s, key, &state)
		l.write(&state, gcra.Level{})
	case b != nil:
		s.drop(b)
	}
	return nil
}

func (t *localTable) shard(key string) *localShard {
	return &t.shards[t.place(key)]
}

// place is where key's shard is.
func (t *localTable) place(key string) int {
	return int(maphash.String(t.seed, key) & uint64(len(t.shards)-1))
}

// Name returns the limiter's name, see [WithName].
func (l *LocalTokenBucket) Name() string {
	if l == nil {
		return ""
	}
	return l.name
}

func (l *LocalTokenBucket) ceiling() int {
	if l.bucket == nil {
		return 0
	}
	return int(l.bucket.Size)
}

func (l *LocalTokenBucket) decide(ctx context.Context, key string, n int, take bool) (Result, error) {
	if l == nil || l.bucket == nil {
		return Result{}, errUnmade
	}
	if l.watch != nil {
		return l.decideObserved(ctx, key, n, take)
	}
	if err := checkKey(key); err != nil {
		return Result{}, err
	}
	if n > int(l.bucket.Size) {
		return Result{}, errExceedsLocal(n, l.bucket.Size)
	}
	if err := checkLocal(ctx, key, n); err != nil {
		return Result{}, err
	}
	s := l.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	var state localState
	l.load(s, key, &state)
	return l.look(&state, n, take), nil
}

// A localState is what a key is now. The lock of its shard is held.
type localState struct {
	shard   *localShard
	b       *localBucket // nil for a new key
	key     string
	now     int64
	present int64 // now, or the latest instant of the state: as in Redis, no call moves it back in time
	missing gcra.Level
	own     gcra.Level // see localBucket
	theirs  bool       // another rule wrote the state
}

func (l *LocalTokenBucket) load(s *localShard, key string, state *localState) {
	state.shard, state.key = s, key
	state.now = l.now()
	state.b = s.keys[key]
	state.present = max(state.now, s.dropped)
	if b := state.b; b != nil {
		state.present = max(state.now, b.at)
		if state.theirs = !b.rule.RefillsAs(l.bucket); state.theirs {
			i := l.inherit(state)
			state.missing, state.own = i.Missing(b.missing), i.Missing(b.own)
			return
		}
		state.missing = l.bucket.Minus(b.missing, state.present-b.at)
		if b.own != (gcra.Level{}) {
			state.own = l.bucket.Minus(b.own, state.present-b.at)
		}
	} else if all := (gcra.Level{Permits: l.bucket.Size}); l.empty && state.now >= s.lacking {
		state.missing = all // otherwise it may be a key that was dropped
	}
}

// inherit is how the limiter counts what another rule has written.
func (l *LocalTokenBucket) inherit(s *localState) gcra.Inheritance {
	return l.bucket.Inherit(s.b.rule, s.b.at, s.b.due, s.present)
}

// note notes what the primary has answered about key, of whose limit as large a share is missing here: at least what
// was allowed here.
func (l *LocalTokenBucket) note(key string, r Result) {
	if r.Limit < 1 || checkKey(key) != nil {
		return
	}
	high, low := bits.Mul64(uint64(l.bucket.Size), uint64(min(max(r.Remaining, 0), r.Limit)))
	left, _ := bits.Div64(high, low, uint64(r.Limit)) // high < Limit, as both are counts of permits
	missing := gcra.Level{Permits: l.bucket.Size - int64(left)}
	s := l.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	var state localState
	l.load(s, key, &state)
	l.noteMissing(&state, missing)
}

// noteChange notes that permits of key came back to the primary, of a limit of so many, or were charged if back is
// below 0. If no answer is known, it changes nothing.
func (l *LocalTokenBucket) noteChange(key string, back, limit int) {
	s := l.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	var state localState
	if l.load(s, key, &state); state.b == nil || limit < 1 {
		return
	}
	share := int64(back) * l.bucket.Size // both are counts of permits, at most a billion
	if share < 0 {
		share -= int64(limit) - 1 // rounded down, as division rounds towards 0
	}
	switch missing := state.missing.Plus(-(share / int64(limit))); {
	case missing.Permits < 0:
		l.noteMissing(&state, gcra.Level{})
	case missing.Ceil() > l.bucket.Size:
		l.noteMissing(&state, gcra.Level{Permits: l.bucket.Size})
	default:
		l.noteMissing(&state, missing)
	}
}

// noteMissing makes missing what is missing of what the primary has answered for, or more if more was allowed here.
func (l *LocalTokenBucket) noteMissing(s *localState, missing gcra.Level) {
	if own := s.own; own.Permits > missing.Permits || own.Permits == missing.Permits && own.Units > missing.Units {
		missing = own
	}
	l.store(s.shard, s.b, s.key, l.bucket, s.present, missing, s.own)
}

// look is the answer to a call for n permits, which it takes if they are there and take is true.
func (l *LocalTokenBucket) look(s *localState, n int, take bool) Result {
	allowed, taken := s.missing.Ceil()+int64(n) <= l.bucket.Size, int64(0)
	switch {
	case allowed && take:
		taken = int64(n)
		l.write(s, s.missing.Plus(taken))
	case take && l.empty && s.b == nil:
		l.beginEmpty(s)
	}
	if s.theirs && taken == 0 {
		i, lag := l.inherit(s), s.present-s.now
		return Result(l.bucket.Beside(s.missing, allowed, i.Wait(s.b.missing, int64(n))+lag, i.Wait(s.b.missing, l.bucket.Size)+lag))
	}
	return Result(l.bucket.Result(s.missing, int64(n), taken, allowed, s.present-s.now))
}

// beginEmpty notes that a new key was asked: it refills from now on.
func (l *LocalTokenBucket) beginEmpty(s *localState) {
	l.write(s, s.missing)
	b := s.shard.keys[s.key]
	b.order = b.at
	heap.Fix(&s.shard.queue, b.place)
}

// write makes missing what is missing now. The difference was taken or given back here.
func (l *LocalTokenBucket) write(s *localState, missing gcra.Level) {
	own := s.own.Plus(missing.Permits - s.missing.Permits)
	if own.Permits < 0 || missing == (gcra.Level{}) {
		own = gcra.Level{}
	}
	l.store(s.shard, s.b, s.key, l.bucket, s.present, missing, own)
}

// store notes what is missing from key at now, by a rule. b is the key's bucket, or nil for a new
// key.
func (l *LocalTokenBucket) store(s *localShard, b *localBucket, key string, rule *gcra.Bucket, now int64, missing, own gcra.Level) {
	full := now + rule.Restores(missing)
	if b != nil {
		b.rule, b.at, b.missing, b.own, b.full, b.order = rule, now, missing, own, full, full
		heap.Fix(&s.queue, b.place)
		return
	}
	b = l.room(s, now)
	b.key = strings.Clone(key) // a part of a large string would keep all of it alive
	b.rule, b.at, b.missing, b.own, b.full, b.order = rule, now, missing, own, full, full
	s.keys[b.key] = b
	heap.Push(&s.queue, b)
}

// room makes room for one more key and returns a bucket to use, that of a dropped key
// or a new one. A full bucket need not be kept, unless it would begin empty: for each new key
// up to two full ones are dropped, so that memory also shrinks.
func (l *LocalTokenBucket) room(s *localShard, now int64) *localBucket {
	var free *localBucket
	for range 2 {
		if len(s.queue) == 0 || len(s.queue) < s.most && (l.empty || s.queue[0].full > now) {
			break
		}
		free = s.queue[0]
		if free.full > now {
			s.lacking = max(s.lacking, now+free.rule.Window.Microseconds())
		}
		s.drop(free)
		s.dropped = max(s.dropped, min(free.full, now))
	}
	if free == nil {
		free = new(localBucket)
	}
	free.due, free.cancelled = math.MinInt64, nil
	return free
}

func (s *localShard) drop(b *localBucket) {
	heap.Remove(&s.queue, b.place)
	delete(s.keys, b.key)
}

// localQueue is a heap of buckets, in the order in which they are dropped.
type localQueue []*localBucket

func (q localQueue) Len() int           { return len(q) }
func (q localQueue) Less(i, j int) bool { return q[i].order < q[j].order }

func (q localQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

// Push is for container/heap.
func (q *localQueue) Push(b any) {
	b.(*localBucket).place = len(*q)
	*q = append(*q, b.(*localBucket))
}

// Pop is for container/heap.
func (q *localQueue) Pop() any {
	last := len(*q) - 1
	b := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return b
}
