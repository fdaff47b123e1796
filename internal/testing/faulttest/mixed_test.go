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
}

// mixedModel is a limit whose clock stands still: a count, which a charge takes beyond the limit.
func mixedModel(limit int) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return 0 },
		Step: func(state, given, got any) (bool, any) {
			used, call, answer := state.(int), given.(mixedCall), got.(mixedAnswer)
			want := mixedAnswer{allowed: true, remembered: answer.remembered}
			switch call.op {
			case "reset":
				return true, 0
			case "settle":
				return true, used + call.n
			case "charge":
				want.taken = call.n
			case "up to":
				want.taken = min(max(limit-used, 0), call.n)
				want.allowed = want.taken > 0
			default:
				if want.allowed = used+call.n <= limit; want.allowed && call.op != "peek" {
					want.taken = call.n
				}
			}
			used += want.taken
			want.remaining = max(limit-used, 0)
			if !want.allowed && answer.remembered {
				want.remaining = answer.remaining
			}
			return answer == want, used
		},
		DescribeOperation: func(given, got any) string { return fmt.Sprintf("%+v %+v", given, got) },
	}
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

// mixedBurst makes calls of all operations at the same time, and settles all that it has estimated.
func mixedBurst(t *testing.T, h *history, by []mixed, beside ratelimit.Limiter, key string, seed uint64, burst int, remembers bool) {
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
				if err := e.Settle(ctx, actual); err != nil {
					t.Error(err)
				}
				h.put(c, mixedCall{"settle", actual - e.n}, mixedAnswer{}, begun)
			}
			for range calls {
				call := mixedCall{"", 1 + rng.IntN(6)}
				answer := mixedAnswer{remembered: remembers}
				var r ratelimit.Result
				var all ratelimit.AllResult
				var ticket *ratelimit.Ticket
				var err error
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
					t.Error(err)
					return
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

// put notes a call that has just returned.
func (h *history) put(client int, in mixedCall, out mixedAnswer, begun int64) {
	ret := clock()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Call: begun, Output: out, Return: ret})
}

// TestAllOperationsFitOneOrder: callers take, look, take a part, estimate, settle, charge, reserve and claim with another
// limit, all of one key at the same time, merged and not, and through a cache of denials. One order of the calls
// explains every answer.
func TestAllOperationsFitOneOrder(t *testing.T) {
	t.Parallel()
	const limit, bursts = 24, 5
	seed := limitertest.Seed(t)
	client := redistest.Shared(t).Client(t, func(o *redis.Options) { o.PoolSize = 10 })
	still, prefix := ratelimit.WithClock(func() time.Time { return limitertest.Start }), ratelimit.WithPrefix("all operations")
	opts := []ratelimit.Option{still, prefix, ratelimit.WithName("mixed")}
	beside := ratelimit.Must(ratelimit.NewFixedWindow(client, 1_000_000, time.Hour, still, prefix, ratelimit.WithName("beside")))
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
				mixedBurst(t, &h, by, beside, key, seed, burst, remembers)
				begun := clock()
				require.NoError(t, by[0].Reset(ctx, key))
				h.put(0, mixedCall{op: "reset"}, mixedAnswer{}, begun)
			}
			begun := time.Now()
			verdict := porcupine.CheckOperationsTimeout(mixedModel(limit), h.ops, time.Minute)
			require.Equal(t, porcupine.CheckResult(porcupine.Ok), verdict, "%s, %s: a history of %d calls", q.name, way, len(h.ops))
			t.Logf("%-32s %-28s %d calls: linearizable, checked in %v", q.name, way, len(h.ops), time.Since(begun).Round(time.Millisecond/10))
		}
	}
}
