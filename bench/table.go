package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// A table has names in its first column and figures in the others.
type table struct {
	title  string
	note   string // in prose, above it
	header []string
	rows   [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// markdown is the table under a heading, its columns aligned for reading as
// plain text too.
func (t table) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "### %s\n\n", t.title)
	if t.note != "" {
		fmt.Fprintf(&b, "%s\n\n", t.note)
	}
	widths := t.widths()
	writeRow(&b, widths, t.header)
	b.WriteByte('|')
	for i, w := range widths {
		if i == 0 {
			b.WriteString(strings.Repeat("-", w+2) + "|")
		} else {
			b.WriteString(strings.Repeat("-", w+1) + ":|")
		}
	}
	b.WriteByte('\n')
	for _, row := range t.rows {
		writeRow(&b, widths, row)
	}
	return b.String()
}

func (t table) widths() []int {
	widths := make([]int, len(t.header))
	for _, row := range append([][]string{t.header}, t.rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell), 3)
		}
	}
	return widths
}

func writeRow(b *strings.Builder, widths []int, row []string) {
	b.WriteByte('|')
	for i, cell := range row {
		pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
		if i == 0 {
			b.WriteString(" " + cell + pad + " |")
		} else {
			b.WriteString(" " + pad + cell + " |")
		}
	}
	b.WriteByte('\n')
}

const unknown = "–" // was not measured

// number has three significant digits or all before the point.
func number(v float64) string {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return unknown
	case math.Abs(v) >= 1000:
		return thousands(int(math.Round(v)))
	case math.Abs(v) >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case math.Abs(v) >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// thousands separates groups of digits.
func thousands(n int) string {
	digits := strconv.Itoa(n)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// latency is given in nanoseconds.
func latency(ns float64) string {
	switch d := time.Duration(ns); {
	case math.IsNaN(ns) || ns == 0:
		return unknown
	case d < time.Microsecond:
		return number(ns) + " ns"
	case d < time.Millisecond:
		return number(ns/1e3) + " µs"
	default:
		return number(ns/1e6) + " ms"
	}
}

func times(v float64) string {
	if s := number(v); s != unknown {
		return s + " ×"
	}
	return unknown
}

func percent(share float64) string {
	if math.IsNaN(share) {
		return unknown
	}
	return number(100*share) + " %"
}
