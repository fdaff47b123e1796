package main

import (
	"context"
	"strings"

	"github.com/tryacquire/ratelimit/internal/redistest"
)

// compare measures all contestants side by side.
func compare(ctx context.Context, h *host, o options) error {
	server := redistest.Start(h)
	b, err := newTestbed(h, server, server.Addr())
	if err != nil {
		return err
	}
	all := contestants()
	memory, err := keyMemory(ctx, b, all, o)
	if err != nil {
		return err
	}
	keys := users(manyKeys)
	entrants, err := enter(ctx, b, all, o, keys)
	if err != nil {
		return err
	}
	var f findings
	if f.results, err = throughput(ctx, b, entrants, keys, o); err != nil {
		return err
	}
	if f.singleCalls, err = timeSingleCalls(ctx, entrants, keys, o); err != nil {
		return err
	}
	if err := b.admin.FlushAll(ctx).Err(); err != nil {
		return err
	}
	var replays []replay
	if f.costs, replays, err = serverCost(ctx, b, all, o); err != nil {
		return err
	}
	if err := b.admin.FlushAll(ctx).Err(); err != nil {
		return err
	}
	if f.distance, err = far(ctx, h, server, all, o); err != nil {
		return err
	}

	cells, err := measureGrid(ctx, h, server, o)
	if err != nil {
		return err
	}

	var r report
	r.paragraph("# Benchmarks")
	where, err := setting(ctx, b.admin, o)
	if err != nil {
		return err
	}
	r.paragraph("%s Made by `make bench`.", where)
	r.table(targetTable(f))
	r.paragraph("## Throughput")
	r.paragraph("%s", aboutThroughput)
	for _, t := range throughputTables(f.results, all, memory) {
		r.table(t)
	}
	r.table(f.singleCalls.table(all))
	r.paragraph("## Server cost")
	r.table(serverCostTable(f.costs, replays))
	r.paragraph("## A slow network")
	for _, t := range f.distance.tables() {
		r.table(t)
	}
	if len(cells) > 0 {
		r.paragraph("%s", strings.TrimSpace(gridSection(cells, "")))
	}
	if err := save(o, "throughput.svg", throughputChart(f.results, all)); err != nil {
		return err
	}
	return r.finish(o, "results.md")
}

const aboutThroughput = "Every client has the settings it comes with; go-redis has one connection pool for all that use it. " +
	"*token bucket* merges calls that wait, as all limiters of this library do unless configured otherwise; *plain* is " +
	"`WithoutMerging`, *context* has a context that can be cancelled in each call, *deny cache* answers from memory. " +
	"*Allocs* and *bytes* are of the Go heap, each call; *server µs* the time of the commands a decision (`INFO commandstats`), " +
	"*server CPU µs* that of the whole server process, with reading and writing; *bytes/key* the memory of a key after " +
	"100 allowed calls. *Failed* calls got no decision and do not count; *other verdict* are decisions that were not the expected ones."
