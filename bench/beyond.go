package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	redis_rate "github.com/go-redis/redis_rate/v10"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/bench/internal/stats"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// What goes beyond one permit of one key: several limits at once, costs that are settled
// afterwards, permits in flight, and waiting. The peer of each is what one would write by
// hand on the reference.

// A match compares ways to do one thing. The first is this library's, the last is by hand.
type match struct {
	title, about string
	contestants  []contestant
	against      string // what the ratios are of; empty: what is by hand
	keys         int    // 0: manyKeys
}

func matches() []match {
	return []match{
		{
			title: "Calls of every kind",
			about: "A token bucket over 1,000 keys, and contexts that can be cancelled. An estimate is of ten permits, of which seven are settled.",
			contestants: []contestant{
				{name: tryAcquire, only: allowed, cancellable: true, open: limiter(tokenBucket)},
				{name: "TryAcquireUpTo", only: allowed, cancellable: true, open: openUpTo},
				{name: "Charge", only: allowed, cancellable: true, open: openCharging},
				{name: "Estimate and Settle", only: allowed, cancellable: true, open: openSettling},
				{name: "Reserve", only: allowed, cancellable: true, open: openReserving},
				{name: "Reserve, in debt", only: allowed, cancellable: true, open: openReservingInDebt},
				{name: "InFlight, TryAcquire and Release", only: allowed, cancellable: true, open: openInFlight},
				{name: "Hash window, Estimate and Settle", only: allowed, cancellable: true, open: openSettlingHash},
				{name: "sliding log, Estimate and Settle", only: allowed, cancellable: true, open: openSettlingLog},
				{name: "TryAcquire, a plan of 1,000", only: allowed, cancellable: true, open: openPlans},
				{name: "two calls of " + reference, kind: peer, only: allowed, cancellable: true, open: openTwoByOther},
				{name: reference, kind: peer, only: allowed, cancellable: true, open: openOneByOther},
			},
			against: tryAcquire, keys: 1000,
		},
		{
			title: "A limit that comes with each call",
			about: "Each of 10,000 keys has a token bucket of another burst, which `TokenBucket.With` looks up. Aimed at: 0.80 × with 256 callers.",
			contestants: []contestant{
				{name: "a limit of 10,000", only: allowed, cancellable: true, open: openLimits},
				{name: "one limit", only: allowed, cancellable: true, open: limiter(tokenBucket)},
			},
		},
		{
			title: "Several limits at once",
			about: "A decision takes permits from three limits: a token bucket and a fixed window of each user, and a sliding window (Hash) for all users together. " +
				reference + " decides on three buckets. Aimed at: 5 × with 256 callers, 3 × with one.",
			contestants: []contestant{
				{name: "TryAcquireAll", only: allowed, open: openAllAtOnce},
				{name: "three calls of this library", only: allowed, open: openThreeCalls},
				{name: "three calls of " + reference, kind: peer, only: allowed, open: openThreeByOther},
			},
		},
		{
			title: "A plan of each user beside one limit",
			about: "A decision takes permits from a token bucket of the user's plan and from a fixed window for all users together. Each of 10,000 keys has one of 1,000 plans.",
			contestants: []contestant{
				{name: "a plan of 1,000 and a limit for all", only: allowed, cancellable: true, open: openPlansBeside(1000)},
				{name: "one plan and a limit for all", only: allowed, cancellable: true, open: openPlansBeside(1)},
			},
		},
		{
			title: "Requests, tokens and a place",
			about: "A decision takes a request from a fixed window, an estimate of ten tokens from a token bucket, and a permit in flight; then it settles seven " +
				"tokens and gives the permit back. Contexts can be cancelled. By hand means five commands: three of " + reference + ", INCR, and DECR. Aimed at: 5 × with 256 callers.",
			contestants: []contestant{
				{name: "TryAcquireAll, Settle and Release", only: allowed, cancellable: true, open: openWork},
				{name: "five commands", kind: peer, only: allowed, cancellable: true, open: openWorkByHand},
			},
			keys: 1000,
		},
		{
			title: "An estimate that is settled",
			about: "A decision takes an estimate of ten permits from a token bucket, and settles seven. " + reference + " cannot give permits back: it takes seven, " +
				"and three in a second call.",
			contestants: []contestant{
				{name: "Estimate and Settle", only: allowed, open: openSettling},
				{name: "two calls of " + reference, kind: peer, only: allowed, open: openTwoByOther},
			},
		},
		{
			title: "Permits in flight",
			about: "A decision takes a permit and gives it back. By hand means INCR and then DECR: a process that crashes in between leaves its permit taken for ever.",
			contestants: []contestant{
				{name: "InFlight, TryAcquire and Release", only: allowed, open: openInFlight},
				{name: "INCR and DECR", kind: peer, only: allowed, open: openCounter},
			},
		},
	}
}

// limitsOf are a token bucket, a fixed window and a sliding window.
func limitsOf(b *testbed, tag string) (user *ratelimit.TokenBucket, address *ratelimit.FixedWindow, all *ratelimit.SlidingWindow, err error) {
	prefix := ratelimit.WithPrefix(tag)
	rate, burst := bucket(allowed)
	if user, err = ratelimit.NewTokenBucket(b.client, rate, burst, prefix); err != nil {
		return
	}
	if address, err = ratelimit.NewFixedWindow(b.client, plenty, plentyWindow, prefix); err != nil {
		return
	}
	all, err = ratelimit.NewSlidingWindow(b.client, plenty, logWindow, prefix, ratelimit.WithStorage(ratelimit.StorageHash))
	return
}

const everybody = "everybody"

func openAllAtOnce(b *testbed, _ verdict, tag string) (decide, error) {
	user, address, all, err := limitsOf(b, tag)
	return func(ctx context.Context, key string) (bool, error) {
		r, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(user, key, 1), ratelimit.ClaimOf(address, key, 1), ratelimit.ClaimOf(all, everybody, 1))
		return r.Allowed, err
	}, err
}

func openThreeCalls(b *testbed, _ verdict, tag string) (decide, error) {
	user, address, all, err := limitsOf(b, tag)
	return func(ctx context.Context, key string) (bool, error) {
		r, err := user.TryAcquire(ctx, key)
		if err != nil || !r.Allowed {
			return false, err
		}
		if r, err = address.TryAcquire(ctx, key); err != nil || !r.Allowed {
			return false, err
		}
		r, err = all.TryAcquire(ctx, everybody)
		return r.Allowed, err
	}, err
}

func openThreeByOther(b *testbed, _ verdict, tag string) (decide, error) {
	l := redis_rate.NewLimiter(b.client)
	rate, burst := bucket(allowed)
	limit := redis_rate.Limit{Rate: rate.Count, Period: rate.Period, Burst: burst}
	return func(ctx context.Context, key string) (bool, error) {
		for _, key := range []string{tag + "user:" + key, tag + "address:" + key, tag + everybody} {
			r, err := l.Allow(ctx, key, limit)
			if err != nil || r.Allowed == 0 {
				return false, err
			}
		}
		return true, nil
	}, nil
}

const tryAcquire = "TryAcquire"

func openUpTo(b *testbed, _ verdict, tag string) (decide, error) {
	rate, burst := bucket(allowed)
	l, err := ratelimit.NewTokenBucket(b.client, rate, burst, ratelimit.WithPrefix(tag))
	return func(ctx context.Context, key string) (bool, error) {
		taken, _, err := l.TryAcquireUpTo(ctx, key, 3)
		return taken == 3, err
	}, err
}

func openCharging(b *testbed, _ verdict, tag string) (decide, error) {
	rate, burst := bucket(allowed)
	l, err := ratelimit.NewTokenBucket(b.client, rate, burst, ratelimit.WithPrefix(tag))
	return func(ctx context.Context, key string) (bool, error) {
		r, err := l.Charge(ctx, key, 1)
		return r.Allowed, err
	}, err
}

func openOneByOther(b *testbed, _ verdict, tag string) (decide, error) {
	l := redis_rate.NewLimiter(b.client)
	rate, burst := bucket(allowed)
	limit := redis_rate.Limit{Rate: rate.Count, Period: rate.Period, Burst: burst}
	return func(ctx context.Context, key string) (bool, error) {
		r, err := l.Allow(ctx, tag+key, limit)
		return err == nil && r.Allowed > 0, err
	}, nil
}

func openSettling(b *testbed, _ verdict, tag string) (decide, error) {
	rate, burst := bucket(allowed)
	l, err := ratelimit.NewTokenBucket(b.client, rate, burst, ratelimit.WithPrefix(tag))
	return func(ctx context.Context, key string) (bool, error) {
		ticket, r, err := l.Estimate(ctx, key, 10)
		if err != nil || !r.Allowed {
			return false, err
		}
		return true, ticket.Settle(ctx, 7)
	}, err
}

// openSettlingHash settles each estimate of a sliding window.
func openSettlingHash(b *testbed, _ verdict, tag string) (decide, error) {
	l, err := ratelimit.NewSlidingWindow(b.client, plenty, logWindow, ratelimit.WithPrefix(tag), ratelimit.WithStorage(ratelimit.StorageHash))
	return settled(l), err
}

// openSettlingLog settles each estimate of a sliding log.
func openSettlingLog(b *testbed, _ verdict, tag string) (decide, error) {
	l, err := ratelimit.NewSlidingLog(b.client, []ratelimit.Rule{{Limit: plenty, Window: logWindow}}, ratelimit.WithPrefix(tag))
	return settled(l), err
}

func settled(l ratelimit.Settler) decide {
	return func(ctx context.Context, key string) (bool, error) {
		ticket, r, err := l.Estimate(ctx, key, 10)
		if err != nil || !r.Allowed {
			return false, err
		}
		return true, ticket.Settle(ctx, 7)
	}
}

// openReserving reserves permits that are there.
func openReserving(b *testbed, _ verdict, tag string) (decide, error) {
	rate, burst := bucket(allowed)
	return reserving(b, rate, burst, tag)
}

// openReservingInDebt reserves permits of a second each, thousands a second.
func openReservingInDebt(b *testbed, _ verdict, tag string) (decide, error) {
	return reserving(b, ratelimit.PerSecond(1), 1, tag)
}

func reserving(b *testbed, rate ratelimit.Rate, burst int, tag string) (decide, error) {
	l, err := ratelimit.NewTokenBucket(b.client, rate, burst, ratelimit.WithPrefix(tag))
	return func(ctx context.Context, key string) (bool, error) {
		_, err := l.Reserve(ctx, key, 1, 100_000*time.Hour)
		return err == nil, err
	}, err
}

// openPlans has a limiter for each of a thousand plans, which have one name.
func openPlans(b *testbed, _ verdict, tag string) (decide, error) {
	var plans []*ratelimit.TokenBucket
	for i := range 1000 {
		rate, burst := bucket(allowed)
		l, err := ratelimit.NewTokenBucket(b.client, rate, burst-i, ratelimit.WithPrefix(tag))
		if err != nil {
			return nil, err
		}
		plans = append(plans, l)
	}
	return func(ctx context.Context, key string) (bool, error) {
		hash := fnv.New32a()
		_, _ = hash.Write([]byte(key))
		r, err := plans[hash.Sum32()%1000].TryAcquire(ctx, key)
		return r.Allowed, err
	}, nil
}

// openPlansBeside has limiters for so many plans, which have one name, and one limit for all users.
func openPlansBeside(plans int) func(b *testbed, _ verdict, tag string) (decide, error) {
	return func(b *testbed, _ verdict, tag string) (decide, error) {
		rate, burst := bucket(allowed)
		var all []*ratelimit.TokenBucket
		for i := range plans {
			l, err := ratelimit.NewTokenBucket(b.client, rate, burst-i, ratelimit.WithPrefix(tag))
			if err != nil {
				return nil, err
			}
			all = append(all, l)
		}
		total, err := ratelimit.NewFixedWindow(b.client, plenty, plentyWindow, ratelimit.WithPrefix(tag))
		return func(ctx context.Context, key string) (bool, error) {
			hash := fnv.New32a()
			_, _ = hash.Write([]byte(key))
			plan := all[int(hash.Sum32()%1000)%plans]
			r, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(plan, key, 1), ratelimit.ClaimOf(total, everybody, 1))
			return r.Allowed, err
		}, err
	}
}

// openLimits has a limit of its own for each key.
func openLimits(b *testbed, _ verdict, tag string) (decide, error) {
	rate, burst := bucket(allowed)
	buckets, err := ratelimit.NewTokenBucket(b.client, rate, burst, ratelimit.WithPrefix(tag))
	return func(ctx context.Context, key string) (bool, error) {
		number, err := strconv.Atoi(strings.TrimPrefix(key, "user:"))
		if err != nil {
			return false, err
		}
		l, err := buckets.With(rate, burst-number)
		if err != nil {
			return false, err
		}
		r, err := l.TryAcquire(ctx, key)
		return r.Allowed, err
	}, err
}

func openTwoByOther(b *testbed, _ verdict, tag string) (decide, error) {
	l := redis_rate.NewLimiter(b.client)
	rate, burst := bucket(allowed)
	limit := redis_rate.Limit{Rate: rate.Count, Period: rate.Period, Burst: burst}
	return func(ctx context.Context, key string) (bool, error) {
		r, err := l.AllowN(ctx, tag+key, limit, 7)
		if err != nil || r.Allowed == 0 {
			return false, err
		}
		r, err = l.AllowN(ctx, tag+key, limit, 3)
		return err == nil && r.Allowed > 0, err
	}, nil
}

func openInFlight(b *testbed, _ verdict, tag string) (decide, error) {
	l, err := ratelimit.NewInFlight(b.client, 1000, time.Minute, ratelimit.WithPrefix(tag))
	return func(ctx context.Context, key string) (bool, error) {
		hold, r, err := l.TryAcquire(ctx, key)
		if err != nil || !r.Allowed {
			return false, err
		}
		return true, hold.Release(ctx)
	}, err
}

// openWork is what a request to a language model takes.
func openWork(b *testbed, _ verdict, tag string) (decide, error) {
	tokens, requests, _, err := limitsOf(b, tag)
	if err != nil {
		return nil, err
	}
	running, err := ratelimit.NewInFlight(b.client, 1000, time.Minute, ratelimit.WithPrefix(tag))
	return func(ctx context.Context, key string) (bool, error) {
		r, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(requests, key, 1), ratelimit.ClaimOf(tokens, key, 10).Estimate(), ratelimit.ClaimHold(running, key, 1))
		if err != nil || !r.Allowed {
			return false, err
		}
		return true, errors.Join(r.Parts[1].Ticket.Settle(ctx, 7), r.Finish(ctx, nil))
	}, err
}

func openWorkByHand(b *testbed, verdict verdict, tag string) (decide, error) {
	request, err := openOneByOther(b, verdict, tag+"requests:")
	if err != nil {
		return nil, err
	}
	tokens, err := openTwoByOther(b, verdict, tag)
	if err != nil {
		return nil, err
	}
	place, err := openCounter(b, verdict, tag+"running:")
	return func(ctx context.Context, key string) (bool, error) {
		for _, decide := range []decide{request, tokens, place} {
			if ok, err := decide(ctx, key); err != nil || !ok {
				return false, err
			}
		}
		return true, nil
	}, err
}

func openCounter(b *testbed, _ verdict, tag string) (decide, error) {
	return func(ctx context.Context, key string) (bool, error) {
		held, err := b.client.Incr(ctx, tag+key).Result()
		if err != nil {
			return false, err
		}
		return held <= 1000, b.client.Decr(ctx, tag+key).Err()
	}, nil
}

const beyondHeading = "## Beyond one permit of one key"

// beyond measures the matches and waiting, and puts the tables into results.md in place of
// the former ones.
func beyond(ctx context.Context, h *host, o options) error {
	server := redistest.Start(h)
	proxy := redistest.NewProxy(h, server.Addr())
	bed, err := newTestbed(h, server, server.Addr())
	if err != nil {
		return err
	}
	where, err := setting(ctx, server.Client(h), o)
	if err != nil {
		return err
	}
	var r report
	r.paragraph(beyondHeading)
	r.paragraph("Made by `go run . -beyond` on %s, apart from the rest of this page. %s Ratios are medians of those of each round, with the "+
		"interval of the median.", time.Now().UTC().Format(time.DateOnly), where)
	distant, err := newTestbed(h, server, proxy.Addr())
	if err != nil {
		return err
	}
	for _, m := range matches() {
		if !o.only.MatchString(m.base()) { // the ratios are of it
			continue
		}
		t := m.table()
		proxy.Delay(0)
		for _, c := range []matchCell{{bed, 1, "one caller"}, {bed, manyCalls, fmt.Sprint(manyCalls, " callers")}, {distant, 1, fmt.Sprintf("one caller, %v each way", matchDelay)}} {
			if c.bed == distant {
				proxy.Delay(matchDelay)
			}
			if err := m.measure(ctx, c, &t, o); err != nil {
				return err
			}
		}
		r.table(t)
	}
	if err := waiters(ctx, bed, &r, o); err != nil {
		return err
	}
	return saveSection(o, beyondHeading, r.String())
}

// matchDelay is that of the network between a distant caller and the server.
const matchDelay = 500 * time.Microsecond

// A matchCell is who calls from where.
type matchCell struct {
	bed     *testbed
	callers int
	about   string
}

// base is what the ratios are of.
func (m match) base() string {
	return cmp.Or(m.against, m.contestants[len(m.contestants)-1].name)
}

func (m match) table() table {
	return table{title: m.title, note: m.about, header: []string{"", "decisions/s", "× " + m.base(), "p50", "server µs", "× " + m.base()}}
}

// measure measures the match in a cell, over many keys, and adds what it has found to the table.
func (m match) measure(ctx context.Context, c matchCell, t *table, o options) error {
	keys := users(cmp.Or(m.keys, manyKeys))
	entrants, err := enter(ctx, c.bed, m.contestants, o, keys)
	if err != nil {
		return err
	}
	samples := map[string][]sample{}
	for round := range o.rounds {
		for i := range entrants {
			e := entrants[(i+round)%len(entrants)]
			progress("%s, round %d of %d: %s, %s", m.title, round+1, o.rounds, e.name, c.about)
			l := load{contestant: e.contestant, decide: e.decide, verdict: allowed, callers: c.callers, keys: keys}
			s, err := l.measure(ctx, c.bed, o.duration)
			if err != nil {
				return err
			}
			samples[e.name] = append(samples[e.name], s)
		}
	}
	for _, e := range entrants {
		column := func(metric int) (values, ratios []float64) {
			for i, s := range samples[e.name] {
				values = append(values, s[metric])
				ratios = append(ratios, s[metric]/samples[m.base()][i][metric])
			}
			return values, ratios
		}
		rate, rateRatio := column(perSecond)
		server, serverRatio := column(serverTime)
		median, _ := column(p50)
		t.add(e.name+", "+c.about, number(stats.Median(rate)), interval(rateRatio), latency(stats.Median(median)),
			number(stats.Median(server)), interval(serverRatio))
	}
	return nil
}
