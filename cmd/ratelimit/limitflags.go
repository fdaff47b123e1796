package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/tryacquire/ratelimit"
)

// The limit that is replayed if none is asked for.
const (
	defaultAlgorithm  = tokenBucket
	defaultSubWindows = 40 // of a sliding window, as the library has it
	defaultRate       = "20/m"
)

// limitFlags are the flags that make a limit. One that is for some algorithms is
// an error with others, because it would change nothing.
var limitFlags = []struct {
	name, value string
	only        string // empty: all
	usage       string
}{
	{"algorithm", "name", "", "how to limit: " + strings.Join(algorithmNames, ", ") + "\n(" + defaultAlgorithm + "); several with commas between them are compared"},
	{"rate", "n/period", "", "the limit, per s, m, h, d or a duration: 10/m, 500/h, 10/90s (" + defaultRate + ")"},
	{"limit", "n", "", "with --window, another way to say --rate n/window"},
	{"window", "time", "", "90s, 1m, 1h, 1d"},
	{"burst", "n", tokenBucket, "most requests at once (the rate's count)"},
	{"every", "time", tokenBucket, "refill in steps of this time (continuously)"},
	{"capacity", "n", leakyBucket, "most requests in the bucket (the rate's count)"},
	{"align", "time", fixedWindow, "windows start at fixed times (UTC), shifted by this: 0, -2h\n(with the first request); token-bucket: the steps of --every come then"},
	{"storage", "kind", slidingWindow, "one of " + strings.Join(storageNames(), ", ") + " (" + storageNames()[0] + ")"},
	{"buckets", "n", slidingWindow, "sub-windows, for list and hash (40)"},
	{"rule", "n/period", slidingLog, "several limits, instead of --rate: 10/s,100/m"},
	{"resolution", "time", slidingLog, "merge requests this close together (exact)"},
}

// given maps the flags of a limit to what was given for them.
type given map[string][]string

// define adds the flags of a limit to fs.
func (g given) define(fs *pflag.FlagSet) {
	for _, f := range limitFlags {
		usage := f.usage
		if f.only != "" {
			usage = f.only + ": " + usage
		}
		fs.Var(limitValue{g, f.name, f.value}, f.name, usage)
	}
}

// A limitValue is a flag of a limit, as package pflag sets it.
type limitValue struct {
	given      given
	name, kind string
}

func (v limitValue) String() string { return "" }
func (v limitValue) Type() string   { return v.kind }

func (v limitValue) Set(text string) error {
	if v.given.has(v.name) && v.name != "rule" {
		return errors.New("it is given twice")
	}
	v.given[v.name] = append(v.given[v.name], text)
	return nil
}

// without returns a copy of g without the flags that are named.
func (g given) without(names ...string) given {
	c := maps.Clone(g)
	for _, n := range names {
		delete(c, n)
	}
	return c
}

func (g given) has(name string) bool { return len(g[name]) > 0 }

func (g given) text(name string) string { return strings.TrimSpace(g[name][0]) }

// parseLimits makes the limits that the flags describe: one, or several that are compared.
func parseLimits(g given, vs []string) ([]limit, error) {
	names := []string{defaultAlgorithm}
	if g.has("algorithm") {
		names = strings.Split(g.text("algorithm"), ",")
	}
	for i := range names {
		names[i] = strings.TrimSpace(names[i])
		if !slices.Contains(algorithmNames, names[i]) {
			return nil, fmt.Errorf("--algorithm %q: choose one of %s", names[i], strings.Join(algorithmNames, ", "))
		}
	}
	if err := g.applyTo(names); err != nil {
		return nil, err
	}
	var limits []limit
	for _, name := range names {
		l, err := g.limit(name)
		if err != nil {
			return nil, err
		}
		limits = append(limits, l)
	}
	for _, other := range vs {
		l, err := parseVersus(g, names[0], other)
		if err != nil {
			return nil, fmt.Errorf("--vs %q: %w", other, err)
		}
		limits = append(limits, l)
	}
	return limits, nil
}

// parseVersus makes a limit that is compared with the first: the first's
// flags, as far as they suit its algorithm, under its own.
func parseVersus(first given, algorithm, vs string) (limit, error) {
	own := given{}
	fs := pflag.NewFlagSet("vs", pflag.ContinueOnError)
	fs.SetOutput(io.Discard)
	own.define(fs)
	err := fs.Parse(strings.Fields(vs))
	words := fs.Args()
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return limit{}, errors.New("--help does not belong here")
	case err != nil:
		return limit{}, err
	case own.has("algorithm"):
		words = append(words, own.text("algorithm"))
	}
	switch len(words) {
	case 0:
	case 1:
		algorithm = words[0]
	default:
		return limit{}, fmt.Errorf("it holds more than one algorithm: %s", strings.Join(words, ", "))
	}
	if !slices.Contains(algorithmNames, algorithm) {
		return limit{}, fmt.Errorf("the algorithm %q is not one of %s", algorithm, strings.Join(algorithmNames, ", "))
	}
	checked := maps.Clone(own)
	if algorithm == tokenBucket && first.has("every") {
		checked["every"] = first["every"]
	}
	if err := checked.applyTo([]string{algorithm}); err != nil {
		return limit{}, err
	}

	inherited := first.without("algorithm")
	if own.has("rate") || own.has("limit") || own.has("window") || own.has("rule") {
		inherited = inherited.without("rate", "limit", "window", "rule")
	}
	for _, f := range limitFlags {
		if f.only != "" && f.only != algorithm && (f.name != "align" || algorithm != tokenBucket) {
			inherited = inherited.without(f.name)
		}
	}
	if first.has("rule") && !inherited.has("rule") && !inherited.hasRate() && !own.hasRate() && !own.has("rule") {
		return limit{}, fmt.Errorf("%s takes no --rule: give it a --rate", algorithm)
	}
	maps.Copy(inherited, own.without("algorithm"))
	return inherited.limit(algorithm)
}

// applyTo returns an error for flags that none of the algorithms uses.
func (g given) applyTo(names []string) error {
	steps := slices.Contains(names, tokenBucket) && g.has("every")
	if g.has("align") && !steps && !slices.Contains(names, fixedWindow) {
		return fmt.Errorf("--align is for %s, and for %s with --every, not for %s: leave it out, or choose one of these",
			fixedWindow, tokenBucket, strings.Join(names, " or "))
	}
	for _, f := range limitFlags {
		if g.has(f.name) && f.only != "" && !slices.Contains(names, f.only) && f.name != "align" {
			return fmt.Errorf("--%s is for %s, not for %s: leave it out, or choose --algorithm %s",
				f.name, f.only, strings.Join(names, " or "), f.only)
		}
	}
	rate := g.hasRate()
	for _, other := range names {
		if g.has("rule") && !rate && other != slidingLog {
			return fmt.Errorf("--rule is for %s only: give %s a --rate", slidingLog, other)
		}
	}
	if g.has("rule") && rate && len(names) == 1 {
		return errors.New("--rule and --rate (or --limit) both give the limit: leave one of them out")
	}
	return nil
}

func (g given) hasRate() bool { return g.has("rate") || g.has("limit") || g.has("window") }

// limit makes the limit of an algorithm from the flags that are for it.
func (g given) limit(algorithm string) (l limit, err error) {
	l.algorithm = algorithm
	keep := func(e error) {
		if err == nil {
			err = e
		}
	}
	number := func(name string, otherwise int) int {
		if !g.has(name) {
			return otherwise
		}
		n, e := strconv.Atoi(g.text(name))
		if e != nil || n < 1 {
			keep(fmt.Errorf("--%s %q: it must be a whole number, 1 or more", name, g.text(name)))
		}
		return n
	}
	length := func(name string) time.Duration {
		if !g.has(name) {
			return 0
		}
		d, e := parseDuration(g.text(name))
		if e != nil {
			keep(fmt.Errorf("--%s %q: %w", name, g.text(name), e))
		} else if d <= 0 && name != "align" {
			keep(fmt.Errorf("--%s %q: it must be more than 0", name, g.text(name)))
		}
		return d
	}

	switch {
	case g.has("rate") && (g.has("limit") || g.has("window")):
		return l, errors.New("--rate and --limit with --window say the same: leave one of them out")
	case g.has("limit") != g.has("window"):
		return l, errors.New("--limit and --window belong together, as in --limit 100 --window 1h")
	case g.has("limit"):
		l.rate = ratelimit.Per(number("limit", 0), length("window"))
	case g.has("rate"):
		l.rate, err = parseRate("rate", g.text("rate"))
	default:
		l.rate, err = parseRate("rate", defaultRate)
	}

	switch algorithm {
	case tokenBucket:
		l.burst = number("burst", l.rate.Count)
		if l.every = length("every"); l.every > 0 {
			l.aligned = g.has("align")
			l.offset = length("align")
		}
	case leakyBucket:
		l.capacity = number("capacity", l.rate.Count)
	case fixedWindow:
		l.aligned = g.has("align")
		l.offset = length("align")
	case slidingWindow:
		if g.has("storage") {
			var e error
			l.storage, e = parseStorage(g.text("storage"))
			keep(e)
		}
		otherwise := defaultSubWindows
		if l.storage == ratelimit.StorageZSet {
			otherwise = 0 // it takes none
		}
		l.buckets = number("buckets", otherwise)
	case slidingLog:
		l.resolution = length("resolution")
		l.rules = []ratelimit.Rule{{Limit: l.rate.Count, Window: l.rate.Period}}
		if g.has("rule") {
			var e error
			l.rules, e = parseRules(g["rule"])
			keep(e)
		}
	}
	if err != nil {
		return l, err
	}
	if _, err := l.simulated(); err != nil {
		return l, fmt.Errorf("%s: %w", algorithm, err)
	}
	return l, nil
}
