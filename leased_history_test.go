package ratelimit_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

// A spending is permits that were used at some time within a call.
type spending struct {
	from, to time.Time
	n        int
}

// excess is by how much the permits that were surely used within some interval exceed burst + rate × the interval, of which
// Redis sees whole microseconds: it may take an interval for one microsecond longer.
func excess(used []spending, rate float64, burst int) (worst float64) {
	worst = -float64(burst)
	used = slices.Clone(used)
	slices.SortFunc(used, func(a, b spending) int { return a.to.Compare(b.to) })
	for _, a := range used {
		n := 0
		for _, u := range used {
			if !u.from.Before(a.from) {
				n += u.n
				worst = max(worst, float64(n-burst)-rate*(u.to.Sub(a.from)+time.Microsecond).Seconds())
			}
		}
	}
	return worst
}

// TestProcessesWithSlicesKeepTheRule: random histories of processes that lease, of plain callers, and of another rule of the
// same name, with estimates, reservations, lost and late replies, callers who leave, and processes that close or die.
func TestProcessesWithSlicesKeepTheRule(t *testing.T) {
	processesKeepTheRule(t, newLeasedHistory, 400, 12)
}

// TestProcessesWithSlicesKeepALog: the same of sliding windows and logs.
func TestProcessesWithSlicesKeepALog(t *testing.T) {
	processesKeepTheRule(t, newLoggedHistory, 200, 6)
}

func processesKeepTheRule(t *testing.T, begin func(*ratelimittest.Env, *rand.Rand) *leasedHistory, full, usual int) {
	raceflag.SkipSequential(t)
	rng := model.Seeded(limitertest.Seed(t))
	var here, all, both, asked int
	tightest := -1000.0
	rounds := limitertest.Rounds(full, usual)
	for range rounds {
		inBubble(t, func(t *testing.T, e *ratelimittest.Env) {
			h := begin(e, rng).andAnother()
			for range 60 {
				h.step(t)
			}
			e.Up()
			e.Advance(10 * time.Second)
			worst := excess(h.used, h.rate, h.burst)
			if h.window > 0 {
				worst = float64(excessInWindow(h.used, h.window, h.burst))
			}
			require.LessOrEqual(t, worst, 1e-6, "%+v", h.used)
			require.LessOrEqual(t, excess(h.both, 100, 50), 1e-6, "%+v", h.both)
			both, asked = both+len(h.both), asked+h.asked
			tightest = max(tightest, worst)
			for _, u := range h.used {
				all += u.n
			}
			here += h.here
		})
	}
	t.Logf("%d permits were used, %d of them of slices; the rule was met but for %.2f permits; %d calls asked for permits of "+
		"two limits, of which the second allowed %d", all, here, -tightest, asked, both)
	if rounds > 1 {
		require.Greater(t, 20*here, all, "a twentieth of the permits")
		require.Greater(t, tightest, -2.0)
	}
}

type leasedHistory struct {
	env     *ratelimittest.Env
	rng     *rand.Rand
	rate    float64       // the fastest
	burst   int           // the largest
	window  time.Duration // of logs: the shortest
	buckets []ratelimit.Limiter
	leased  []*ratelimit.Leased // by all buckets, several each
	of      []ratelimit.Limiter
	second  ratelimit.Limiter // of 100 a second and 50 at once, which some calls ask too
	other   ratelimit.Limiter // the same with slices

	mu    sync.Mutex // guards what follows
	used  []spending
	here  int
	both  []spending // of other
	asked int        // calls of both
}

// andAnother adds the limit that calls of several limits ask too.
func (h *leasedHistory) andAnother() *leasedHistory {
	h.second = ratelimit.Must(ratelimit.NewTokenBucket(h.env.Client(), ratelimit.PerSecond(100), 50, ratelimit.WithName("other")))
	h.other = ratelimit.Must(ratelimit.NewLeased(h.second))
	return h
}

func newLeasedHistory(e *ratelimittest.Env, rng *rand.Rand) *leasedHistory {
	h := &leasedHistory{env: e, rng: rng}
	leaky := rng.IntN(2) == 0
	for range 1 + rng.IntN(2) {
		count, burst := 20+rng.IntN(300), 40+rng.IntN(200)
		h.rate, h.burst = max(h.rate, float64(count)), max(h.burst, burst)
		var l ratelimit.Limiter
		if leaky {
			l = ratelimit.Must(ratelimit.NewLeakyBucket(e.Client(), ratelimit.PerSecond(count), burst, ratelimit.WithExactReturns()))
		} else {
			l = ratelimit.Must(ratelimit.NewTokenBucket(e.Client(), ratelimit.PerSecond(count), burst, ratelimit.WithExactReturns()))
		}
		h.buckets = append(h.buckets, l)
		for range 1 + rng.IntN(3) {
			h.leased, h.of = append(h.leased, ratelimit.Must(ratelimit.NewLeased(l))), append(h.of, l)
		}
	}
	return h
}

// newLoggedHistory is about logs that the processes share.
func newLoggedHistory(e *ratelimittest.Env, rng *rand.Rand) *leasedHistory {
	h := &leasedHistory{env: e, rng: rng, window: time.Hour}
	kind := rng.IntN(3)
	for range 1 + rng.IntN(2) {
		limit, window := 40+rng.IntN(300), time.Duration(5+rng.IntN(20))*200*time.Millisecond
		var l ratelimit.Limiter
		switch parts := ratelimit.WithSubWindows(2 << rng.IntN(2)); kind {
		case 0:
			l = ratelimit.Must(ratelimit.NewSlidingWindow(e.Client(), limit, window, parts))
		case 1:
			l = ratelimit.Must(ratelimit.NewSlidingWindow(e.Client(), limit, window, parts, ratelimit.WithStorage(ratelimit.StorageHash)))
		case 2:
			l = ratelimit.Must(ratelimit.NewSlidingLog(e.Client(), []ratelimit.Rule{{Limit: limit, Window: window}, {Limit: 2 * limit, Window: 5 * window}},
				ratelimit.WithResolution(time.Duration(100+rng.IntN(300))*time.Millisecond)))
		}
		h.window, h.burst = min(h.window, window), max(h.burst, limit)
		h.rate = float64(h.burst) / h.window.Seconds()
		h.buckets = append(h.buckets, l)
		for range 1 + rng.IntN(3) {
			h.leased, h.of = append(h.leased, ratelimit.Must(ratelimit.NewLeased(l))), append(h.of, l)
		}
	}
	return h
}

// excessInWindow is by how much the permits that were surely used within some window exceed the limit.
func excessInWindow(used []spending, window time.Duration, limit int) int {
	worst := -limit
	for _, a := range used {
		n := 0
		for _, u := range used {
			if !u.from.Before(a.from) && u.to.Sub(a.from) < window {
				n += u.n
			}
		}
		worst = max(worst, n-limit)
	}
	return worst
}

func (h *leasedHistory) uses(u spending, here bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.used = append(h.used, u)
	if here {
		h.here += u.n
	}
}

func (h *leasedHistory) take(ctx context.Context, l ratelimit.Limiter, n int) {
	from := time.Now()
	if r, err := l.TryAcquireN(ctx, "k", n); err == nil && r.Allowed {
		h.uses(spending{from, time.Now(), n}, r.Leased)
	}
}

// takeBoth takes n permits of a bucket with slices, and one of another, or none.
func (h *leasedHistory) takeBoth(t *testing.T, i, n int) {
	from, allowed, leased := time.Now(), false, false
	var err error
	if h.rng.IntN(2) == 0 {
		n = 1
		var r ratelimit.Result
		r, err = ratelimit.Must(ratelimit.NewAll(h.of[i], h.second)).TryAcquire(ctx, "k")
		allowed, leased = r.Allowed, r.Leased
	} else {
		var all ratelimit.AllResult
		all, err = ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(h.leased[i], "k", n), ratelimit.ClaimOf(h.other, "k", 1))
		allowed = all.Allowed
		for _, part := range all.Parts {
			leased = leased || part.Result.Leased
		}
	}
	require.False(t, leased, "Redis was asked")
	h.asked++
	if err == nil && allowed {
		h.uses(spending{from, time.Now(), n}, false)
		h.both = append(h.both, spending{from, time.Now(), 1})
	}
}

func (h *leasedHistory) step(t *testing.T) {
	rng, i := h.rng, h.rng.IntN(len(h.leased))
	bucket := h.buckets[rng.IntN(len(h.buckets))]
	switch rng.IntN(40) {
	case 0:
		h.env.LoseReplies(1)
	case 1:
		h.env.Slow(time.Duration(1+rng.IntN(80)) * time.Millisecond)
	case 2:
		h.env.Up()
	case 3: // a process ends, and a new one begins
		if rng.IntN(2) == 0 {
			_ = h.leased[i].Close(ctx)
		}
		h.leased[i] = ratelimit.Must(ratelimit.NewLeased(h.of[i]))
	case 4:
		from, n := time.Now(), 1+rng.IntN(10)
		if ticket, _, err := bucket.(ratelimit.Settler).Estimate(ctx, "k", n); err == nil && ticket != nil {
			took, actual, hold := time.Now(), rng.IntN(n+1), time.Duration(rng.IntN(200))*time.Millisecond
			h.uses(spending{from, took, actual}, false)
			go func() {
				time.Sleep(hold)
				if ticket.Settle(ctx, actual) != nil {
					return
				}
			}()
		}
	case 5:
		n := 1 + rng.IntN(10)
		if r, err := h.leased[i].Reserve(ctx, "k", n, time.Second); err == nil {
			if due := time.Now().Add(r.Delay()); r.Delay() > 0 && rng.IntN(2) == 0 {
				_ = r.Cancel(ctx)
			} else {
				h.uses(spending{due, due, n}, false)
			}
		}
	case 6:
		soon, cancel := context.WithTimeout(ctx, time.Duration(1+rng.IntN(30))*time.Millisecond)
		defer cancel()
		h.take(soon, h.leased[i], 1)
	case 7, 8, 9:
		for range 1 + rng.IntN(10) {
			h.take(ctx, bucket, 1+rng.IntN(3))
		}
	case 10:
		h.env.Advance(time.Duration(rng.IntN(1500)) * time.Millisecond)
	case 13, 14, 15: // slices are spent at the last moment, or after it, when others have taken what came back
		refill, later := float64(h.burst)/h.rate*float64(time.Second), 0.6*rng.Float64()
		if rng.IntN(2) == 0 { // and which were taken when nothing was missing
			h.env.Advance(time.Duration(refill))
			for _, l := range h.leased {
				for range 3 {
					h.take(ctx, l, 1)
				}
			}
			later = 0.15 + 0.1*rng.Float64()
		}
		h.env.Advance(time.Duration(later * refill))
		for range 2 * h.burst {
			if r, err := bucket.Peek(ctx, "k"); err != nil || !r.Allowed {
				break
			}
			h.take(ctx, bucket, 1)
		}
		for _, l := range h.leased {
			for range 50 {
				h.take(ctx, l, 1)
			}
		}
	case 16, 17, 18, 19: // slices of both are out while calls ask for permits of both
		for range 1 + rng.IntN(20) {
			from := time.Now()
			if r, err := h.other.TryAcquire(ctx, "k"); err == nil && r.Allowed {
				h.both = append(h.both, spending{from, time.Now(), 1})
			}
			h.takeBoth(t, i, 1+rng.IntN(3))
			h.env.Advance(time.Duration(rng.IntN(5)) * time.Millisecond)
		}
	case 11, 12:
		for range 1 + rng.IntN(30) {
			go h.take(ctx, h.leased[i], 1)
		}
		synctest.Wait()
	default:
		pause := time.Duration(rng.IntN(6)) * time.Millisecond
		for range 1 + rng.IntN(80) {
			h.env.Advance(pause)
			n := 1
			if rng.IntN(10) == 0 {
				n = 1 + rng.IntN(4)
			}
			h.take(ctx, h.leased[i], n)
		}
	}
}
