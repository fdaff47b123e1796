package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/tryacquire/ratelimit/cmd/ratelimit/internal/report"
)

const (
	replayLong = `What would this limit have done to yesterday's traffic? Replay takes one permit for every
request of an access log, at the request's own time, and reports what would have been
allowed and denied. Defaults are in (parentheses).

Logs are read plain or gzipped, "-" or none is standard input. Their format is found out
line by line, and reported: common or combined, with a virtual host in front or without,
or JSON. Lines that cannot be read are counted, and the first are shown.`

	replayExamples = `  ratelimit replay access.log
  ratelimit replay --rate 10/m --burst 20 access.log
  ratelimit replay --sweep rate=5/m,10/m,20/m,40/m access.log
  ratelimit replay --algorithm sliding-log --rule 10/s,100/m --key ip+path access.log
  ratelimit replay --algorithm token-bucket,fixed-window --rate 10/m access.log
  ratelimit replay --rate 10/m --burst 20 --vs 'fixed-window --rate 600/h' access.log`
)

// A config is what the command line of replay asks for.
type config struct {
	files    []string
	key      string
	clients  clients
	limits   []limit // one, or several to compare
	standard bool    // the limit was left to the program
	sweep    bool    // the limits are a row to pick from
	top      int
	page     string // file of a page of HTML; empty: none
}

func (c config) readsStdin() bool { return slices.Contains(c.files, "-") }

// replayFlags are the flags of replay, as they are given.
type replayFlags struct {
	limit      given
	key        string
	ipv6       int
	trusted    []string
	top        int
	page       string
	vs, sweeps []string
}

func newReplayFlags() *replayFlags { return &replayFlags{limit: given{}} }

func (f *replayFlags) define(fs *pflag.FlagSet) {
	fs.SortFlags = false
	fs.StringVar(&f.key, "key", "ip", "what has a limit of its own: "+strings.Join(slices.Sorted(maps.Keys(keyers)), ", "))
	fs.IntVar(&f.ipv6, "ipv6-prefix", 64, "IPv6 clients are one by so many `bits` of their address, as in httplimit")
	fs.StringArrayVar(&f.trusted, "trust", nil, "a `network` of proxies of yours, such as 10.0.0.0/8: the client is the last address of\nX-Forwarded-For, the last quoted field of a line, that is in none of them")
	fs.IntVar(&f.top, "top", 10, "how many keys and minutes to list")
	fs.StringVar(&f.page, "html", "", "write the report to this `file` too, as a page that loads nothing")
	fs.StringArrayVar(&f.vs, "vs", nil, "another limit to compare with: its algorithm and its `flags`, where they differ")
	fs.StringArrayVar(&f.sweeps, "sweep", nil, "a row of limits to pick from, such as rate=5/m,10/m,20/m;\nwith a second sweep, all pairs")
	f.limit.define(fs)
}

func (f *replayFlags) config(files []string) (cfg config, err error) {
	cfg = config{files: files, key: f.key, top: f.top, page: f.page}
	if len(files) == 0 {
		cfg.files = []string{"-"}
	}
	if count(cfg.files, "-") > 1 {
		return config{}, errors.New(`standard input ("-") can be read only once`)
	}
	if _, ok := keyers[cfg.key]; !ok {
		return config{}, fmt.Errorf("--key %q: choose one of %s", cfg.key, strings.Join(slices.Sorted(maps.Keys(keyers)), ", "))
	}
	if cfg.top < 1 {
		return config{}, fmt.Errorf("--top %d: it must be 1 or more", cfg.top)
	}
	if cfg.clients, err = newClients(f.ipv6, f.trusted); err != nil {
		return config{}, err
	}
	cfg.standard = len(f.limit) == 0 && len(f.vs) == 0 && len(f.sweeps) == 0
	if len(f.sweeps) > 0 {
		cfg.sweep = true
		if len(f.vs) > 0 {
			return config{}, errors.New("--sweep and --vs both say what is compared: leave one of them out")
		}
		cfg.limits, err = parseSweeps(f.limit, f.sweeps)
	} else {
		cfg.limits, err = parseLimits(f.limit, f.vs)
	}
	if err == nil && len(cfg.limits) > report.MaxLimits {
		err = fmt.Errorf("%d limits are compared: there can be %d at most", len(cfg.limits), report.MaxLimits)
	}
	if err != nil {
		return config{}, err
	}
	return cfg, nil
}

func count(list []string, what string) (n int) {
	for _, s := range list {
		if s == what {
			n++
		}
	}
	return n
}
