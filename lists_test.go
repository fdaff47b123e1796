package ratelimit_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/errclass"
	"github.com/tryacquire/ratelimit/internal/merge"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// A listed is an operation on a key, of a limiter of three permits, which takes so many of them.
type listed struct {
	name    string
	prepare func(t *testing.T, key string) // nil: nothing
	do      func(ctx context.Context, key string) error
	takes   int
}

// operationsOf are those of l. A reservation takes permits of buckets only.
func operationsOf(l settling) []listed {
	var mu sync.Mutex
	tickets := map[string]*ratelimit.Ticket{}
	ops := []listed{
		{"take", nil, func(ctx context.Context, key string) error { return denialOrError(l.TryAcquireN(ctx, key, 2)) }, 2},
		{"up to", nil, func(ctx context.Context, key string) error {
			_, r, err := l.TryAcquireUpTo(ctx, key, 9)
			return denialOrError(r, err)
		}, 3},
		{"estimate", nil, func(ctx context.Context, key string) error {
			_, r, err := l.Estimate(ctx, key, 2)
			return denialOrError(r, err)
		}, 2},
		{"charge", nil, func(ctx context.Context, key string) error { return denialOrError(l.Charge(ctx, key, 1)) }, 1},
		{"settle", func(t *testing.T, key string) {
			ticket, r, err := l.Estimate(ctx, key, 3)
			require.NoError(t, denialOrError(r, err))
			mu.Lock()
			defer mu.Unlock()
			tickets[key] = ticket
		}, func(ctx context.Context, key string) error {
			mu.Lock()
			ticket := tickets[key]
			mu.Unlock()
			return ticket.Settle(ctx, 1)
		}, 1},
	}
	if l, ok := l.(ratelimit.Reserver); ok && ratelimit.Reserves(l) {
		ops = append(ops, listed{"reserve", nil, func(ctx context.Context, key string) error {
			r, err := l.Reserve(ctx, key, 2, time.Hour)
			return denialOrError(r.Result(), err)
		}, 2})
	}
	return ops
}

// holdsOf are the operations of permits that are held.
func holdsOf(l *ratelimit.InFlight) []listed {
	var mu sync.Mutex
	holds := map[string]*ratelimit.Hold{}
	take := func(key string, n int) error {
		h, r, err := l.TryAcquireN(ctx, key, n)
		mu.Lock()
		defer mu.Unlock()
		holds[key] = h
		return denialOrError(r, err)
	}
	held := func(key string) *ratelimit.Hold {
		mu.Lock()
		defer mu.Unlock()
		return holds[key]
	}
	prepare := func(t *testing.T, key string) { require.NoError(t, take(key, 2)) }
	return []listed{
		{"hold", nil, func(_ context.Context, key string) error { return take(key, 2) }, 2},
		{"extend", prepare, func(ctx context.Context, key string) error { return held(key).Extend(ctx) }, 2},
		{"release", prepare, func(ctx context.Context, key string) error { return held(key).Release(ctx) }, 0},
	}
}

// A listedLimiter is a limiter whose calls share executions.
type listedLimiter struct {
	name, key string                                          // as Redis has it, of the caller's key k
	corrupt   func(c redis.UniversalClient, key string) error // nil: not every operation reads what is wrong
	ops       []listed
	take      func(key string)
	peek      func(ctx context.Context, key string) (ratelimit.Result, error)
	limitertest.Keys
}

func listedLimiters(t *testing.T, s *limitertest.Stage) (all []listedLimiter) {
	held := ratelimit.Must(ratelimit.NewInFlight(s.Client, 3, time.Hour, s.Opts...))
	all = append(all, listedLimiter{
		name: "InFlight", key: "ratelimit:default:inflight{k}", ops: holdsOf(held), peek: held.Peek,
		take: func(key string) { _, _, _ = held.TryAcquire(ctx, key) },
	})
	for _, v := range limitertest.Variants() {
		if strings.HasSuffix(v.Name, "headroom") || v.Name == "TokenBucket in an All" {
			continue
		}
		built, err := v.Build(s.Client, s.Opts...)
		require.NoError(t, err)
		all = append(all, listedLimiter{v.Name, v.Key, v.Corrupt, operationsOf(built.(settling)), func(key string) { _, _ = built.TryAcquire(ctx, key) }, built.Peek, v.Keys})
	}
	return all
}

func denialOrError(r ratelimit.Result, err error) error {
	if err == nil {
		err = r.Err()
	}
	return err
}

// A lister makes calls that wait for each other.
type lister struct{ now atomic.Pointer[waitingCalls] }

// waitingCalls is one use of a lister.
type waitingCalls struct {
	sent chan struct{} // gets one for each command
	open chan struct{} // when it is closed, commands go on
	list atomic.Bool   // a command had several keys
}

func newLister(client *redis.Client) *lister {
	l := &lister{}
	client.AddHook(fakes.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if w := l.now.Load(); w != nil && cmd.Name() == "evalsha" {
			if fmt.Sprint(cmd.Args()[2]) != "1" {
				w.list.Store(true)
			}
			w.sent <- struct{}{}
			<-w.open
		}
		return next(ctx, cmd)
	}})
	return l
}

// call makes the calls while as many others as are sent at once are under way, and reports whether an execution was for
// several keys.
func (l *lister) call(other func(i int), calls []func()) bool {
	w := &waitingCalls{sent: make(chan struct{}, 1000), open: make(chan struct{})}
	l.now.Store(w)
	var wg sync.WaitGroup
	for i := range merge.FewCalls { // one after the other: while a batch of the last use ends, two would be one command
		wg.Go(func() { other(i) })
		<-w.sent
	}
	for _, call := range calls {
		wg.Go(call)
	}
	<-w.sent // what waits
	l.now.Store(nil)
	close(w.open)
	wg.Wait()
	return w.list.Load()
}

// TestAKeyThatFailsInAListFailsAlone: of the calls for several keys in one execution, one key is of another type, is
// damaged, or is one that the server's user may not touch. Its call takes nothing and has the right error; the others are
// decided. The key stands at each place, and its call is each operation, beside all others.
func TestAKeyThatFailsInAListFailsAlone(t *testing.T) {
	const keys = 5
	server := redistest.Start(t, redistest.ACL("limiter", append(limitertest.LeastPrivilege(), "~*")...))
	admin, client := server.Client(t), server.Client(t, limitertest.AsLimiter)
	s := limitertest.OnClock(client, admin)
	several := newLister(client)
	allowing := func(patterns ...any) {
		require.NoError(t, admin.Do(ctx, append([]any{"ACL", "SETUSER", "limiter", "resetkeys"}, patterns...)...).Err())
	}
	rng := model.Seeded(limitertest.Seed(t))
	lists := map[string]int{} // by what is wrong with one key
	for _, l := range listedLimiters(t, s) {
		ops, bad := l.ops, strings.Replace(l.key, "{k}", "{bad}", 1)
		for way, kind := range map[string]errclass.Class{"of another type": errclass.Damaged, "damaged": errclass.Damaged, "forbidden": errclass.Mistake} {
			if way == "damaged" && l.corrupt == nil {
				continue
			}
			for at := range keys {
				for first := range ops {
					if limitertest.Rounds(2, 1) == 1 && rng.IntN(3) > 0 {
						continue
					}
					s.Wipe(t)
					allowing("~*")
					names := make([]string, keys)
					of := make([]listed, keys)
					for i := range keys {
						names[i] = l.Of(fmt.Sprint("good", i))
						of[i] = ops[(first+keys+i-at)%len(ops)]
						if i == at {
							names[i] = l.Of("bad")
						}
						if of[i].prepare != nil {
							of[i].prepare(t, names[i])
						}
					}
					about := fmt.Sprintf("%s: %s by %s at %d", l.name, way, of[at].name, at)
					switch way {
					case "of another type":
						require.NoError(t, admin.Del(ctx, bad).Err())
						require.NoError(t, admin.SAdd(ctx, bad, "x").Err())
					case "damaged":
						require.NoError(t, admin.Del(ctx, bad).Err())
						require.NoError(t, l.corrupt(admin, bad))
					case "forbidden":
						allowing("~*{good*")
					}
					before := admin.Dump(ctx, bad).Val()
					errs := make([]error, keys)
					var calls []func()
					for i := range keys {
						calls = append(calls, func() { errs[i] = of[i].do(ctx, names[i]) })
					}
					if several.call(func(i int) { l.take(l.Of(fmt.Sprint("good", keys+i))) }, calls) {
						lists[way]++
					}
					after := admin.Dump(ctx, bad).Val()
					allowing("~*")
					for i, err := range errs {
						if i != at {
							require.NoError(t, err, "%s; %d is %s", about, i, of[i].name)
							require.Equal(t, 3-of[i].takes, must(t)(l.peek(ctx, names[i])).Remaining, "%s; %d is %s", about, i, of[i].name)
							continue
						}
						require.Error(t, err, about)
						require.Equal(t, kind, errclass.Of(err).Class, "%s: %v", about, err)
						require.ErrorContains(t, err, fmt.Sprintf("key %q", names[i]), about)
						require.Equal(t, before, after, about)
					}
				}
			}
		}
	}
	t.Log(lists)
	for _, way := range []string{"of another type", "damaged", "forbidden"} {
		require.Positive(t, lists[way], way)
	}
}

// TestAKeyThatFailsAmongSeveralLimits: a call of several limits that finds one key of another type, or one that the
// server's user may not touch, at each place, says which, and takes from none.
func TestAKeyThatFailsAmongSeveralLimits(t *testing.T) {
	server := redistest.Start(t, redistest.ACL("limiter", append(limitertest.LeastPrivilege(), "~*")...))
	admin := server.Client(t)
	s := limitertest.OnClock(server.Client(t, limitertest.AsLimiter), admin)
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerHour(1), 100, s.Opts...))
	window := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 100, time.Hour, s.Opts...))
	log := ratelimit.Must(ratelimit.NewSlidingLog(s.Client, []ratelimit.Rule{{Limit: 100, Window: time.Hour}}, s.Opts...))
	for _, d := range damagedLimiters(t) {
		claim := d.build(s.Client, s.Opts...)
		bad := strings.Replace(d.key, "{k}", "{bad}", 1)
		for way, kind := range map[string]errclass.Class{"of another type": errclass.Damaged, "forbidden": errclass.Mistake} {
			for at := range 4 {
				for _, call := range []func(context.Context, ...ratelimit.Claim) (ratelimit.AllResult, error){
					ratelimit.TryAcquireAll, ratelimit.Look, ratelimit.TryAcquireAcrossSlots,
				} {
					s.Wipe(t)
					require.NoError(t, admin.ACLSetUser(ctx, "limiter", "resetkeys", "~*").Err())
					all := []ratelimit.Claim{ratelimit.ClaimOf(bucket, "good", 1), ratelimit.ClaimOf(window, "good", 1), ratelimit.ClaimOf(log, "good", 1)}
					_, err := call(ctx, append(slices.Clone(all), claim("good", 1))...)
					require.NoError(t, err)
					if way == "of another type" {
						require.NoError(t, admin.SAdd(ctx, bad, "x").Err())
					} else {
						require.NoError(t, admin.ACLSetUser(ctx, "limiter", "resetkeys", "~*{good*").Err())
					}
					before := everything(t, s)
					_, err = call(ctx, slices.Insert(all, at, claim("bad", 1))...)
					about := fmt.Sprintf("%s: %s at %d: %v", d.name, way, at, err)
					require.Error(t, err, about)
					require.Equal(t, kind, errclass.Of(err).Class, about)
					require.Equal(t, before, everything(t, s), about)
				}
			}
		}
	}
}

// TestAForbiddenKeyBesideOtherCallsOfSeveralLimits: of calls of several limits in one execution, only that fails whose key
// the server's user may not touch.
func TestAForbiddenKeyBesideOtherCallsOfSeveralLimits(t *testing.T) {
	server := redistest.Start(t, redistest.ACL("limiter", append(limitertest.LeastPrivilege(), "~*{good*")...))
	client := server.Client(t, limitertest.AsLimiter)
	several := newLister(client)
	users := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), 3, ratelimit.WithName("users")))
	addresses := ratelimit.Must(ratelimit.NewFixedWindow(client, 3, time.Hour, ratelimit.WithName("addresses")))
	try := func(key string) error {
		r, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(users, key, 1), ratelimit.ClaimOf(addresses, key, 1))
		return denialOrError(r.Result, err)
	}
	const bad = 2
	var calls []func()
	errs := make([]error, 5)
	for i := range errs {
		key := fmt.Sprint("good", i)
		if i == bad {
			key = "bad"
		}
		calls = append(calls, func() { errs[i] = try(key) })
	}
	for range 5 {
		if clear(errs); several.call(func(i int) { _ = try(fmt.Sprint("good", 100+i)) }, calls) {
			break
		}
	}
	for i, err := range errs {
		if i == bad {
			require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
			require.ErrorContains(t, err, "NOPERM")
		} else {
			require.NoError(t, err)
			require.Equal(t, 2, must(t)(users.Peek(ctx, fmt.Sprint("good", i))).Remaining)
		}
	}
}
