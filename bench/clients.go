package main

import (
	"context"
	"strings"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/bench/internal/stats"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
	"github.com/tryacquire/ratelimit/rueidisclient"
	"github.com/tryacquire/ratelimit/valkeyclient"
)

// onClients are fixed windows: this library's on each client, that of the client's own library, and the script that a
// user of the client writes.
func onClients() []contestant {
	on := func(name string, client func(b *testbed) ratelimit.Client) contestant {
		return contestant{name: name, only: allowed, open: func(b *testbed, v verdict, tag string) (decide, error) {
			return decider(fixedWindow(client(b), v, ratelimit.WithPrefix(tag)))
		}}
	}
	return []contestant{
		on("on go-redis", func(b *testbed) ratelimit.Client {
			if b.cluster != nil {
				return b.cluster
			}
			return b.client
		}),
		on("on rueidis", func(b *testbed) ratelimit.Client { return rueidisclient.New(b.rueidis) }),
		{name: "rueidislimiter", kind: peer, only: allowed, open: openRueidisLimiter},
		{name: "rueidis by hand", kind: peer, only: allowed, open: openRueidis},
		on("on valkey-go", func(b *testbed) ratelimit.Client { return valkeyclient.New(b.valkey) }),
		{name: "valkeylimiter", kind: peer, only: allowed, open: openValkeyLimiter},
		{name: "valkey-go by hand", kind: peer, only: allowed, open: openValkey},
	}
}

var (
	clientCallers = []int{1, 8, 64, manyCalls}
	clientKeys    = []int{hotKey, 1000}
)

// clusterTestbed has the clients of three masters.
func clusterTestbed(h *host) (*testbed, error) {
	cluster := redistest.StartCluster(h)
	masters := cluster.Masters()
	b := &testbed{server: masters[0], admin: masters[0].Client(h), cluster: cluster.Client(h)}
	for _, other := range masters[1:] {
		b.others = append(b.others, other.Client(h))
	}
	return b, b.openOthers(h, masters[0].Addr())
}

// byRound has what was measured of each contestant in each cell, round by round.
type byRound map[cell]map[string][]float64

func (b byRound) add(c cell, name string, value float64) {
	if b[c] == nil {
		b[c] = map[string][]float64{}
	}
	b[c][name] = append(b[c][name], value)
}

// measureClients has decisions a second, and microseconds of all processors for a decision.
func measureClients(ctx context.Context, b *testbed, o options) (rates, costs byRound, err error) {
	keys := users(1000)
	entrants, err := enter(ctx, b, onClients(), o, keys)
	if err != nil {
		return nil, nil, err
	}
	rates, costs = byRound{}, byRound{}
	for round := range o.rounds {
		for _, callers := range clientCallers {
			for _, n := range clientKeys {
				c := cell{callers, n, allowed}
				progress("clients, round %d of %d: %s", round+1, o.rounds, c)
				for i := range entrants {
					e := entrants[(i+round)%len(entrants)]
					l := load{contestant: e.contestant, decide: e.decide, verdict: allowed, callers: callers, keys: keys[:n]}
					s, err := l.measure(ctx, b, o.duration)
					if err != nil {
						return nil, nil, err
					}
					rates.add(c, e.name, s[perSecond])
					costs.add(c, e.name, s[processors])
				}
			}
		}
	}
	return rates, costs, nil
}

// clientTable has a row for each cell, with ratios that are taken in each round.
func clientTable(title string, rates byRound) table {
	t := table{
		title: title,
		note: "Fixed windows, in decisions a second. *By hand* is INCRBY and PEXPIRE in a script, sent by the client's own `Lua` type. " +
			"Ratios are taken in each round; from six rounds on, brackets have the interval of their median with a confidence of at least 95 %.",
		header: []string{"", "on rueidis", "× rueidislimiter", "× by hand", "× on go-redis", "on valkey-go", "× valkeylimiter", "× by hand", "× on go-redis"},
	}
	for _, n := range clientKeys {
		for _, callers := range clientCallers {
			c := cell{callers, n, allowed}
			row := []string{c.String()}
			for _, client := range []string{"rueidis", "valkey-go"} {
				own := rates[c]["on "+client]
				row = append(row, number(stats.Median(own)))
				for _, other := range []string{strings.TrimSuffix(client, "-go") + "limiter", client + " by hand", "on go-redis"} {
					row = append(row, interval(ratios(own, rates[c][other])))
				}
			}
			t.add(row...)
		}
	}
	return t
}

// costTable has a row for each cell. Other work on the machine changes these figures less than decisions a second.
func costTable(title string, costs byRound) table {
	t := table{
		title:  title,
		note:   "Microseconds of the processors for a decision, those of the callers and of the servers: medians.",
		header: []string{""},
	}
	for _, c := range onClients() {
		t.header = append(t.header, c.name)
	}
	for _, n := range clientKeys {
		for _, callers := range clientCallers {
			c := cell{callers, n, allowed}
			row := []string{c.String()}
			for _, one := range onClients() {
				row = append(row, number(stats.Median(costs[c][one.name])))
			}
			t.add(row...)
		}
	}
	return t
}

// ratios has a[i] / b[i].
func ratios(a, b []float64) []float64 {
	all := make([]float64, min(len(a), len(b)))
	for i := range all {
		all[i] = a[i] / b[i]
	}
	return all
}

const clientHeading = "## Clients of other libraries"

// otherClients measures them, and puts the table into results.md in place of the former one.
func otherClients(ctx context.Context, h *host, o options) error {
	server := redistest.Start(h)
	alone, err := newTestbed(h, server, server.Addr())
	if err != nil {
		return err
	}
	cluster, err := clusterTestbed(h)
	if err != nil {
		return err
	}
	where, err := setting(ctx, alone.admin, o)
	if err != nil {
		return err
	}
	var r report
	r.paragraph(clientHeading)
	r.paragraph("Made by `go run . -clients` on %s, apart from the rest of this page. %s", time.Now().UTC().Format(time.DateOnly), where)
	for i, b := range []*testbed{alone, cluster} {
		rates, costs, err := measureClients(ctx, b, o)
		if err != nil {
			return err
		}
		title := []string{"One server", "A Cluster of three masters"}[i]
		r.table(clientTable(title, rates))
		r.table(costTable(title+": processors", costs))
	}
	return saveSection(o, clientHeading, r.String())
}
