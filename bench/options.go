package main

import (
	"flag"
	"fmt"
	"regexp"
	"time"
)

// options are the command line.
type options struct {
	rounds   int
	duration time.Duration
	only     *regexp.Regexp
	out      string
	growth   bool
	cluster  bool
	grid     bool
	beyond   bool
	clients  bool
}

func parseOptions(args []string) (options, error) {
	var o options
	var only string
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.IntVar(&o.rounds, "rounds", 5, "interleaved `rounds`, of which the medians are reported")
	f.DurationVar(&o.duration, "duration", 200*time.Millisecond, "`duration` of one measurement")
	f.StringVar(&only, "only", "", "measure only contestants whose name matches the `regexp`")
	f.StringVar(&o.out, "out", ".", "`directory` of the tables and the charts")
	f.BoolVar(&o.growth, "growth", false, "measure instead how costs grow with keys, limits, sub-windows, entries, rules and callers")
	f.BoolVar(&o.cluster, "cluster", false, "measure instead how a load spreads over a cluster")
	f.BoolVar(&o.grid, "grid", false, "measure instead merged and plain calls of one caller to many, and put that into results.md")
	f.BoolVar(&o.beyond, "beyond", false, "measure instead several limits at once, settling, permits in flight and waiting, and put that into results.md")
	f.BoolVar(&o.clients, "clients", false, "measure instead limiters on clients of other libraries, and put that into results.md")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	var err error
	if o.only, err = regexp.Compile(only); err != nil {
		return o, fmt.Errorf("-only: %w", err)
	}
	parts := 0
	for _, chosen := range []bool{o.growth, o.cluster, o.grid, o.beyond, o.clients} {
		if chosen {
			parts++
		}
	}
	if o.rounds < 1 || o.duration < time.Millisecond || f.NArg() > 0 || parts > 1 {
		return o, fmt.Errorf("want at least one round, at least 1ms, one of -growth, -cluster, -grid, -beyond and -clients, and no arguments; see -h")
	}
	return o, nil
}
