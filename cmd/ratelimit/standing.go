package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tryacquire/ratelimit/internal/state"
)

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
	Paused    bool     `json:"paused,omitempty"`
	Empty     float64  `json:"seconds_until_nothing_is_used"`

	empty time.Duration
}

// add counts a key.
func (s *standing) add(st state.State) {
	if st.Used == 0 && st.Paused == 0 {
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
	if st.Paused > 0 {
		r.Limited, r.Paused, r.Empty, r.empty = true, true, st.Paused.Seconds(), st.Paused
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

// compare puts those first that have used most of their limit or are paused, and behind those with known limits the
// others.
func (r row) compare(o row) int {
	share := func(r row) float64 {
		if r.Paused {
			return 1
		}
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
	if s.Cut {
		fmt.Fprintf(&b, ": %s of limiters, of at least %s", plural(s.Read, "key"), number(s.Looked))
	} else {
		fmt.Fprintf(&b, ": %s, %s of limiters", plural(s.Looked, "key"), number(s.Read))
	}
	fmt.Fprintf(&b, ", %s in use", number(s.Using))
	if len(f.limits) > 0 || s.Limited > 0 {
		fmt.Fprintf(&b, ", %s limited", number(s.Limited))
	}
	b.WriteString("\n")
	if s.Damaged > 0 {
		fmt.Fprintf(&b, "%s of limiters cannot be read as a state: ratelimit inspect says why\n", plural(s.Damaged, "key"))
	}
	switch {
	case s.Cut && f.key != "":
		b.WriteString("The pass was cut short: limiters none of whose keys was looked at are left out. --keys allows more\n")
	case s.Cut:
		fmt.Fprintf(&b, "The pass was cut short after %s keys of limiters: --keys allows more\n", number(f.keys))
	}
	if len(s.Rows) == 0 {
		if s.Cut {
			b.WriteString("None of them is in use now.\n")
		} else {
			b.WriteString("Nobody uses a limiter now.\n")
		}
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
		if r.Paused {
			used, limit = "", ""
		} else if r.Limit > 0 {
			limit, share = number(r.Limit), percent(int(r.Used), r.Limit)
		} else {
			unknown = true
		}
		if r.Limited {
			mark = "LIMITED"
		}
		if r.Paused {
			mark = "PAUSED"
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
