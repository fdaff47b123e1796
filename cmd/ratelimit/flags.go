package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// A config is what the command line asks for.
type config struct {
	files    []string
	key      string
	limits   []limit // one, or two to compare
	standard bool    // the limit was left to the program
	top      int
	page     string // file of a page of HTML; empty: none
}

func (c config) readsStdin() bool { return slices.Contains(c.files, "-") }

// parseArgs reads the command line. It returns flag.ErrHelp for -h.
func parseArgs(args []string) (config, error) {
	cfg := config{key: "ip", top: 10}
	g := given{}
	var vs string
	fs := flag.NewFlagSet("replay", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	g.define(fs)
	fs.StringVar(&cfg.key, "key", cfg.key, "")
	fs.IntVar(&cfg.top, "top", cfg.top, "")
	fs.StringVar(&cfg.page, "html", "", "")
	fs.StringVar(&vs, "vs", "", "")
	files, err := parseMixed(fs, args)
	if err != nil {
		return config{}, err
	}

	cfg.files = files
	if len(files) == 0 {
		cfg.files = []string{"-"}
	}
	if count(cfg.files, "-") > 1 {
		return config{}, errors.New(`standard input ("-") can be read only once`)
	}
	if _, ok := keyers[cfg.key]; !ok {
		return config{}, fmt.Errorf("-key %q: choose one of %s", cfg.key, strings.Join(slices.Sorted(maps.Keys(keyers)), ", "))
	}
	if cfg.top < 1 {
		return config{}, fmt.Errorf("-top %d: it must be 1 or more", cfg.top)
	}
	cfg.standard = len(g) == 0 && vs == ""
	cfg.limits, err = parseLimits(g, vs)
	return cfg, err
}

// parseMixed parses flags that stand before, between or after the files.
func parseMixed(fs *flag.FlagSet, args []string) (files []string, err error) {
	for {
		if err := fs.Parse(args); err != nil {
			return nil, err
		}
		rest := fs.Args()
		if len(rest) == 0 {
			return files, nil
		}
		if ended := len(args) > len(rest) && args[len(args)-len(rest)-1] == "--"; ended {
			return append(files, rest...), nil
		}
		files, args = append(files, rest[0]), rest[1:]
	}
}

func count(list []string, what string) (n int) {
	for _, s := range list {
		if s == what {
			n++
		}
	}
	return n
}

// usage is what -h prints.
func usage() string {
	var b strings.Builder
	b.WriteString(`What would this limit have done to yesterday's traffic? Replay takes one permit
for every request of an access log, at the request's own time, and reports what
would have been allowed and denied.

Usage: ratelimit replay [flags] [log ...]

Logs are in common or combined format, plain or gzipped; "-" or none is standard
input. Defaults are in (parentheses).

  -key NAME          what has a limit of its own: ip, path, user-agent
                     or ip+path (ip)
  -top N             how many keys and minutes to list (10)
  -html FILE         writes the report as a page of HTML too, which loads nothing
  -vs 'FLAGS'        a second limit to compare with: its algorithm and its
                     flags, where they differ

Limits:
`)
	for _, f := range limitFlags {
		text := f.usage
		if f.only != "" {
			text = f.only + ": " + text
		}
		fmt.Fprintf(&b, "  %-18s %s\n", "-"+f.name+" "+f.value, strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", 21)))
	}
	b.WriteString(`
Examples:
  ratelimit replay access.log
  ratelimit replay -rate 10/m -burst 20 access.log
  ratelimit replay -algorithm sliding-log -rule 10/s,100/m -key ip+path access.log
  ratelimit replay -algorithm token-bucket,fixed-window -rate 10/m access.log
  ratelimit replay -rate 10/m -burst 20 -vs 'fixed-window -rate 600/h' access.log
`)
	return b.String()
}
