package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/keyname"
	"github.com/tryacquire/ratelimit/internal/state"
)

const topLong = `Who is limited now, and how close others are. Top looks at all keys by SCAN, never by KEYS, on a
Cluster on every master, reads those of limiters, and lists the keys that have used most. It takes
nothing, and runs no script. On a terminal it goes on until it is interrupted.

A key does not hold its limit. --limit says the limits of limiters, by their names; then the list is
by the share that is used, and keys that have used all are marked.

With --key, it looks at the names of keys to learn which limiters there are, and then asks for the
caller's key under each of them.

Bounds: a request asks for about 250 keys; a pass reads --keys keys of limiters from each master at
most, or with --key the names of as many keys; and requests are so far apart that their way there
and back, which is longer than the server works on them, takes at most --share of the time, on each
master. The memory is that of the list.
`

// topFlags are the flags of top.
type topFlags struct {
	redis                        redisFlags
	prefix, name, key, algorithm string
	limits                       map[string]int // the most permits of limiters
	rows, keys                   int
	sharePercent                 string // as it is given
	share                        float64
	every                        time.Duration
	repeats, asJSON              bool
}

func (p program) topCommand() *cobra.Command {
	f := topFlags{limits: map[string]int{}}
	cmd := &cobra.Command{
		Use:   "top [flags]",
		Short: "Who is limited now, and how close others are",
		Long:  topLong + connecting,
		Example: `  ratelimit top
  ratelimit top --limit api=100,login=5
  ratelimit top --key user:42                  which limiters has this caller used?
  ratelimit top --every 0 --json --rows 100 | jq '.rows[] | select(.limited)'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			f.asJSON = asJSON(cmd)
			f.repeats = f.every > 0 && (p.screen != nil && !f.asJSON || cmd.Flags().Changed("every"))
			return p.top(cmd.Context(), &f)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringToIntVar(&f.limits, "limit", nil, "the most permits of limiters, by `name=permits`: the limit, burst or capacity")
	fs.Lookup("limit").DefValue = "" // or the help would say that it is []
	fs.IntVar(&f.rows, "rows", 20, "how many keys are listed; on a terminal, as many as fit")
	fs.StringVar(&f.prefix, "prefix", "", "only limiters with this prefix (all)")
	fs.StringVar(&f.name, "name", "", "only the limiter of this name (all)")
	fs.StringVar(&f.key, "key", "", "only this key of a caller, such as user:42, in all limiters (all)")
	fs.StringVar(&f.algorithm, "algorithm", "", "only this algorithm: "+strings.Join(algorithms.IDs(), ", ")+" (all)")
	fs.DurationVar(&f.every, "every", 2*time.Second, "how long to wait after a pass, on a terminal or if it is given; 0: one pass")
	fs.StringVar(&f.sharePercent, "share", "5%", "the most of a server's time")
	fs.IntVar(&f.keys, "keys", 100_000, "the most keys of limiters that a pass reads from each master; with --key, of names of any keys")
	f.redis.define(fs)
	complete(cmd, "algorithm", algorithms.IDs()...)
	return cmd
}

func (f *topFlags) check() error {
	percent, err := strconv.ParseFloat(strings.TrimSuffix(f.sharePercent, "%"), 64)
	if err != nil || !(percent > 0 && percent <= 100) {
		return usagef("--share %q: it must be more than 0%% and at most 100%%", f.sharePercent)
	}
	f.share = percent / 100
	switch {
	case f.rows < 1:
		return usagef("--rows %d: it must be 1 or more", f.rows)
	case f.keys < 1:
		return usagef("--keys %d: it must be 1 or more", f.keys)
	case f.every < 0:
		return usagef("--every %v: it must not be negative", f.every)
	case f.algorithm != "" && !algorithms.IsID(f.algorithm):
		return usagef("--algorithm %q: choose one of %s", f.algorithm, strings.Join(algorithms.IDs(), ", "))
	}
	for _, name := range slices.Sorted(maps.Keys(f.limits)) {
		if f.limits[name] < 1 {
			return usagef("--limit %s=%d: it must be 1 or more", name, f.limits[name])
		}
	}
	return nil
}

// wants reports whether the keys of a limiter are to be listed.
func (f *topFlags) wants(p keyname.Parts) bool {
	return (f.prefix == "" || p.Prefix == f.prefix) && (f.name == "" || p.Name == f.name) && (f.algorithm == "" || p.Algorithm == f.algorithm)
}

// top scans the keys once, or again and again until ctx ends (f.repeats).
func (p program) top(ctx context.Context, f *topFlags) error {
	s, err := f.redis.connect(ctx, p.environ)
	if err != nil {
		return err
	}
	defer s.Close()
	drawn := p.screen != nil && f.repeats && !f.asJSON
	if drawn {
		fmt.Fprint(p.stdout, enterScreen)
		defer fmt.Fprint(p.stdout, leaveScreen)
	}
	for passes := 0; ; passes++ {
		found, err := p.pass(ctx, f, s)
		p.progress.clear()
		if err == nil {
			err = found.write(p, f, drawn)
		}
		if err == nil && !f.repeats {
			return nil
		}
		if err == nil {
			err = p.pause(ctx, f.every)
		}
		if err != nil && ctx.Err() != nil && f.repeats {
			return nil // the way to end it
		}
		if err != nil {
			return err
		}
	}
}

// pass looks at all keys once.
func (p program) pass(ctx context.Context, f *topFlags, s *server) (*standing, error) {
	masters, err := s.masters(ctx)
	if err != nil {
		return nil, fmt.Errorf("finding the masters of the Cluster: %w", err)
	}
	rows := f.rows
	if p.screen != nil && f.repeats && !f.asJSON {
		_, height := p.screen()
		rows = max(height-screenAround, 1)
	}
	found := &standing{Server: s.addr, Masters: len(masters), limits: f.limits}
	found.most = top[row]{n: rows, compare: row.compare}
	scanOf := func(c redis.Cmdable) *scan {
		return &scan{client: c, share: f.share, most: f.keys, wants: f.wants, pause: p.pause, now: time.Now}
	}
	callers, formats := map[string]bool{}, algorithms.IDs() // the names that the key of --key may have
	var mu sync.Mutex
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for _, master := range masters {
		all.Go(func() {
			one := scanOf(master)
			looked, read := 0, 0
			progress := func() {
				mu.Lock()
				defer mu.Unlock()
				found.Looked += one.looked - looked
				found.Read += one.read - read
				looked, read = one.looked, one.read
				p.progress.show("looked at %s keys, %s of limiters", number(found.Looked), number(found.Read))
			}
			var err error
			if f.key == "" {
				err = one.each(ctx, func(st state.State) {
					mu.Lock()
					defer mu.Unlock()
					found.add(st)
				}, progress)
			} else {
				err = one.names(ctx, func(parts keyname.Parts) {
					mu.Lock()
					defer mu.Unlock()
					if f.wants(parts) && (parts.Key == f.key || slices.Contains(formats, parts.Algorithm)) {
						callers[keyname.NewHead(parts.Prefix, parts.Name, parts.Algorithm).Of(f.key)] = true
					}
				}, progress)
			}
			mu.Lock()
			defer mu.Unlock()
			found.Damaged += one.damaged
			found.Cut = found.Cut || one.cut
			if err != nil {
				cancel(fmt.Errorf("%s: %w", master.Options().Addr, err))
			}
		})
	}
	all.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	if f.key != "" {
		found.Read = 0
	}
	if names := slices.Sorted(maps.Keys(callers)); len(names) > 0 { // all in one slot
		c, err := s.of(ctx, names[0])
		if err != nil {
			return nil, err
		}
		one := scanOf(c)
		if err := one.states(ctx, names, found.add); err != nil {
			return nil, err
		}
		found.Read, found.Damaged = one.read, one.damaged
	}
	found.Rows = found.most.items
	if found.Rows == nil {
		found.Rows = []row{}
	}
	return found, nil
}
