package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/tryacquire/ratelimit/internal/keyname"
	"github.com/tryacquire/ratelimit/internal/state"
)

const topLong = `Who is limited now, and how close others are. Top looks at all keys by SCAN, never by KEYS, on a
Cluster on every master, reads those of limiters, and lists the keys that have used most. It takes
nothing, and runs no script. On a terminal it goes on until it is interrupted.

A key does not hold its limit. --limit says the limits of limiters, by their names; then the list is
by the share that is used, and keys that have used all are marked.

Bounds: a request asks for about 250 keys; a pass reads --keys keys of limiters from each master at
most; and requests are so far apart that their way there and back, which is longer than the server
works on them, takes at most --share of the time, on each master. The memory is that of the list.
`

// topFlags are the flags of top.
type topFlags struct {
	redis           redisFlags
	prefix, name    string
	limits          map[string]int
	rows, keys      int
	share           float64
	every           time.Duration
	repeats, asJSON bool
	algorithm       string
	sharePercent    string
}

func (p program) topCommand() *cobra.Command {
	f := topFlags{limits: map[string]int{}}
	cmd := &cobra.Command{
		Use:   "top [flags]",
		Short: "Who is limited now, and how close others are",
		Long:  topLong + connecting,
		Example: `  ratelimit top
  ratelimit top --limit api=100,login=5
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
	fs.IntVar(&f.rows, "rows", 20, "how many keys are listed; on a terminal, as many as fit")
	fs.StringVar(&f.prefix, "prefix", "", "only limiters with this prefix (all)")
	fs.StringVar(&f.name, "name", "", "only the limiter of this name (all)")
	fs.StringVar(&f.algorithm, "algorithm", "", "only this algorithm: "+strings.Join(keyname.All(), ", ")+" (all)")
	fs.DurationVar(&f.every, "every", 2*time.Second, "how long to wait after a pass, on a terminal or if it is given; 0: one pass")
	fs.StringVar(&f.sharePercent, "share", "5%", "the most of a server's time")
	fs.IntVar(&f.keys, "keys", 100_000, "the most keys of limiters that a pass reads from each master")
	f.redis.define(fs)
	complete(cmd, "algorithm", keyname.All()...)
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
	case f.algorithm != "" && !keyname.IsID(f.algorithm):
		return usagef("--algorithm %q: choose one of %s", f.algorithm, strings.Join(keyname.All(), ", "))
	}
	for _, name := range slices.Sorted(maps.Keys(f.limits)) {
		if f.limits[name] < 1 {
			return usagef("--limit %s=%d: it must be 1 or more", name, f.limits[name])
		}
	}
	return nil
}

func (f *topFlags) wants(p keyname.Parts) bool {
	return (f.prefix == "" || p.Prefix == f.prefix) && (f.name == "" || p.Name == f.name) &&
		(f.algorithm == "" || p.Algorithm == f.algorithm)
}

// top makes passes until it is told to stop.
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
	var mu sync.Mutex
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for _, master := range masters {
		all.Go(func() {
			one := &scan{client: master, share: f.share, most: f.keys, wants: f.wants, pause: p.pause, now: time.Now}
			looked, read := 0, 0
			err := one.each(ctx, func(st state.State) {
				mu.Lock()
				defer mu.Unlock()
				found.add(st)
			}, func() {
				mu.Lock()
				defer mu.Unlock()
				found.Looked += one.looked - looked
				found.Read += one.read - read
				looked, read = one.looked, one.read
				p.progress.show("looked at %s keys, %s of limiters", number(found.Looked), number(found.Read))
			})
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
	found.Rows = found.most.items
	if found.Rows == nil {
		found.Rows = []row{}
	}
	return found, nil
}

// A standing is what a pass has found.
type standing struct {
	Server  string `json:"server"`
	Masters int    `json:"masters"`
	Looked  int    `json:"keys_looked_at"`
	Read    int    `json:"keys_of_limiters"`
	Using   int    `json:"keys_in_use"`
	Limited int    `json:"keys_limited"`
	Damaged int    `json:"keys_damaged"`
	Cut     bool   `json:"cut_short"`
	Rows    []row  `json:"rows"`

	limits map[string]int
	most   top[row]
}

// A row is a key in the list.
type row struct {
	Name      string   `json:"name"`
	Limiter   string   `json:"limiter"`
	Algorithm string   `json:"algorithm"`
	Key       string   `json:"key"`
	Used      int64    `json:"used"`
	AtMost    bool     `json:"used_is_at_most,omitempty"`
	Limit     int      `json:"limit,omitempty"`
	Share     *float64 `json:"share,omitempty"` // of the limit, if that is known
	Limited   bool     `json:"limited"`
	Empty     float64  `json:"seconds_until_nothing_is_used"`

	empty time.Duration
}

// add counts a key.
func (s *standing) add(st state.State) {
	if st.Used == 0 {
		return
	}
	r := row{
		Name: st.Name, Limiter: st.Parts.Name, Algorithm: st.Parts.Algorithm, Key: st.Parts.Key,
		Used: st.Used, AtMost: st.AtMost, Limit: s.limits[st.Parts.Name], Empty: st.Empty.Seconds(), empty: st.Empty,
	}
	if r.Limit > 0 {
		share := float64(r.Used) / float64(r.Limit)
		r.Share, r.Limited = &share, r.Used >= int64(r.Limit) && !r.AtMost
	}
	if slices.ContainsFunc(s.most.items, func(o row) bool { return o.Name == r.Name }) {
		return // SCAN may return a key twice
	}
	s.Using++
	if r.Limited {
		s.Limited++
	}
	s.most.add(r)
}

// compare puts those first that have used most of their limit, and behind those with known limits the others.
func (r row) compare(o row) int {
	share := func(r row) float64 {
		if r.Share == nil {
			return -1
		}
		return *r.Share
	}
	return cmp.Or(cmp.Compare(share(o), share(r)), cmp.Compare(o.Used, r.Used), strings.Compare(r.Name, o.Name))
}

// The screen of a terminal: another one than that of the shell, without a cursor.
const (
	enterScreen  = "\x1b[?1049h\x1b[?25l"
	leaveScreen  = "\x1b[?25h\x1b[?1049l"
	screenAround = 7 // lines around the rows
)

// write shows the standing: as a page of the screen, as text or as a line of JSON.
func (s *standing) write(p program, f *topFlags, drawn bool) error {
	if f.asJSON {
		e := json.NewEncoder(p.stdout)
		e.SetEscapeHTML(false)
		return wroteJSON(e.Encode(s))
	}
	text := s.text(f, keyWidth)
	if drawn {
		width, height := p.screen()
		for keys := keyWidth; keys > leastKeyWidth && widest(text) > width; keys-- {
			text = s.text(f, keys-1)
		}
		text = screenful(text+"\nCtrl-C ends it.", width, height)
	}
	_, err := io.WriteString(p.stdout, text)
	return err
}

// screenful draws over what the screen shows: no line is longer, and there are no more lines.
func screenful(text string, width, height int) string {
	var b strings.Builder
	b.WriteString("\x1b[H")
	for i, line := range slices.Collect(strings.SplitSeq(text, "\n")) {
		if i == height {
			break
		}
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(printable(line, width) + "\x1b[K")
	}
	b.WriteString("\x1b[J")
	return b.String()
}

// The column of keys is so wide at most, and on a narrow terminal narrower.
const (
	keyWidth      = 50
	leastKeyWidth = 12
)

// widest is how many characters the longest line of a table has.
func widest(text string) (n int) {
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, "  ") {
			n = max(n, utf8.RuneCountInString(line))
		}
	}
	return n
}

func (s *standing) text(f *topFlags, keys int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Redis at %s", s.Server)
	if s.Masters > 1 {
		fmt.Fprintf(&b, " (%d masters)", s.Masters)
	}
	fmt.Fprintf(&b, ": %s, %s of limiters, %s in use", plural(s.Looked, "key"), number(s.Read), number(s.Using))
	if len(f.limits) > 0 {
		fmt.Fprintf(&b, ", %s limited", number(s.Limited))
	}
	b.WriteString("\n")
	if s.Damaged > 0 {
		fmt.Fprintf(&b, "%s of limiters cannot be read as a state: ratelimit inspect says why\n", plural(s.Damaged, "key"))
	}
	if s.Cut {
		fmt.Fprintf(&b, "The pass was cut short after %s keys of limiters: --keys allows more\n", number(f.keys))
	}
	if len(s.Rows) == 0 {
		b.WriteString("Nobody uses a limiter now.\n")
		return b.String()
	}
	b.WriteString("\n")
	t := table{left: 3}
	t.row("limiter", "algorithm", "key", "used", "limit", "share", "", "free again in")
	unknown := false
	for _, r := range s.Rows {
		used, limit, share, mark := number(int(r.Used)), "?", "", ""
		if r.AtMost {
			used = "≤ " + used
		}
		if r.Limit > 0 {
			limit, share = number(r.Limit), percent(int(r.Used), r.Limit)
		} else {
			unknown = true
		}
		if r.Limited {
			mark = "LIMITED"
		}
		t.row(printable(r.Limiter, 30), r.Algorithm, printable(r.Key, keys), used, limit, share, mark, state.Brief(r.empty))
	}
	t.write(&b)
	if s.most.beyond > 0 {
		fmt.Fprintf(&b, "and %s more\n", number(s.most.beyond))
	}
	if unknown {
		b.WriteString("Limits that are not known: --limit name=permits\n")
	}
	return b.String()
}
