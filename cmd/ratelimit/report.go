package main

import (
	"cmp"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/tryacquire/ratelimit/cmd/ratelimit/internal/report"
)

// maxSkippedShown is how many of the lines that are not requests are shown.
const maxSkippedShown = 3

// Findings are what a replay found. It holds no more than it prints.
type findings struct {
	cfg config

	requests int
	first    int64 // microseconds since the Unix epoch
	last     int64
	zone     int  // of the log, in seconds east of UTC
	zones    bool // several, so that times are shown in UTC

	skipped int
	samples []skippedLine

	truncated []truncatedLog

	formats map[string]int // of lines

	allowed []int // by each limit
	differ  int   // not decided alike by all
	alone   []int // of them, those that one limit alone allowed

	minute  tally      // the minute that is being counted
	minutes top[tally] // the busiest
	worst   top[tally] // with the most denials

	width int64   // of the parts of the time below, microseconds
	parts []tally // of the time, without gaps

	keys       int
	keysDenied []int
	key        tally // the key that is being counted
	denied     top[tally]
}

type skippedLine struct {
	file   string
	number int
	err    error
	text   string
}

// A truncatedLog is one whose gzip ends in the middle, behind so many lines.
type truncatedLog struct {
	file  string
	lines int
}

// A tally counts the requests of one key or one minute.
type tally struct {
	key      string
	minute   int64 // since the Unix epoch
	requests int
	denied   []int // by each limit
}

func (t *tally) add(v verdicts, limits int) {
	t.requests++
	for i := range limits {
		if !v.allowed(i) {
			t.denied[i]++
		}
	}
}

// allDenied adds up what the limits denied.
func (t *tally) allDenied() (n int) {
	for _, denied := range t.denied {
		n += denied
	}
	return n
}

func newFindings(cfg config) *findings {
	n := len(cfg.limits)
	r := &findings{cfg: cfg, formats: map[string]int{}, allowed: make([]int, n), alone: make([]int, n), keysDenied: make([]int, n)}
	r.minutes = top[tally]{n: cfg.top, compare: func(a, b tally) int {
		return cmp.Or(b.requests-a.requests, cmp.Compare(a.minute, b.minute))
	}}
	r.worst = top[tally]{n: cfg.top, compare: func(a, b tally) int {
		return cmp.Or(b.allDenied()-a.allDenied(), cmp.Compare(a.minute, b.minute))
	}}
	r.denied = top[tally]{n: cfg.top, compare: func(a, b tally) int {
		return cmp.Or(b.allDenied()-a.allDenied(), b.requests-a.requests, strings.Compare(a.key, b.key))
	}}
	return r
}

// skip counts a line that is not a request.
func (r *findings) skip(file string, number int, err error, text []byte) {
	r.skipped++
	if len(r.samples) < maxSkippedShown {
		r.samples = append(r.samples, skippedLine{file, number, err, printable(string(text[:min(len(text), 400)]), 90)})
	}
}

// countRequest counts a line that is one.
func (r *findings) countRequest(q request) {
	if r.requests == 0 {
		r.first, r.last, r.zone = q.at, q.at, q.zone
	}
	r.requests++
	r.formats[q.format]++
	r.first, r.last = min(r.first, q.at), max(r.last, q.at)
	r.zones = r.zones || q.zone != r.zone
}

// count counts a decision. They come in the order of time.
func (r *findings) count(at int64, v verdicts) {
	for i := range r.cfg.limits {
		if v.allowed(i) {
			r.allowed[i]++
		}
	}
	if all := verdicts(1)<<len(r.cfg.limits) - 1; v != 0 && v != all {
		r.differ++
		if v&(v-1) == 0 {
			r.alone[bits.TrailingZeros32(uint32(v))]++
		}
	}
	if minute := at / int64(time.Minute/time.Microsecond); minute != r.minute.minute || r.minute.requests == 0 {
		r.endMinute()
		r.minute = tally{minute: minute, denied: make([]int, len(r.cfg.limits))}
	}
	r.minute.add(v, len(r.cfg.limits))
	r.part(at).add(v, len(r.cfg.limits))
}

// widths are the lengths that a part of the time can have: what people count in.
var widths = []time.Duration{
	time.Second, 5 * time.Second, 15 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour, 6 * time.Hour, 24 * time.Hour,
	7 * 24 * time.Hour, 28 * 24 * time.Hour, 364 * 24 * time.Hour,
}

// part is the part of the time that an instant is in. All requests have been read by then.
func (r *findings) part(at int64) *tally {
	if r.width == 0 {
		for _, w := range widths {
			r.width = w.Microseconds()
			if r.last/r.width-r.first/r.width < report.MaxBuckets {
				break
			}
		}
		r.parts = make([]tally, r.last/r.width-r.first/r.width+1)
		for i := range r.parts {
			r.parts[i].denied = make([]int, len(r.cfg.limits))
		}
	}
	return &r.parts[at/r.width-r.first/r.width]
}

// countKey counts a decision again, for its key. They come in the order of keys.
func (r *findings) countKey(key []byte, v verdicts) {
	if string(key) != r.key.key || r.key.requests == 0 {
		r.endKey()
		r.key = tally{key: string(key), denied: make([]int, len(r.cfg.limits))}
	}
	r.key.add(v, len(r.cfg.limits))
}

// end ends the counting.
func (r *findings) end() {
	r.endMinute()
	r.endKey()
}

func (r *findings) endMinute() {
	if r.minute.requests > 0 {
		r.minutes.add(r.minute)
		if r.minute.allDenied() > 0 {
			r.worst.add(r.minute)
		}
	}
	r.minute = tally{}
}

func (r *findings) endKey() {
	if r.key.requests > 0 {
		r.keys++
		for i := range r.cfg.limits {
			if r.key.denied[i] > 0 {
				r.keysDenied[i]++
			}
		}
		if r.key.allDenied() > 0 {
			r.denied.add(r.key)
		}
	}
	r.key = tally{}
}

// A top keeps the first n of what is added.
type top[T any] struct {
	n       int
	compare func(a, b T) int
	items   []T // in order
	beyond  int // how many were left out
}

func (t *top[T]) add(item T) {
	i, _ := slices.BinarySearchFunc(t.items, item, t.compare)
	if i < t.n {
		t.items = slices.Insert(t.items, i, item)
	}
	if len(t.items) > t.n || i == t.n {
		t.items = t.items[:min(len(t.items), t.n)]
		t.beyond++
	}
}
