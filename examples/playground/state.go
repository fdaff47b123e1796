package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/keyname"
	held "github.com/tryacquire/ratelimit/internal/state"
)

// A state is what Redis holds of one key.
type state struct {
	Key     string `json:"key"`     // of the caller
	Words   string `json:"words"`   // what it means
	Raw     string `json:"raw"`     // what is there
	Expires string `json:"expires"` // in how long
	Left    int    `json:"left"`
	Limit   int    `json:"limit"`
}

// A format is how Redis keeps the state of an algorithm.
type format struct {
	id    string // in the names of keys
	words string // how to read it
}

var formats = map[string]format{
	"token-bucket":   {algorithms.TokenBucket, "an instant / how much was missing then / the rule that wrote it, as units a permit / units a microsecond"},
	fair:             {algorithms.FairTokenBucket, "of a caller: when it counted last, what it has had (its mark), its weight; of all: who counts; the bucket, as an instant / how much was missing then / the rule"},
	"leaky-bucket":   {algorithms.LeakyBucket, "an instant / how much was in the bucket then / the rule that wrote it, as units a permit / units a microsecond"},
	"fixed-window":   {algorithms.FixedWindow, "the permits used, and in the last six digits the length of the window; the window ends when the key expires"},
	"sliding-window": {algorithms.SlidingWindowList, "the rule, and then in turn the last instant of a sub-window and all permits until then"},
	"sliding-log":    {algorithms.SlidingLog, "the rule, and then in turn an instant and all permits until then"},
}

// states reads the keys of the callers. It takes no permits.
func (w *world) states(ctx context.Context) ([]state, error) {
	w.mu.Lock()
	s, limiter := w.settings, w.built.plans[w.settings.Plan]
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	var all []state
	for caller := 1; caller <= s.Callers && (caller == 1 || s.key(caller) != s.key(1)); caller++ {
		key := s.key(caller)
		now, err := limiter.Peek(ctx, key)
		if err != nil {
			return nil, err
		}
		one := state{Key: key, Words: held.Result(now), Left: now.Remaining, Limit: now.Limit}
		if one.Raw, one.Expires, err = w.raw(ctx, formats[s.Algorithm].id, key); err != nil {
			return nil, err
		}
		if s.Algorithm == fair && caller == 1 {
			ofAll, _, err := w.raw(ctx, algorithms.FairTokenBucket, sharedKey)
			if err != nil {
				return nil, err
			}
			one.Raw += "\n" + ofAll
		}
		paused, err := w.pauses.Peek(ctx, key)
		if err != nil {
			return nil, err
		}
		if !paused.Allowed {
			raw, _, err := w.raw(ctx, algorithms.Pause, key)
			if err != nil {
				return nil, err
			}
			one.Words = "Paused for another " + held.Brief(paused.RetryAfter) + ". " + one.Words
			one.Raw += "\n" + raw
		}
		all = append(all, one)
	}
	return all, nil
}

// A caller is what became of the requests of one in the last seconds.
type caller struct {
	Who string `json:"who"`
	counts
}

// lately is for how long callers are compared.
const lately = 10

// callers says who got what. w is locked.
func (w *world) callers(now int64) []caller {
	all := make([]caller, w.settings.Callers)
	for i := range all {
		all[i].Who = fmt.Sprintf("caller %d", i+1)
		if w.settings.Greedy && i == 0 {
			all[i].Who += ", greedy"
		}
		for _, s := range w.seconds {
			if s.At > now-lately {
				all[i].add(s.of[i+1])
			}
		}
	}
	return all
}

// raw is what the key of a caller holds, and in how long it expires.
func (w *world) raw(ctx context.Context, id, key string) (text, expires string, err error) {
	name := w.name(id, key)
	kind, elements, more, err := held.Raw(ctx, w.client, name, 41)
	switch {
	case err != nil:
		return "", "", err
	case kind == "none":
		return "no key", "", nil
	case more:
		elements = append(elements, "…")
	}
	left, err := w.client.PTTL(ctx, name).Result()
	return name + " (" + kind + "): " + strings.Join(elements, " "), held.Brief(left), err
}

// name is the name of a caller's key in Redis.
func (w *world) name(id, key string) string { return keyname.NewHead(w.prefix, name, id).Of(key) }
