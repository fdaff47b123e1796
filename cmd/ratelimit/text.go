package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// String is the report as a person reads it.
func (r *findings) String() string {
	var b strings.Builder
	r.writeLog(&b)
	if r.requests == 0 {
		return b.String()
	}
	r.writeLimits(&b)
	r.writeTotals(&b)
	if len(r.cfg.limits) > maxColumns || r.cfg.sweep {
		b.WriteString("\nTo see which clients are denied and when, replay one of these limits, or write a page (--html).\n")
		return b.String()
	}
	r.writeKeys(&b)
	r.writeMinutes(&b, "The minutes with the most denials", r.worst)
	r.writeMinutes(&b, "The busiest minutes", r.minutes)
	return b.String()
}

// maxColumns is how many limits have a column of their own in the tables of keys and minutes.
const maxColumns = 6

// keyWords name what a limit belongs to.
var keyWords = map[string]struct{ one, many string }{
	"ip":         {"client", "clients"},
	"path":       {"path", "paths"},
	"user-agent": {"user agent", "user agents"},
	"ip+path":    {"client and path", "pairs of client and path"},
}

func (r *findings) writeLog(b *strings.Builder) {
	name := strings.Join(r.cfg.files, ", ")
	if name == "-" {
		name = "standard input"
	}
	name = printable(name, 200)
	if r.requests == 0 && r.skipped == 0 {
		fmt.Fprintf(b, "There is nothing to replay: %s is empty.\n", name)
		return
	}
	if r.requests > 0 {
		word := keyWords[r.cfg.key].many
		if r.keys == 1 {
			word = keyWords[r.cfg.key].one
		}
		fmt.Fprintf(b, "Replayed %s: %s from %s %s\n", name, plural(r.requests, "request"), number(r.keys), word)
		if names := r.formatNames(); len(names) > 1 || names[0] != formatCommon {
			for i, name := range names {
				names[i] = fmt.Sprintf("%s %s", number(r.formats[name]), name)
			}
			fmt.Fprintf(b, "Formats of lines: %s\n", strings.Join(names, "; "))
		}
		fmt.Fprintf(b, "made from %s to %s (%s)\n", r.time(r.first, time.DateTime+" -0700"), r.time(r.last, time.DateTime+" -0700"), span(r.last-r.first))
	}
	if r.skipped > 0 {
		fmt.Fprintf(b, "Left out %s that cannot be read:\n", plural(r.skipped, "line"))
		for _, s := range r.samples {
			where := fmt.Sprintf("line %d", s.number)
			if len(r.cfg.files) > 1 {
				where = fmt.Sprintf("%s, line %d", s.file, s.number)
			}
			fmt.Fprintf(b, "  %s: %v: %s\n", where, s.err, s.text)
		}
		if more := r.skipped - len(r.samples); more > 0 {
			fmt.Fprintf(b, "  and %s more\n", number(more))
		}
	}
	for _, t := range r.truncated {
		fmt.Fprintf(b, "%s ends in the middle: what its gzip held behind line %s is missing\n", printable(t.file, 200), number(t.lines))
	}
	if r.requests == 0 {
		fmt.Fprintf(b, "There is nothing to replay: no line of %s is like\n"+
			`  192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5120`+"\n", name)
	}
}

// formatNames are the formats of the lines, the most frequent first.
func (r *findings) formatNames() []string {
	return slices.SortedFunc(maps.Keys(r.formats), func(a, b string) int {
		return cmp.Or(r.formats[b]-r.formats[a], strings.Compare(a, b))
	})
}

// labels name the limits where they are compared.
func (r *findings) labels() []string {
	of := map[string]int{}
	for _, l := range r.cfg.limits {
		of[l.algorithm]++
	}
	var names []string
	for i, l := range r.cfg.limits {
		name := l.algorithm
		switch {
		case r.cfg.sweep:
			name = l.label
		case of[name] > 1 && len(r.cfg.limits) <= 26:
			name += " " + string(rune('A'+i))
		case of[name] > 1:
			name += fmt.Sprintf(" %d", i+1)
		}
		names = append(names, name)
	}
	return names
}

func (r *findings) writeLimits(b *strings.Builder) {
	word := "limit"
	switch {
	case r.cfg.sweep:
		word = "limits to pick from"
	case len(r.cfg.limits) > 1:
		word = "limits compared"
	}
	fmt.Fprintf(b, "\nThe %s, for each %s:\n", word, keyWords[r.cfg.key].one)
	for i, label := range r.labels() {
		fmt.Fprintf(b, "  %s: %v\n", label, r.cfg.limits[i])
	}
	if r.cfg.standard {
		fmt.Fprintln(b, "  (the default; --algorithm, --rate, --burst and others choose another: see --help)")
	}
}

func (r *findings) writeTotals(b *strings.Builder) {
	word := keyWords[r.cfg.key]
	t := table{left: 1}
	t.row("", "requests", "allowed", "denied", "share denied", word.many+" denied")
	for i, label := range r.labels() {
		denied := r.requests - r.allowed[i]
		t.row(label, number(r.requests), number(r.allowed[i]), number(denied), percent(denied, r.requests),
			fmt.Sprintf("%s of %s", number(r.keysDenied[i]), number(r.keys)))
	}
	b.WriteString("\n")
	t.write(b)
	switch {
	case len(r.cfg.limits) == 2 && !r.cfg.sweep:
		fmt.Fprintf(b, "\nDecided differently: %s of %s requests (%s)", number(r.differ), number(r.requests), percent(r.differ, r.requests))
		separator := ": "
		for i, n := range r.alone {
			if n > 0 {
				fmt.Fprintf(b, "%s%s allowed by %s alone", separator, number(n), r.labels()[i])
				separator = ", "
			}
		}
		b.WriteString("\n")
	case len(r.cfg.limits) > 2 && !r.cfg.sweep:
		fmt.Fprintf(b, "\nNot decided alike by all: %s of %s requests (%s)\n", number(r.differ), number(r.requests), percent(r.differ, r.requests))
	}
}

func (r *findings) writeKeys(b *strings.Builder) {
	word := keyWords[r.cfg.key]
	if len(r.denied.items) == 0 {
		fmt.Fprintf(b, "\nNobody was denied. A lower --rate shows where the limit begins to bite.\n")
		return
	}
	fmt.Fprintf(b, "\nThe %s denied most", word.many)
	if r.denied.beyond > 0 {
		fmt.Fprintf(b, " (%d of %s; --top shows more)", len(r.denied.items), number(len(r.denied.items)+r.denied.beyond))
	}
	b.WriteString(":\n")
	t := r.tallyTable()
	for _, k := range r.denied.items {
		name := printable(k.key, 70)
		if name == "-" {
			name = "- (the log has none)"
		}
		t.row(r.tallyRow(name, k)...)
	}
	t.write(b)
}

func (r *findings) writeMinutes(b *strings.Builder, title string, minutes top[tally]) {
	if len(minutes.items) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%s", title)
	if minutes.beyond > 0 {
		fmt.Fprintf(b, " (%d of %s; --top shows more)", len(minutes.items), number(len(minutes.items)+minutes.beyond))
	}
	b.WriteString(":\n")
	t := r.tallyTable()
	for _, m := range minutes.items {
		t.row(r.tallyRow(r.time(m.minute*int64(time.Minute/time.Microsecond), "2006-01-02 15:04"), m)...)
	}
	t.write(b)
}

// tallyTable is a table of tallies, with its headings.
func (r *findings) tallyTable() *table {
	t := &table{left: 1}
	switch labels := r.labels(); len(labels) {
	case 1:
		t.row("", "requests", "allowed", "denied", "share denied")
	case 2:
		t.row("", "requests", "denied by "+labels[0], "share", "denied by "+labels[1], "share")
	default:
		t.row(append([]string{"denied by", "requests"}, labels...)...)
	}
	return t
}

func (r *findings) tallyRow(name string, t tally) []string {
	row := []string{name, number(t.requests)}
	if len(t.denied) == 1 {
		row = append(row, number(t.requests-t.denied[0]))
	}
	for _, denied := range t.denied {
		row = append(row, number(denied))
		if len(t.denied) <= 2 {
			row = append(row, percent(denied, t.requests))
		}
	}
	return row
}

// time shows a time as the log does, or in UTC if the log uses several zones.
func (r *findings) time(at int64, layout string) string {
	return time.UnixMicro(at).In(r.location()).Format(layout)
}

func (r *findings) location() *time.Location {
	if r.zones || r.zone == 0 {
		return time.UTC
	}
	return time.FixedZone("", r.zone)
}

// A table aligns columns: the first left of them to the left, the others to the
// right.
type table struct {
	left int
	rows [][]string
}

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) write(b *strings.Builder) {
	var widths []int
	for _, row := range t.rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range t.rows {
		line := ""
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i < t.left {
				line += "  " + cell + pad
			} else {
				line += "  " + pad + cell
			}
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
}

// printable makes what clients wrote into a log fit for a terminal: without
// control characters, and in at most width characters.
func printable(s string, width int) string {
	var b strings.Builder
	for used := 0; len(s) > 0; {
		c, size := utf8.DecodeRuneInString(s)
		shown := s[:size]
		if c == utf8.RuneError && size == 1 || !unicode.IsPrint(c) {
			shown = strconv.Quote(shown)
			shown = shown[1 : len(shown)-1]
		}
		used += utf8.RuneCountInString(shown)
		if used > width-1 && (used > width || len(s) > size) {
			return b.String() + "…"
		}
		b.WriteString(shown)
		s = s[size:]
	}
	return b.String()
}

// number writes n with commas between thousands.
func number(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func plural(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return number(n) + " " + what
}

// percent is the share of part, and never 0.0 % or 100.0 % of what is not.
func percent(part, all int) string {
	share := 100 * float64(part) / float64(max(all, 1))
	switch {
	case part > 0 && share < 0.05:
		return "<0.1 %"
	case part < all && share >= 99.95:
		return ">99.9 %"
	}
	return fmt.Sprintf("%.1f %%", share)
}

// units of time that people count in.
var units = []struct {
	name string
	d    time.Duration
}{
	{"day", 24 * time.Hour}, {"hour", time.Hour}, {"minute", time.Minute}, {"second", time.Second},
}

// duration is d in the largest unit that divides it: "90 seconds".
func duration(d time.Duration) string {
	for _, u := range units {
		if d%u.d == 0 && d != 0 {
			return plural(int(d/u.d), u.name)
		}
	}
	return d.String()
}

// period is what follows "per" or "in any": "minute", "90 seconds".
func period(d time.Duration) string {
	for _, u := range units {
		if d == u.d {
			return u.name
		}
	}
	return duration(d)
}

// span is the time between the first request and the last, in its two largest
// units: "3 days 11 hours".
func span(micros int64) string {
	rest := time.Duration(micros) * time.Microsecond // 2096 is within 292 years of 1970
	var parts []string
	for _, u := range units {
		n := rest / u.d
		rest -= n * u.d
		if n > 0 {
			parts = append(parts, plural(int(n), u.name))
		} else if len(parts) > 0 {
			break
		}
	}
	if len(parts) == 0 {
		return "within one second"
	}
	return strings.Join(parts[:min(len(parts), 2)], " ")
}
