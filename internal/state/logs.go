package state

import (
	"context"
	"regexp"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit/internal/algorithms"
)

// A log is the ends of a log: entry 0 has left the window (base is its total), the next one is at
// oldest, and the last one at instant, with the total of all.
type log struct {
	rule                         string
	instant, total, base, oldest int64
}

var logRule = regexp.MustCompile(`^([1-9]\d*)/([1-9]\d*)(@?)((?: \d+/\d+)*)(?:~(\d+)/(0?)(\d+))?!?$`)

// open reads the rule and the ends of a log. Entries up to edge have left the window; ok says whether the
// ends show how many permits they had.
func (s *State) open(l log, now int64) (edge int64, ok bool) {
	m := logRule.FindStringSubmatch(l.rule)
	if m == nil || l.oldest > l.instant || l.base > l.total {
		s.Err = s.corrupt()
		return 0, true
	}
	n, valid := numbers(m[1], m[2])
	if !valid {
		s.Err = s.corrupt()
		return 0, true
	}
	window, slot := n[0], n[1]
	s.CallersClock = m[3] != ""
	slices := m[5] != "" && (m[6] == "" || m[5] != m[7]) // else the mark says only that the server's clock has stepped back
	s.Rule = Rule{Window: micros(window), Others: strings.Count(m[4], " ")}
	if slot > 1 {
		s.Rule.Slot = micros(slot)
	}
	present := now
	if l.instant-slot >= now { // a caller's clock is ahead, or the server's stepped back
		if s.CallersClock {
			present = l.instant - slot + 1
		} else {
			l.instant = now - now%slot + slot - 1
			if slices {
				l.instant = now + slot - 1
			}
		}
	}
	if ends, ok := numbers(m[5]); ok && slices {
		s.Leased = micros(max(min(ends[0], l.instant)-present, 0))
	}
	edge = present - window
	if l.instant <= edge {
		return edge, true
	}
	s.Used, s.Empty = l.total-l.base, micros(l.instant+window-now)
	if s.Used == 0 { // all were given back
		s.Empty = 0
	}
	return edge, l.oldest > edge
}

// leave subtracts the entries that have left the window, which begin behind entry 0. There are no more of
// them if they are all.
func (s *State) leave(base, edge int64, all bool, entries []entry) {
	gone := base
	for _, e := range entries {
		if e.at > edge {
			all = true
			break
		}
		gone = e.total
	}
	s.Used -= min(gone-base, s.Used)
	s.AtMost = !all
	if s.Used == 0 {
		s.Empty = 0
	}
}

type entry struct{ at, total int64 }

func (r *reading) list(ctx context.Context, p redis.Pipeliner, head, tail []string, now int64) {
	s := &r.state
	if len(head) < 3 || len(tail) < 2 {
		s.Err = s.corrupt()
		return
	}
	n, ok := numbers(tail[0], tail[1], head[1], head[2])
	if !ok {
		s.Err = s.corrupt()
		return
	}
	l := log{head[0], n[0], n[1], n[2], n[3]}
	edge, enough := s.open(l, now)
	if enough {
		return
	}
	cmd := p.LRange(ctx, s.Name, 2, 2*r.entries+1)
	r.more = func() error {
		texts, err := cmd.Result()
		if err != nil {
			return err
		}
		n, ok := numbers(texts...)
		if !ok || len(n)%2 == 1 {
			return s.corrupt()
		}
		var entries []entry
		for i := 0; i < len(n); i += 2 {
			entries = append(entries, entry{n[i], n[i+1]})
		}
		s.leave(l.base, edge, int64(len(entries)) < r.entries, entries)
		return nil
	}
}

func (r *reading) hash(ctx context.Context, p redis.Pipeliner, fields []any, now int64) {
	s := &r.state
	texts := make([]string, len(fields))
	for i, f := range fields {
		if text, ok := f.(string); ok {
			texts[i], s.Exists = text, true
		}
	}
	if !s.Exists {
		if s.Exists = s.Expires != -2; s.Exists { // a hash of other fields
			s.Err = s.corrupt()
		}
		return
	}
	n, ok := numbers(texts[1:]...)
	if !ok {
		s.Err = s.corrupt()
		return
	}
	l := log{texts[0], n[0], n[1], n[2], n[3]}
	first, last := n[4], n[5]
	edge, enough := s.open(l, now)
	if enough {
		return
	}
	var between []string // the entries that have fields of their own
	for i := first + 1; i < last && int64(len(between)) < r.entries; i++ {
		between = append(between, strconv.FormatInt(i, 10))
	}
	if len(between) == 0 {
		s.Err = s.corrupt()
		return
	}
	cmd := p.HMGet(ctx, s.Name, between...)
	r.more = func() error {
		values, err := cmd.Result()
		if err != nil {
			return err
		}
		var entries []entry
		for _, value := range values {
			text, _ := value.(string)
			at, total, _ := strings.Cut(text, "/")
			n, ok := numbers(at, total)
			if !ok {
				return s.corrupt()
			}
			entries = append(entries, entry{n[0], n[1]})
		}
		s.leave(l.base, edge, int64(len(entries)) == last-first-1, entries)
		return nil
	}
}

var (
	permitName = regexp.MustCompile(`^[1-9]\d{9}/(\d+)(@?)((?:\+\d+/\d+)*)(!?)$`)
	holdName   = regexp.MustCompile(`^[1-9]\d*/\w+/([1-9]\d*)(?:(@)\d*)?$`)
)

// sortedSet reads the state of the storage ZSet, or of permits in flight. The last member says by which
// rule.
func (r *reading) sortedSet(ctx context.Context, p redis.Pipeliner, last redis.Z, now int64) {
	s := &r.state
	held := s.Parts.Algorithm == algorithms.InFlight
	pattern := permitName
	if held {
		pattern = holdName
	}
	name, _ := last.Member.(string)
	m := pattern.FindStringSubmatch(name)
	if m == nil || last.Score < 0 || last.Score >= 1<<53 {
		s.Err = s.corrupt()
		return
	}
	n, ok := numbers(m[1])
	if !ok {
		s.Err = s.corrupt()
		return
	}
	window, recent := n[0], int64(last.Score)
	s.Rule.Window, s.CallersClock = micros(window), m[2] == "@"
	edge, ends, returned := now, recent, int64(0)
	if held {
		if recent > now+window && !s.CallersClock { // the server's clock stepped back
			ends = now + window
		}
	} else {
		s.Rule.Others = strings.Count(m[3], "+")
		present := now
		if recent > now && s.CallersClock {
			present = recent
		}
		recent = min(recent, present)
		edge, ends = present-window, recent+window
		if m[4] != "" {
			returned = 1
		}
	}
	if ends <= now {
		return
	}
	left := micros(ends - now)
	cmd := p.ZCount(ctx, s.Name, "("+strconv.FormatInt(edge, 10), "+inf")
	r.more = func() error {
		count, err := cmd.Result()
		if s.Used = max(count-returned, 0); s.Used > 0 {
			s.Empty = left
		}
		return err
	}
}
