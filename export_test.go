package ratelimit

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/denials"
	"github.com/tryacquire/ratelimit/internal/guard"
	"github.com/tryacquire/ratelimit/internal/lease"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/script"
	"github.com/tryacquire/ratelimit/internal/scripts"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/windows"
	lua "github.com/tryacquire/ratelimit/scripts"
)

// What tests of package ratelimit_test need of the engine.

// Merged makes calls for these keys in one execution, in this order, of which some are
// given up before it is sent: these have no result.
func Merged(t testing.TB, l Limiter, calls []model.Step, keys []string, givenUp ...int) []Result {
	t.Helper()
	if len(calls) >= 64 { // more than wait for each other
		require.Empty(t, givenUp)
		return decideTogether(t, coreOf(t, l), calls, keys)
	}
	gone := map[int]bool{}
	for _, i := range givenUp {
		gone[i] = true
	}
	results, errs := inOneBatch(t, coreOf(t, l), calls, keys, gone)
	for i, err := range errs {
		if !gone[i] {
			require.NoError(t, err)
		}
	}
	return results
}

// OneBatch makes calls of l, in this order, all in one batch.
func OneBatch(t testing.TB, l Limiter, calls ...func(ctx context.Context)) {
	t.Helper()
	callInOneBatch(t, coreOf(t, l), calls, nil)
}

// Together makes one call for one permit of each of the keys, all in one batch.
var Together = together

// SetMaxTrials makes s ask at most n trials at a time. It has not been called yet.
func SetMaxTrials(s *Shadow, n int) { s.running = make(chan struct{}, n) }

// A Reserver is a bucket, or a decorator around one.
type Reserver interface {
	Limiter
	Reserve(ctx context.Context, key string, n int, maxWait time.Duration) (*Reservation, error)
}

// A PartialTaker is any limiter of this package but an All.
type PartialTaker = partialTaker

// IsOnRedis reports whether l is one limiter that decides on Redis.
func IsOnRedis(l Limiter) bool { return kindOf(l).core != nil }

// ReserveBy is l.Reserve for a reservation whose delay is counted by a clock of the test's.
func ReserveBy(now func() time.Time, l Reserver, key string, n int, maxWait time.Duration) (*Reservation, error) {
	clock := timing{now: now}
	switch l := l.(type) {
	case *TokenBucket:
		return l.checkedReserve(clock, key, n, maxWait)
	case *LeakyBucket:
		return l.checkedReserve(clock, key, n, maxWait)
	case *LocalTokenBucket:
		return l.promise(context.Background(), key, reserving{n: n, longest: maxWait, timing: clock})
	}
	panic("a limiter that cannot reserve")
}

func (c *bucketCore) checkedReserve(clock timing, key string, n int, maxWait time.Duration) (*Reservation, error) {
	ctx := context.Background()
	of := reserving{n: n, longest: maxWait, timing: clock}
	if err := c.checkReserve(ctx, key, of); err != nil {
		return nil, err
	}
	r, _, err := c.reserve(ctx, key, of)
	return r, err
}

// GiveBack is what a Wait that fails does with its permits, due or not. Cancel gives back only
// permits that are not due.
func (r *Reservation) GiveBack(ctx context.Context) error {
	return r.giveBack(ctx)
}

// texts are what the key holds since the reservation, and what it held before.
func (r *redisReservation) texts() (now, before string) { return r.receipt.Texts(r.by.rule) }

// ByTheServersClock lets the ticket's window end by the server's clock alone, which a test sets: a window of a millisecond is over
// by the clock of this process.
func (t *Ticket) ByTheServersClock() *Ticket {
	t.until = time.Time{}
	return t
}

// HoldOf is a hold of this id, whether Redis has it or not.
func HoldOf(f *InFlight, key, id string, n int) *Hold {
	return &Hold{from: f, key: key, id: id, n: n, lease: f.lease}
}

// Take takes the hold's permits, and returns the words of the reply.
func (h *Hold) Take(ctx context.Context) ([]int64, error) {
	reply, err := h.from.(*InFlight).acquire(ctx, h)
	return reply.Words, err
}

// Find extends the hold's lease in Redis, and reports whether it was there, however long that
// took.
func (h *Hold) Find(ctx context.Context) (bool, error) { return h.from.find(ctx, h) }

// ID is that of the hold in Redis.
func (h *Hold) ID() string { return h.id }

// ExtendDigest is the digest of the script that extends the lease of a hold.
func ExtendDigest() string { return scripts.Of("inflight").Get(false).Extend.Digest() }

// Look returns the words of a Peek.
func (f *InFlight) Look(ctx context.Context, key string) ([]int64, error) {
	reply, err := f.core.exec.Ask(ctx, f.core.head.Of(key), redisexec.Operation{Op: redisexec.Look, N: 1, Times: 1})
	return reply.Words, err
}

// SetClock sets the clock of a cache, which is otherwise this process's monotonic one.
func (c *DenyCache) SetClock(now func() time.Duration) { c.table.Now = now }

// SetClock sets both clocks of a Leased, which are otherwise this machine's.
func (l *Leased) SetClock(now func() time.Time) {
	l.now = func() lease.Instant {
		at := time.Duration(now().UnixNano())
		return lease.Instant{Mono: at, Wall: at}
	}
}

// Table has the denials of a cache.
func (c *DenyCache) Table() *denials.Table { return c.table }

// Inside is the limiter that a cache asks.
func (c *DenyCache) Inside() Limiter { return c.limiter }

// GuardOf asks the primary of f.
func GuardOf(f *Fallback) *guard.Guard { return &f.guard }

// Begun is what counts the calls of b, which has its defaults.
func (b *Breaker) Begun() *guard.Breaker { return b.begun() }

// Queued are the changes of b that no observer has got yet.
func (b *Breaker) Queued() []Observation { return b.changes.queue }

// DefaultFailures open a breaker.
const DefaultFailures = defaultFailures

// Keys is the number of keys kept.
func (l *LocalTokenBucket) Keys() int { return l.buckets.Len() }

// Untimed is observations without how long their calls took, and what was left before.
func Untimed(all []Observation) []Observation {
	all = slices.Clone(all)
	for i := range all {
		all[i].Latency, all[i].Before = 0, 0
	}
	return all
}

// AllMerged makes calls of TryAcquireAll in one execution, and returns which of them failed: calls with
// claims of the same limiters, or of groups that ShareGroups. Equal calls that follow one another are one
// request.
func AllMerged(t testing.TB, calls [][]Claim) (all []AllResult, failed []bool) {
	t.Helper()
	var groups []*group
	var requests []string
	var times, of []int // of each request how many calls it is, and the index of its group
	for _, claims := range calls {
		g, err := groupOf(claims)
		require.NoError(t, err)
		at := slices.Index(groups, g)
		if at < 0 {
			at = len(groups)
			groups = append(groups, g)
		}
		request, err := g.pack(ctx, claims, nil, g.newHolds(claims), nil)
		require.NoError(t, err)
		if last := len(requests) - 1; last >= 0 && requests[last] == request && of[last] == at {
			times[last]++
		} else {
			requests, times, of = append(requests, request), append(times, 1), append(of, at)
		}
	}
	exec := groups[0].exec
	asked := func(i int) (*string, any) { return &requests[i], fmt.Appendf(nil, "1x%d", times[i]) }
	var words []int64
	var err error
	if len(groups) == 1 {
		words, err = exec.DoMany(ctx, exec.Many, len(requests), asked)
	} else {
		words, err = exec.DoTable(ctx, exec.ManyOfSeveral, len(groups), len(requests), func(i int) (*string, any, int, []any) {
			packed, times := asked(i)
			return packed, times, of[i], groups[of[i]].exec.Args
		})
	}
	require.NoError(t, err)
	for at, n := range times {
		if words[0] < 0 {
			words = words[1:]
			all, failed = append(all, make([]AllResult, n)...), append(failed, slices.Repeat([]bool{true}, n)...)
			continue
		}
		for i := range n {
			claims := calls[len(all)]
			r := AllResult{Parts: make([]PartResult, len(claims))}
			r.Result, _ = groups[of[at]].explain(redisexec.Reply{Words: words[:exec.Words], Index: int64(i)}, claims, false, r.Parts, nil)
			all, failed = append(all, r), append(failed, false)
		}
		words = words[exec.Words:]
	}
	require.Empty(t, words)
	return all, failed
}

// ShareGroups reports whether calls with these claims and those can be decided in one execution.
func ShareGroups(t testing.TB, these, those []Claim) bool {
	t.Helper()
	one, err := groupOf(these)
	require.NoError(t, err)
	other, err := groupOf(those)
	require.NoError(t, err)
	return one.exec.ManyOfSeveral != nil && one.exec.Many == other.exec.Many
}

// DigestsOfGroup are those of the scripts for requests to several groups: the plain one, and for each limiter
// that for requests with its key in common.
func DigestsOfGroup(t testing.TB, claims ...Claim) []string {
	t.Helper()
	g, err := groupOf(claims)
	require.NoError(t, err)
	digests := []string{g.exec.ManyOfSeveral.Digest()}
	for _, l := range g.exec.Several {
		digests = append(digests, l.CommonOfSeveral.Digest())
	}
	return digests
}

// DecideList decides a list of operations on a key in one execution, and returns the words of the
// reply.
func DecideList(l Limiter, key string, list []byte) ([]int64, error) {
	c, err := redisCore(l)
	if err != nil {
		return nil, err
	}
	name := c.head.Of(key)
	return c.exec.DoMany(ctx, c.exec.Operations, 1, func(int) (*string, any) { return &name, list })
}

// DecideLists decides lists of operations on keys in one execution, in which a second store of
// the first key fails as the text says.
func DecideLists(l Limiter, keys, lists []string, fail string) ([]int64, error) {
	c, err := redisCore(l)
	if err != nil {
		return nil, err
	}
	file := c.scripts.Whole(c.clock != nil)
	refuse := "if key == KEYS[1] and done > 0 then " + fail + " end\n"
	broken := scripts.Assemble(file.Wrap("store", refuse, "")).Operations
	return c.exec.DoMany(ctx, broken, len(keys), func(i int) (*string, any) {
		name := c.head.Of(keys[i])
		return &name, lists[i]
	})
}

// TicketOf is where the n permits of the last estimate are that a reply says is allowed.
func TicketOf(l Limiter, n int, words []int64) [2]int64 {
	c, _ := redisCore(l)
	t := c.decider.(charger).newTicket("", n, words[decision.WordAllowed]-1, words)
	return [2]int64{t.where, t.which}
}

// NameOf is what a key of l is named in Redis.
func NameOf(l Limiter, key string) string {
	c, _ := redisCore(l)
	return c.head.Of(key)
}

// DecideHolds decides a list of holds and releases on each of the keys in one execution, and returns
// the words of the reply.
func DecideHolds(f *InFlight, list []byte, keys ...string) ([]int64, error) {
	return f.core.exec.DoMany(ctx, f.core.exec.Operations, len(keys), func(i int) (*string, any) {
		name := f.core.head.Of(keys[i])
		return &name, list
	})
}

// NameOfHolds is what a key of f is named in Redis.
func NameOfHolds(f *InFlight, key string) string { return f.core.head.Of(key) }

// OfBucket is p as the answer of a token or leaky bucket, or as that of another limiter.
func OfBucket(is bool, p PartResult) PartResult {
	p.bucket = is
	return p
}

// Reserves reports whether l can reserve.
func Reserves(l Limiter) bool {
	c, _ := redisCore(l)
	return c.isBucket()
}

// ReceiptOf is what the key holds since a reservation with this reply, and what it held before. ok is
// false if nothing was taken.
func ReceiptOf(l Limiter, words []int64) (now, before string, ok bool) {
	c, _ := redisCore(l)
	from := c.decider.(*bucketCore).own
	receipt := from.exec.ReservedOf(words).Receipt
	if receipt == nil {
		return "", "", false
	}
	now, before = receipt.Texts(from.rule)
	return now, before, true
}

// DecideTable decides a list for each key in one execution, by the limiters that they are of.
func DecideTable(of []Limiter, keys, lists []string, onlyTakes bool) ([]int64, error) {
	var limiters []Limiter
	exec := func(l Limiter) *redisexec.Executor {
		c, _ := redisCore(l)
		return c.exec
	}
	table := exec(of[0]).OperationsOfSeveral
	if onlyTakes {
		table = exec(of[0]).ManyOfSeveral
	}
	return exec(of[0]).DoTable(ctx, table, len(of), len(keys), func(i int) (name *string, requests any, limiter int, args []any) {
		if limiter = slices.Index(limiters, of[i]); limiter < 0 {
			limiter = len(limiters)
			limiters = append(limiters, of[i])
		}
		n := NameOf(of[i], keys[i])
		return &n, lists[i], limiter, exec(of[i]).Args
	})
}

// ShareExecutions reports whether calls of two limiters can be decided in one execution.
func ShareExecutions(a, b Limiter) bool {
	one, _ := redisCore(a)
	other, _ := redisCore(b)
	return one.exec.Many == other.exec.Many
}

// Operate runs an operation on its own, and returns the words of its reply.
func Operate(l *TokenBucket, key string, o redisexec.Operation) ([]int64, error) {
	reply, err := l.exec.Operate(context.Background(), l.head.Of(key), o)
	return reply.Keep(), err
}

// OperateWindow decides one operation on its own.
func OperateWindow(l *FixedWindow, key string, o redisexec.Operation) ([]int64, error) {
	reply, err := l.exec.Operate(context.Background(), l.head.Of(key), o)
	return reply.Keep(), err
}

// OfMicroseconds is a log of the id of a sliding window or log, with windows of a few microseconds, which constructors refuse.
func OfMicroseconds(t testing.TB, c Client, id string, log windows.Log, opts ...Option) *SlidingLog {
	s, err := collect(newSlidingLog, opts)
	require.NoError(t, err)
	a, _ := algorithms.Of(id)
	of := scripts.Of(a.Files[0].Name)
	if len(log.Rules) == 1 && id == algorithms.SlidingLog {
		of = scripts.Of("slidingwindow_list")
	}
	l := &SlidingLog{}
	require.NoError(t, l.build(c, s, logAlgorithm(id, of, log, s.clock != nil)))
	return l
}

// RemoveFew lets a sliding window or log remove few entries that have left the windows in one
// execution: one, and of a sorted set two for each permit that is taken. It reports whether l is one.
// It has not been called yet.
func RemoveFew(t testing.TB, l Limiter) bool {
	t.Helper()
	c, err := redisCore(l)
	require.NoError(t, err)
	read := func(name string) string {
		text, err := lua.Texts.ReadFile(name + ".lua")
		require.NoError(t, err)
		return string(text)
	}
	name, few := c.scripts.Name, []string{"forget > 1000 then", "forget > 1 then", "math.min(forget, 200000)", "1"}
	switch name {
	case "slidingwindow_zset":
		few = []string{"left > 100 then", "left > 0 then", "500 + 2 * missing", "2 * missing"}
	case "slidingwindow_hash":
		few = []string{"forget > 256 then", "forget > 1 then", "first + 256)", "first + 1)", "first + 257)", "first + 2)", "forget = 256", "forget = 1"}
	case "slidingwindow_list", "slidinglog":
	default:
		return false
	}
	text := script.Include(read(name), script.Parse("sliding.lua", read("sliding")))
	for i := 0; i < len(few); i += 2 {
		require.Equal(t, 1, strings.Count(text, few[i]), few[i])
		text = strings.Replace(text, few[i], few[i+1], 1)
	}
	file := script.Parse(name+".lua", text)
	if c.clock != nil {
		file = file.With(script.Parse("callersclock.lua", read("callersclock")))
	}
	set := scripts.Assemble(file)
	c.exec.One, c.exec.Peek, c.exec.Many, c.exec.Operations, c.exec.Alone = set.One, set.Peek, set.Many, set.Operations, set.Alone
	return true
}

// FinishMerged finishes calls in one execution, and returns how many settlements and releases that left to others:
// calls whose claims are of the same limiters, or of groups that ShareGroups.
func FinishMerged(t testing.TB, calls []AllResult, used func(PartResult) int) (left int) {
	t.Helper()
	var groups []*group
	var requests []string
	var of []int // of each request the index of its group
	endings := make([][]*ending, len(calls))
	for i, r := range calls {
		for _, p := range r.Parts {
			e := &ending{ticket: p.Ticket, hold: p.Hold}
			if p.Ticket != nil {
				e.o.N = used(p)
			} else if p.Hold == nil {
				continue
			}
			require.True(t, e.begin(ctx))
			endings[i] = append(endings[i], e)
		}
		g, request := packEndings(endings[i])
		require.NotNil(t, g)
		if !slices.Contains(groups, g) {
			groups = append(groups, g)
		}
		requests, of = append(requests, request), append(of, slices.Index(groups, g))
	}
	exec := groups[0].finishing(endings[0][0].from.clock).exec
	asked := func(i int) (*string, any) { return &requests[i], []byte("1F1") }
	var words []int64
	var err error
	if len(groups) == 1 {
		words, err = exec.DoMany(ctx, exec.Operations, len(requests), asked)
	} else {
		words, err = exec.DoTable(ctx, exec.OperationsOfSeveral, len(groups), len(requests), func(i int) (*string, any, int, []any) {
			packed, times := asked(i)
			return packed, times, of[i], groups[of[i]].exec.Args
		})
	}
	require.NoError(t, err)
	for i, all := range endings {
		n := exec.WordsOf(redisexec.Finish, words)
		for _, e := range groups[of[i]].ended(ctx, all, redisexec.Reply{Words: words[:n]}) {
			left++
			e.askAlone(ctx)
		}
		words = words[n:]
	}
	require.Empty(t, words)
	return left
}
