// Bench measures this library side by side with others, on a redis-server that
// it starts:
//
//	go run .           throughput, latency, allocations, memory, and what a decision costs the server
//	go run . -growth   how these grow with keys, limits, sub-windows, entries, rules and callers, and an execution with what it decides
//	go run . -cluster  how a load spreads over three masters
//	go run . -grid     merged and plain calls, from one caller to many, also on slow networks
//	go run . -beyond   several limits at once, settling, permits in flight and waiting
//	go run . -clients  limiters on clients of other libraries, beside a script by hand on the same client
//
// It prints tables, and writes them as Markdown and the charts as SVG.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
)

func main() {
	o, err := parseOptions(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		err = run(o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "\nbench:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	part := compare
	switch {
	case o.growth:
		part = grow
	case o.cluster:
		part = spread
	case o.grid:
		part = grid
	case o.beyond:
		part = beyond
	case o.clients:
		part = otherClients
	}
	return serve(func(h *host) error { return part(context.Background(), h, o) })
}
