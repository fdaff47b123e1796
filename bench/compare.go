package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/tryacquire/ratelimit/internal/testing/redistest"
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
	former, err := os.ReadFile(filepath.Join(o.out, "results.md"))
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	for _, heading := range []string{beyondHeading, clientHeading} { // of other runs
		r.paragraph("%s", sectionOf(string(former), heading))
	}
	return r.finish(o, "results.md")
}

const aboutThroughput = "Every client has its default settings; all limiters that use go-redis share one connection pool. " +
	"*token bucket* merges waiting calls, as all limiters of this library do by default; *plain* is " +
	"`WithoutMerging`; with *context*, each call has a context that can be cancelled; *deny cache* answers from memory. " +
	"*Allocs* and *bytes* are those of the Go heap for each call; *server µs* is the time of the commands for each decision (`INFO commandstats`), " +
	"*server CPU µs* the time of the whole server process, with reading and writing; *bytes/key* is the memory of a key after " +
	"100 allowed calls. *Failed* calls got no decision and are not counted; *other verdict* counts decisions that were not as expected."
