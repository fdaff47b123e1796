package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	redis_rate "github.com/go-redis/redis_rate/v10"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/bench/internal/stats"
	"github.com/tryacquire/ratelimit/internal/redistest"
)

// Several limits at once: per user, per address and for all, as one decision, and as the
// calls that one would make by hand.
const (
	allAtOnce    = "AcquireAll"
	threeCalls   = "three calls of this library"
	threeByOther = "three calls of " + reference
)

// severalContestants decide on three limits for each key. The third has one key in common.
func severalContestants() []contestant {
	return []contestant{
		{name: allAtOnce, only: allowed, open: openAllAtOnce},
		{name: threeCalls, only: allowed, open: openThreeCalls},
		{name: threeByOther, kind: peer, only: allowed, open: openThreeByOther},
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
	all, err = ratelimit.NewSlidingWindow(b.client, plenty, logWindow, prefix)
	return
}

const everybody = "everybody"

func openAllAtOnce(b *testbed, _ verdict, tag string) (decide, error) {
	user, address, all, err := limitsOf(b, tag)
	return func(ctx context.Context, key string) (bool, error) {
		r, err := ratelimit.AcquireAll(ctx, user.Claim(key, 1), address.Claim(key, 1), all.Claim(everybody, 1))
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

const severalHeading = "## Several limits at once"

// several measures the contestants of several limits, and puts the table into results.md
// in place of the former one.
func several(ctx context.Context, h *host, o options) error {
	server := redistest.Start(h)
	bed, err := newTestbed(h, server, server.Addr())
	if err != nil {
		return err
	}
	keys := users(manyKeys)
	entrants, err := enter(ctx, bed, severalContestants(), o, keys)
	if err != nil {
		return err
	}
	cells := []cell{{1, manyKeys, allowed}, {manyCalls, manyKeys, allowed}}
	got := map[cell]map[string][]sample{}
	for round := range o.rounds {
		for _, c := range cells {
			if got[c] == nil {
				got[c] = map[string][]sample{}
			}
			for i := range entrants {
				e := entrants[(i+round)%len(entrants)]
				progress("several limits, round %d of %d: %s, %s", round+1, o.rounds, e.name, c)
				l := load{contestant: e.contestant, decide: e.decide, verdict: allowed, callers: c.callers, keys: keys[:c.keys]}
				s, err := l.measure(ctx, bed, o.duration)
				if err != nil {
					return err
				}
				got[c][e.name] = append(got[c][e.name], s)
			}
		}
	}
	where, err := setting(ctx, server.Client(h), o)
	if err != nil {
		return err
	}
	var r report
	r.paragraph(severalHeading)
	r.paragraph("Made by `go run . -several` on %s, apart from the rest of this page. %s", time.Now().UTC().Format(time.DateOnly), where)
	r.paragraph("Each decision is on three limits: a token bucket and a fixed window of each of 10,000 users, and a sliding window (Hash) for "+
		"all of them; %s decides on three buckets. Ratios are medians of those of each round, with the interval of the median; a decision is "+
		"all three limits.", reference)
	for _, c := range cells {
		t := table{title: c.String(), header: []string{"", "decisions/s", "× " + threeByOther, "p50", "server µs", "server µs, × " + threeCalls}}
		for _, e := range entrants {
			mine := got[c][e.name]
			column := func(metric int) []float64 {
				var values []float64
				for _, s := range mine {
					values = append(values, s[metric])
				}
				return values
			}
			ratio := func(metric int, of string) []float64 {
				var values []float64
				for i, s := range mine {
					values = append(values, s[metric]/got[c][of][i][metric])
				}
				return values
			}
			t.add(e.name, number(stats.Median(column(perSecond))), interval(ratio(perSecond, threeByOther)),
				latency(stats.Median(column(p50))), number(stats.Median(column(serverTime))), interval(ratio(serverTime, threeCalls)))
		}
		r.table(t)
	}
	section := r.String()
	progress("")
	fmt.Print(section)
	former, err := os.ReadFile(filepath.Join(o.out, "results.md"))
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	return save(o, "results.md", replaceSection(string(former), severalHeading, section))
}
