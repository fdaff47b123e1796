package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
)

// A steady key has been asked for evenly for a long time: with each call comes
// as much new as leaves. The limiter's clock is the caller's, so that minutes
// pass in seconds, and every call is allowed, but none more at the same instant.
type steady struct {
	name string
	// make returns a limiter whose limit the fill uses up.
	make  func(c ratelimit.Client, opts ...ratelimit.Option) (ratelimit.Limiter, error)
	fill  int   // calls until a key is full
	calls int64 // in a window

	permits func(call int) int // of each call for a key; nil: 1
}

const (
	steadyWindow = 1000 * time.Second
	// steadyStart is a multiple of the window, and so of every sub-window.
	steadyStart = 1_600_000_000 * int64(time.Second/time.Microsecond)
	steadyKeys  = 8

	few, many               = 10, 1000 // sub-windows
	fewEntries, manyEntries = 100, 100_000
)

// slidingWindowOf gets two calls in each sub-window. One more sub-window than
// there are counts: the one that the window's edge cuts.
func slidingWindowOf(storage ratelimit.Storage, buckets int) steady {
	limit := 2*buckets + 2
	return steady{
		name: fmt.Sprintf("sliding window, %v, %s sub-windows", storage, thousands(buckets)),
		fill: limit, calls: int64(2 * buckets),
		make: func(c ratelimit.Client, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
			return ratelimit.NewSlidingWindow(c, limit, steadyWindow,
				append(opts, ratelimit.WithStorage(storage), ratelimit.WithSubWindows(buckets))...)
		},
	}
}

// zsetWindowOf holds so many members.
func zsetWindowOf(members int) steady {
	return steady{
		name: fmt.Sprintf("sliding window, ZSet, %s permits", thousands(members)),
		fill: members, calls: int64(members),
		make: func(c ratelimit.Client, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
			return ratelimit.NewSlidingWindow(c, members, steadyWindow,
				append(opts, ratelimit.WithStorage(ratelimit.StorageZSet))...)
		},
	}
}

// slidingLogOf holds so many entries, under rules of which each has half the
// window and the limit of the one before.
func slidingLogOf(entries, rules int) steady {
	name := fmt.Sprintf("sliding log, %s entries", thousands(entries))
	if rules > 1 {
		name += fmt.Sprintf(", %d rules", rules)
	}
	return steady{
		name: name, fill: entries, calls: int64(entries),
		make: func(c ratelimit.Client, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
			var all []ratelimit.Rule
			for r := range rules {
				all = append(all, ratelimit.Rule{Limit: entries >> r, Window: steadyWindow >> r})
			}
			return ratelimit.NewSlidingLog(c, all, opts...)
		},
	}
}

// clockAt stands still at an instant, in microseconds.
func clockAt(now int64) ratelimit.Option {
	return ratelimit.WithClock(func() time.Time { return time.UnixMicro(now) })
}

// A steadyLoad is a number of steady keys and their clock.
type steadyLoad struct {
	recording
	steady
	keys    int   // divides a batch, so that a batch ends with the last of them
	nextKey int   // that is asked for
	clock   int64 // of its next allowed call
	call    int   // its number, for each key
}

// permitsArg is the place of the permits in a command: EVALSHA, digest, 1, key, permits.
const permitsArg = 4

// filled fills the keys of a steady limiter. Their names begin with tag.
func (s steady) filled(ctx context.Context, b *testbed, keys int, tag string) (*steadyLoad, error) {
	progress("filling %s", s.name)
	limiter, err := s.make(b.client, ratelimit.WithoutMerging(), ratelimit.WithPrefix(tag), clockAt(steadyStart))
	if err != nil {
		return nil, err
	}
	decide, err := decider(limiter, nil)
	if err != nil {
		return nil, err
	}
	rec, err := record(ctx, b, decide)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.name, err)
	}
	if last := rec.args[len(rec.args)-1]; last != strconv.FormatInt(steadyStart, 10) {
		return nil, fmt.Errorf("%s: the last argument is %q, not the clock", s.name, last)
	}
	if err := limiter.Reset(ctx, user(0)); err != nil {
		return nil, err
	}
	t := &steadyLoad{recording: rec, steady: s, keys: keys, clock: steadyStart}
	return t, t.replay(allowed).send(ctx, b.admin, s.fill*keys)
}

// replay goes on with allowed calls, or with calls that are denied because the
// clock stands still.
func (t *steadyLoad) replay(v verdict) replay {
	next := func() []any {
		command := t.command(t.nextKey, t.keys)
		if t.permits != nil {
			command[permitsArg] = t.permits(t.call)
		}
		now := t.clock
		if v == denied {
			now -= t.step()
		}
		command[len(command)-1] = now
		if t.nextKey++; t.nextKey == t.keys {
			t.nextKey = 0
			if v == allowed {
				t.clock += t.step()
				t.call++
			}
		}
		return command
	}
	return replay{t.name, v, next, 1}
}

// step is the time between the calls for a key, in whole microseconds.
func (s steady) step() int64 {
	window := steadyWindow.Microseconds()
	return (window + s.calls - 1) / s.calls
}

// bytesPerKey is the mean memory of the keys.
func (t *steadyLoad) bytesPerKey(ctx context.Context, c *redis.Client) (float64, error) {
	sum := 0.0
	for i := range t.keys {
		key := t.command(i, t.keys)[t.places[0]].(string)
		bytes, err := c.MemoryUsage(ctx, key, 0).Result()
		if err != nil {
			return 0, fmt.Errorf("%s: MEMORY USAGE: %w", t.name, err)
		}
		sum += float64(bytes)
	}
	return sum / float64(t.keys), nil
}

// steadyReplays are the filled limiters that the targets compare.
func steadyReplays(ctx context.Context, b *testbed, o options) ([]replay, error) {
	var replays []replay
	for i, s := range []steady{
		slidingWindowOf(ratelimit.StorageHash, few), slidingWindowOf(ratelimit.StorageHash, many),
		slidingWindowOf(ratelimit.StorageList, few), slidingWindowOf(ratelimit.StorageList, many),
		slidingLogOf(fewEntries, 1), slidingLogOf(manyEntries, 1),
	} {
		if !o.only.MatchString(s.name) {
			continue
		}
		t, err := s.filled(ctx, b, steadyKeys, fmt.Sprintf("f%02d", i))
		if err != nil {
			return nil, err
		}
		replays = append(replays, t.replay(allowed), t.replay(denied))
	}
	return replays, nil
}
