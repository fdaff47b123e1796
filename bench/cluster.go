package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/bench/internal/stats"
	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/keyname"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// A node is a master, or the single server.
type node struct {
	name    string
	testbed *testbed
	places  []int // of the keys, among the users, that it holds
	perTime []float64
}

// spread measures how a load spreads over the masters of a cluster, and what a
// decision costs each of them and a single server.
func spread(ctx context.Context, h *host, o options) error {
	progress("starting a cluster")
	cluster := redistest.StartCluster(h)
	client := cluster.Client(h)
	single := redistest.Start(h)
	var nodes []*node
	for i, master := range cluster.Masters() {
		nodes = append(nodes, &node{name: fmt.Sprintf("master %d", i+1), testbed: &testbed{server: master, admin: master.Client(h), client: master.Client(h)}})
	}
	keys := users(manyKeys)
	if err := place(ctx, client, nodes, keys); err != nil {
		return err
	}
	alone := &node{name: "a server alone", testbed: &testbed{server: single, admin: single.Client(h), client: single.Client(h)}}
	for i := range keys {
		alone.places = append(alone.places, i)
	}
	if err := nodeCosts(ctx, append(nodes, alone), o); err != nil {
		return err
	}

	where, err := setting(ctx, alone.testbed.admin, o)
	if err != nil {
		return err
	}
	var r report
	r.paragraph("# Cluster")
	r.paragraph("%s Three masters. Made by `go run . -cluster`.", where)
	r.table(nodeCostTable(nodes, alone))
	for _, merge := range []bool{true, false} {
		t, err := clusterLoad(ctx, client, nodes, keys, merge, o)
		if err != nil {
			return err
		}
		r.table(t)
	}
	return r.finish(o, "cluster.md")
}

const clusterTag = "cluster"

// place finds out which node holds which key, by asking for each.
func place(ctx context.Context, c *redis.ClusterClient, nodes []*node, keys []string) error {
	for i, key := range keys {
		master, err := c.MasterForKey(ctx, keyname.NewHead(clusterTag, "default", algorithms.TokenBucket).Of(key))
		if err != nil {
			return err
		}
		found := false
		for _, n := range nodes {
			if n.testbed.server.Addr() == master.Options().Addr {
				n.places = append(n.places, i)
				found = true
			}
		}
		if !found {
			return fmt.Errorf("%s is on %s, which is no master", key, master.Options().Addr)
		}
	}
	return nil
}

// nodeCosts replays plain token buckets on one node at a time, so that they do
// not compete for the cores, in interleaved rounds.
func nodeCosts(ctx context.Context, nodes []*node, o options) error {
	rate, burst := bucket(allowed)
	replays := make([]replay, len(nodes))
	for i, n := range nodes {
		l, err := ratelimit.NewTokenBucket(n.testbed.client, rate, burst, ratelimit.WithPrefix(clusterTag), ratelimit.WithoutMerging())
		if err != nil {
			return err
		}
		decide, err := decider(l, nil)
		if err != nil {
			return err
		}
		first := user(n.places[0])
		rec, err := record(ctx, n.testbed, func(ctx context.Context, _ string) (bool, error) { return decide(ctx, first) })
		if err != nil {
			return err
		}
		at := 0
		replays[i] = replay{n.name, allowed, func() []any {
			at = (at + 1) % len(n.places)
			return rec.command(n.places[at], manyKeys)
		}, 1}
		if err := replays[i].send(ctx, n.testbed.admin, len(n.places)); err != nil {
			return err
		}
	}
	for round := range o.rounds {
		for i, n := range nodes {
			progress("server cost, round %d of %d: %s", round+1, o.rounds, n.name)
			paid, err := replays[i].measure(ctx, n.testbed.admin, o.duration)
			if err != nil {
				return err
			}
			n.perTime = append(n.perTime, paid.micros)
		}
	}
	return nil
}

func nodeCostTable(nodes []*node, alone *node) table {
	t := table{
		title:  "Server cost of a decision, by node",
		note:   "A plain token bucket that allows all calls, sent through a pipeline, one node at a time.",
		header: []string{"", "keys", "µs", "× alone"},
	}
	base := stats.Median(alone.perTime)
	for _, n := range append(nodes, alone) {
		own := stats.Median(n.perTime)
		t.add(n.name, thousands(len(n.places)), number(own), times(own/base))
	}
	return t
}

// clusterLoad has many callers ask through the cluster client.
func clusterLoad(ctx context.Context, c *redis.ClusterClient, nodes []*node, keys []string, merge bool, o options) (table, error) {
	name, opts := "plain", []ratelimit.Option{ratelimit.WithPrefix(clusterTag), ratelimit.WithoutMerging()}
	if merge {
		name, opts = "merged", opts[:1]
	}
	progress("load on the cluster, %s", name)
	rate, burst := bucket(allowed)
	l, err := ratelimit.NewTokenBucket(c, rate, burst, opts...)
	if err != nil {
		return table{}, err
	}
	holder := make([]int, len(keys))
	for i, n := range nodes {
		for _, at := range n.places {
			holder[at] = i
		}
	}
	if err := visit(ctx, func(ctx context.Context, key string) (bool, error) {
		r, err := l.TryAcquire(ctx, key)
		return r.Allowed, err
	}, keys); err != nil {
		return table{}, err
	}
	before := make([]tally, len(nodes))
	for i, n := range nodes {
		if before[i], err = takeTally(ctx, n.testbed.admin); err != nil {
			return table{}, err
		}
	}
	decided, elapsed, err := askAll(ctx, l, keys, holder, len(nodes), time.Duration(o.rounds)*o.duration)
	if err != nil {
		return table{}, err
	}
	total := 0
	for _, n := range decided {
		total += n
	}
	t := table{
		title: fmt.Sprintf("Load on three masters, %s: %s decisions/s", name, number(float64(total)/elapsed.Seconds())),
		note: fmt.Sprintf("%d callers, %s keys. All servers and the callers share %s.", manyCalls, thousands(len(keys)),
			"the cores, so that server time includes waiting for one"),
		header: []string{"", "share of decisions", "executions", "server µs", "server CPU µs"},
	}
	for i, n := range nodes {
		after, err := takeTally(ctx, n.testbed.admin)
		if err != nil {
			return table{}, err
		}
		cost, own := after.since(before[i]), float64(decided[i])
		t.add(n.name, percent(own/float64(total)), thousands(cost.commands["evalsha"].calls),
			number(cost.scripts()/own), number(cost.cpu/own))
	}
	return t, nil
}

// askAll calls from many goroutines for d, and counts the decisions by holder.
func askAll(ctx context.Context, l ratelimit.Limiter, keys []string, holder []int, holders int, d time.Duration) ([]int, time.Duration, error) {
	var mu sync.Mutex // guards total and failed
	total := make([]int, holders)
	var failed error
	var wg sync.WaitGroup
	start := time.Now()
	for c := range manyCalls {
		wg.Go(func() {
			own := make([]int, holders)
			var err error
			// A step that has no factor with the number of keys visits all.
			for at := c * 39; err == nil && time.Since(start) < d; at += 7919 {
				i := at % len(keys)
				if _, err = l.TryAcquire(ctx, keys[i]); err == nil {
					own[holder[i]]++
				}
			}
			mu.Lock()
			defer mu.Unlock()
			for h, n := range own {
				total[h] += n
			}
			if err != nil {
				failed = err
			}
		})
	}
	wg.Wait()
	return total, time.Since(start), failed
}
