package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/chart"
)

// Three tenants live under one limit of 6 a second. Two of them ask for less than a third of it, and stop after a while. The
// third asks for more than all of it.
const (
	shared      = 6 // permits a second
	sharedBurst = 24
	tenants     = 3
	greedy      = "tenant:3"
)

// A traffic is the requests of a tenant: so many a second, at random instants within equal parts of it.
type traffic struct {
	tenant   string
	rate     float64
	from, to time.Duration
}

var neighbours = []traffic{
	{"tenant:1", 1.5, 0, 28 * seconds},
	{"tenant:2", 1.5, 0, 28 * seconds},
	{greedy, 15, 6 * seconds, 40 * seconds},
}

// A sharing is how the limit is divided.
type sharing struct {
	name, rule string
	limiter    func(ratelimit.Client) (ratelimit.Limiter, error)
	key        func(tenant string) string
}

func sharings() []sharing {
	rate := ratelimit.PerSecond(shared)
	return []sharing{
		{"one token bucket", "6 a second for all", func(c ratelimit.Client) (ratelimit.Limiter, error) {
			return ratelimit.NewTokenBucket(c, rate, sharedBurst)
		}, func(string) string { return "all" }},
		{"a bucket for each", "2 a second each", func(c ratelimit.Client) (ratelimit.Limiter, error) {
			return ratelimit.NewTokenBucket(c, ratelimit.PerSecond(shared/tenants), sharedBurst/tenants)
		}, func(tenant string) string { return tenant }},
		{"fair token bucket", "6 a second, in shares", func(c ratelimit.Client) (ratelimit.Limiter, error) {
			return ratelimit.NewFairTokenBucket(c, rate, sharedBurst)
		}, func(tenant string) string { return "{all}:" + tenant }},
	}
}

// requests are those of all neighbours, in their order.
func requests() []request {
	rng := rand.New(rand.NewPCG(1, 0))
	var all []request
	for _, n := range neighbours {
		part := time.Duration(float64(seconds) / n.rate)
		for at := n.from; at+part <= n.to; at += part {
			all = append(all, request{at + time.Duration(rng.Int64N(int64(part))).Truncate(time.Microsecond), n.tenant})
		}
	}
	slices.SortStableFunc(all, func(a, b request) int { return int(a.at - b.at) })
	return all
}

// A request is one of a tenant.
type request struct {
	at     time.Duration
	tenant string
}

// replay sends the requests. The answers are those of the two quiet tenants, and those of the greedy one.
func (s sharing) replay(ctx context.Context) (quiet, ofGreedy []answer, err error) {
	err = onClock(func(at func(time.Duration), client ratelimit.Client) error {
		limiter, err := s.limiter(client)
		if err != nil {
			return err
		}
		for _, r := range requests() {
			at(r.at)
			result, err := limiter.TryAcquire(ctx, s.key(r.tenant))
			if err != nil {
				return err
			}
			to := &quiet
			if r.tenant == greedy {
				to = &ofGreedy
			}
			*to = append(*to, answer{at: r.at, allowed: result.Allowed})
		}
		return nil
	})
	return quiet, ofGreedy, err
}

// neighbourPicture is the SVG of the neighbours under each sharing.
func neighbourPicture(ctx context.Context) ([]byte, error) {
	picture := chart.Events{
		Title: "A greedy neighbour: one limit of 6 a second, under three rules", Length: 40 * seconds, Marks: []time.Duration{6 * seconds, 28 * seconds},
		Notes: []chart.Note{
			{From: 0, To: 6 * seconds, Text: "two quiet tenants"}, {From: 6 * seconds, To: 28 * seconds, Text: "and a greedy one, 15 a second"},
			{From: 28 * seconds, To: 40 * seconds, Text: "the greedy one alone"},
		},
	}
	var words []string
	for _, s := range sharings() {
		quiet, ofGreedy, err := s.replay(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		for i, row := range []struct {
			who     string
			answers []answer
		}{{"the quiet ones", quiet}, {"the greedy one", ofGreedy}} {
			r := chart.EventRow{
				Result:     fmt.Sprintf("%d %% allowed", 100*allowed(row.answers)/len(row.answers)),
				Conclusion: fmt.Sprintf("of %d, %s", len(row.answers), row.who),
			}
			if i == 0 {
				r.Name, r.Detail = s.name, s.rule
			}
			for _, a := range row.answers {
				r.Events = append(r.Events, chart.Event{At: a.at, Allowed: a.allowed})
			}
			picture.Rows = append(picture.Rows, r)
			words = append(words, fmt.Sprintf("%s: %s %s", s.name, r.Result, r.Conclusion))
		}
	}
	picture.Text = strings.Join(words, "; ") + "."
	return []byte(picture.SVG()), nil
}
