package faulttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/errclass"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// A mixedCall is one call of a history of all operations.
type mixedCall struct {
	op string
	n  int // permits; of a settlement those that are taken in addition, below 0 given back
}

// A mixedAnswer is what it brought.
type mixedAnswer struct {
	allowed          bool
	taken, remaining int
	remembered       bool // if it was denied, what remained may be older, or is not known
	lost             bool // there was no answer
}

// mixedModel is a limit whose clock stands still: a count, which a charge takes beyond the limit. A call whose reply was
// lost has been executed once, or not at all.
func mixedModel(limit int) porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{0} },
		Step: func(state, given, got any) []any {
			used, call, answer := state.(int), given.(mixedCall), got.(mixedAnswer)
			want, after := call.of(used, limit)
			if want.remembered = answer.remembered; answer.remembered && !want.allowed {
				want.remaining = answer.remaining
			}
			switch {
			case answer.lost:
				return []any{used, after}
			case call.answers() && answer != want:
				return nil
			}
			return []any{after}
		},
		DescribeOperation: func(given, got any) string { return fmt.Sprintf("%+v %+v", given, got) },
	}
	return model.ToModel()
}

// answers reports whether the call says more than that it was executed.
func (c mixedCall) answers() bool { return c.op != "reset" && c.op != "settle" }

// of is the answer to a call if so many of limit permits are used, and how many are used after it.
func (c mixedCall) of(used, limit int) (a mixedAnswer, after int) {
	a.allowed = true
	switch c.op {
	case "reset":
		return a, 0
	case "settle":
		return a, used + c.n
	case "charge":
		a.taken = c.n
	case "up to":
		a.taken = min(max(limit-used, 0), c.n)
		a.allowed = a.taken > 0
	default:
		if a.allowed = used+c.n <= limit; a.allowed && c.op != "peek" {
			a.taken = c.n
		}
	}
	used += a.taken
	a.remaining = max(limit-used, 0)
	return a, used
}

// mixed is what the limits of this test can do, bare and in a DenyCache.
type mixed interface {
	ratelimit.Limiter
	ratelimit.Settler
	TryAcquireUpTo(ctx context.Context, key string, n int) (taken int, r ratelimit.Result, err error)
}

type reserver interface {
	Reserve(ctx context.Context, key string, n int, maxWait time.Duration) (*ratelimit.Reservation, error)
}

// mixedBurst makes calls of all operations at the same time, and settles all that it has estimated. Before one call in
// ten it calls fault, if there is one; a call may then bring no answer.
func mixedBurst(t *testing.T, h *history, by []mixed, beside ratelimit.Limiter, key string, seed uint64, burst int, remembers bool, fault func()) {
	const callers, calls = 10, 6
	var wg sync.WaitGroup
	for c := range callers {
		rng := rand.New(rand.NewPCG(seed, uint64(burst*callers+c)))
		l := by[c%len(by)]
		wg.Go(func() {
			type estimate struct {
				*ratelimit.Ticket
				n int
			}
			var open []estimate
			settle := func() {
				e := open[0]
				open = open[1:]
				actual := rng.IntN(e.n + 2)
				begun := clock()
				err := e.Settle(ctx, actual)
				if err != nil && !isLost(err, fault) {
					t.Error(err)
				}
				h.put(c, mixedCall{"settle", actual - e.n}, mixedAnswer{lost: err != nil}, begun)
			}
			for range calls {
				call := mixedCall{"", 1 + rng.IntN(6)}
				answer := mixedAnswer{remembered: remembers}
				var r ratelimit.Result
				var all ratelimit.AllResult
				var ticket *ratelimit.Ticket
				var err error
				if fault != nil && rng.IntN(10) == 0 {
					fault()
				}
				begun := clock()
				bucket, reserves := l.(reserver)
				reserves = reserves && strings.Contains(key, "Bucket")
				switch op := rng.IntN(13); {
				case op < 2:
					call.op = "take"
					r, err = l.TryAcquireN(ctx, key, call.n)
				case op < 3:
					call = mixedCall{"peek", 1}
					r, err = l.Peek(ctx, key)
				case op < 5:
					call.op = "up to"
					answer.taken, r, err = l.TryAcquireUpTo(ctx, key, call.n)
				case op < 8:
					call.op = "estimate"
					ticket, r, err = l.Estimate(ctx, key, call.n)
				case op < 9:
					call = mixedCall{"charge", 1 + rng.IntN(2)}
					r, err = l.Charge(ctx, key, call.n)
				case op < 10 && reserves:
					call.op = "reserve at once"
					var reserved *ratelimit.Reservation
					if reserved, err = bucket.Reserve(ctx, key, call.n, 0); errors.Is(err, ratelimit.ErrWaitTooLong) {
						err, answer.remembered = nil, true // it does not say what remains
					}
					r = reserved.Result()
				case op < 11:
					call.op = "take beside another"
					all, err = ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(l, key, call.n), ratelimit.ClaimOf(beside, key, 1))
				default:
					call.op = "estimate beside another"
					all, err = ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(beside, key, 1), ratelimit.ClaimOf(l, key, call.n).Estimate())
				}
				if err != nil {
					if !isLost(err, fault) {
						t.Error(err)
						return
					}
					h.put(c, call, mixedAnswer{lost: true}, begun)
					continue
				}
				for _, p := range all.Parts {
					if p.Name == "mixed" {
						r, ticket = p.Result, p.Ticket
					}
				}
				if answer.allowed, answer.remaining = r.Allowed, r.Remaining; r.Allowed && call.op != "peek" && call.op != "up to" {
					answer.taken = call.n
				}
				h.put(c, call, answer, begun)
				if ticket != nil {
					open = append(open, estimate{ticket, call.n})
				}
				if len(open) > 0 && rng.IntN(2) == 0 {
					settle()
				}
			}
			for len(open) > 0 {
				settle()
			}
		})
	}
	wg.Wait()
}

// isLost reports whether err is that of a reply that fault has lost.
func isLost(err error, fault func()) bool { return fault != nil && errclass.Is(err, errclass.Outage) }

// put notes a call that has just returned.
func (h *history) put(client int, in mixedCall, out mixedAnswer, begun int64) {
	ret := clock()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Call: begun, Output: out, Return: ret})
}

// mixedHistories lets callers make calls of all operations of a key of every quota, and requires one order of the calls
// that explains every answer.
func mixedHistories(t *testing.T, client ratelimit.Client, prefix string, faults *lostReplies) {
	const limit, bursts = 24, 5
	seed := limitertest.Seed(t)
	still, named := ratelimit.WithClock(func() time.Time { return limitertest.Start }), ratelimit.WithPrefix(prefix)
	opts := []ratelimit.Option{still, named, ratelimit.WithName("mixed")}
	beside := ratelimit.Must(ratelimit.NewFixedWindow(client, 1_000_000, time.Hour, still, named, ratelimit.WithName("beside")))
	for _, q := range quotas() {
		for _, way := range []string{"merged, and not", "merged, through a DenyCache"} {
			merged, err := q.build(client, limit, time.Hour, opts...)
			require.NoError(t, err)
			if _, ok := merged.(mixed); !ok { // an All settles by its claims
				continue
			}
			unmerged, err := q.build(client, limit, time.Hour, append(opts, ratelimit.WithoutMerging())...)
			require.NoError(t, err)
			by, remembers := []mixed{merged.(mixed), unmerged.(mixed)}, way != "merged, and not"
			if remembers {
				by = []mixed{ratelimit.Must(ratelimit.NewDenyCache(merged))}
			}
			key := q.name + way
			var h history
			for burst := range bursts {
				mixedBurst(t, &h, by, beside, key, seed, burst, remembers, faults.next())
				faults.stop()
				begun := clock()
				require.NoError(t, by[0].Reset(ctx, key))
				h.put(0, mixedCall{op: "reset"}, mixedAnswer{}, begun)
			}
			begun := time.Now()
			verdict := porcupine.CheckOperationsTimeout(mixedModel(limit), h.ops, time.Minute)
			require.Equal(t, porcupine.CheckResult(porcupine.Ok), verdict, "%s, %s: a history of %d calls", q.name, way, len(h.ops))
			lost := 0
			for _, op := range h.ops {
				if op.Output.(mixedAnswer).lost {
					lost++
				}
			}
			struck := faults.struck()
			require.GreaterOrEqual(t, lost, struck, "whoever's reply was lost was told so")
			t.Logf("%-32s %-28s %d calls, %d lost replies of %d calls: linearizable, checked in %v",
				q.name, way, len(h.ops), struck, lost, time.Since(begun).Round(time.Millisecond/10))
		}
	}
}

// lostReplies loses replies of scripts, and counts them. A nil one loses none.
type lostReplies struct {
	proxy *redistest.Proxy

	mu     sync.Mutex // guards what follows
	faults []*redistest.Fault
	total  int // before the last call of struck
}

// next is a function that loses the next reply; nil if none is to be lost.
func (l *lostReplies) next() func() {
	if l == nil {
		return nil
	}
	return func() {
		fault := l.proxy.DropNextReply(redistest.OnScript())
		l.mu.Lock()
		defer l.mu.Unlock()
		l.faults = append(l.faults, fault)
	}
}

// stop loses no more replies.
func (l *lostReplies) stop() {
	if l != nil {
		l.proxy.Disarm()
	}
}

// struck is how many replies were lost since it was called last.
func (l *lostReplies) struck() (n int) {
	if l == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, fault := range l.faults {
		n += fault.Hits()
	}
	l.faults = nil
	l.total += n
	return n
}

// TestAllOperationsFitOneOrder: callers take, look, take a part, estimate, settle, charge, reserve and claim with another
// limit, all of one key at the same time, merged and not, and through a cache of denials. One order of the calls
// explains every answer.
func TestAllOperationsFitOneOrder(t *testing.T) {
	t.Parallel()
	client := redistest.Shared(t).Client(t, func(o *redis.Options) { o.PoolSize = 10 })
	mixedHistories(t, client, "all operations", nil)
}

// TestAllOperationsFitOneOrderThoughRepliesAreLost does the same while replies get lost. Such a call is executed at most
// once, and its estimate is never settled.
func TestAllOperationsFitOneOrderThoughRepliesAreLost(t *testing.T) {
	t.Parallel()
	faults := &lostReplies{proxy: redistest.NewProxy(t, redistest.Shared(t).Addr())}
	client := redis.NewClient(&redis.Options{Addr: faults.proxy.Addr(), PoolSize: 10})
	defer client.Close()
	mixedHistories(t, client, "all operations, lossy", faults)
	require.Greater(t, faults.total, 100, "replies were lost")
}
