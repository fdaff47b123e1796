package state

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/keyname"
)

// Read reads the states of keys by their names in Redis (package keyname), in one pipeline. Logs with entries that have
// left the window need a second one, which reads at most that many entries of each log. (Such entries are removed when
// permits are taken, a bounded number at a time, so few keys have many.) What is wrong with a single key is in its
// State; the error says what is wrong with the server.
func Read(ctx context.Context, c redis.Cmdable, names []string, entries int) ([]State, error) {
	p := c.Pipeline()
	now := p.Time(ctx)
	all := make([]reading, len(names))
	for i, name := range names {
		all[i].entries = int64(entries)
		all[i].ask(ctx, p, name)
	}
	if err := exec(ctx, p); err != nil {
		return nil, err
	}
	at, err := now.Result()
	if err != nil {
		return nil, err
	}
	p = c.Pipeline()
	for i := range all {
		all[i].parse(ctx, p, at.UnixMicro())
	}
	if p.Len() > 0 {
		if err := exec(ctx, p); err != nil {
			return nil, err
		}
	}
	states := make([]State, len(all))
	for i := range all {
		if more := all[i].more; more != nil && all[i].state.Err == nil {
			all[i].state.Err = more()
		}
		states[i] = all[i].state
		if s := &states[i]; s.Err != nil { // a part of it may have been read
			s.Used, s.AtMost, s.Empty, s.Leased, s.Promised, s.Paused, s.Strikes, s.Rule = 0, false, 0, 0, 0, 0, 0, Rule{}
		}
	}
	return states, nil
}

// exec runs a pipeline. What Redis answers to a single command is no error here.
func exec(ctx context.Context, p redis.Pipeliner) error {
	cmds, _ := p.Exec(ctx)
	for _, cmd := range cmds {
		var answered redis.Error
		if err := cmd.Err(); err != nil && !errors.As(err, &answered) {
			return err
		}
	}
	return nil
}

// A reading is the way to a state.
type reading struct {
	state   State
	entries int64 // read of those that have left the window

	text       *redis.StringCmd
	head, tail *redis.StringSliceCmd // of a list
	fields     *redis.SliceCmd
	last       *redis.ZSliceCmd
	ttl        *redis.DurationCmd

	more func() error // goes on after the second pipeline
}

func (r *reading) ask(ctx context.Context, p redis.Pipeliner, name string) {
	r.state.Name = name
	parts, ok := keyname.Parse(name)
	if !ok {
		r.state.Err = errors.New("it is no name of a limiter's key, as ratelimit:default:tokenbucket{user:42} is")
		return
	}
	r.state.Parts = parts
	switch of, _ := algorithms.Of(parts.Algorithm); of.State {
	case algorithms.Text:
		r.text = p.Get(ctx, name)
	case algorithms.List:
		r.head, r.tail = p.LRange(ctx, name, 0, 2), p.LRange(ctx, name, -2, -1)
	case algorithms.Hash:
		r.fields = p.HMGet(ctx, name, "rule", "instant", "total", "base", "oldest", "first", "last")
	case algorithms.SortedSet:
		r.last = p.ZRangeWithScores(ctx, name, -1, -1)
	default:
		r.state.Err = errUnknown
		return
	}
	r.ttl = p.PTTL(ctx, name)
}

// parse makes a state of what the first pipeline has brought, and asks p for what it needs still.
func (r *reading) parse(ctx context.Context, p redis.Pipeliner, now int64) {
	s := &r.state
	if s.Err != nil {
		return
	}
	if s.Expires, s.Err = r.ttl.Result(); s.Err != nil {
		return
	}
	switch {
	case r.text != nil:
		var text string
		if text, s.Err = r.text.Result(); errors.Is(s.Err, redis.Nil) {
			s.Err = nil
			return
		}
		if s.Err == nil {
			s.Exists = true
			switch s.Parts.Algorithm {
			case algorithms.FixedWindow:
				s.Err = s.fixedWindow(text, now)
			case algorithms.CalendarWindow:
				s.Err = s.calendarWindow(text, now)
			case algorithms.Pause:
				s.Err = s.pause(text, now)
			case algorithms.FairTokenBucket:
				s.Err = s.fairBucket(text, now)
			default:
				s.Err = s.bucket(text, now)
			}
		}
	case r.head != nil:
		var head, tail []string
		if head, s.Err = r.head.Result(); s.Err == nil {
			tail, s.Err = r.tail.Result()
		}
		if s.Err == nil && len(head) > 0 && len(tail) > 0 {
			s.Exists = true
			r.list(ctx, p, head, tail, now)
		}
	case r.fields != nil:
		var fields []any
		if fields, s.Err = r.fields.Result(); s.Err == nil {
			r.hash(ctx, p, fields, now)
		}
	default:
		var last []redis.Z
		if last, s.Err = r.last.Result(); s.Err == nil && len(last) > 0 {
			s.Exists = true
			r.sortedSet(ctx, p, last[0], now)
		}
	}
}

func (s *State) corrupt() error {
	return fmt.Errorf("it holds no state of a %s", Kind(s.Parts.Algorithm))
}

// numbers parses texts that hold whole numbers from 0 to 2^53.
func numbers(texts ...string) ([]int64, bool) {
	parsed := make([]int64, len(texts))
	for i, text := range texts {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 || n > 1<<53 {
			return nil, false
		}
		parsed[i] = n
	}
	return parsed, true
}

// micros is a number of microseconds, up to the longest Duration.
func micros(n int64) time.Duration {
	return time.Duration(min(n, math.MaxInt64/1000)) * time.Microsecond
}
