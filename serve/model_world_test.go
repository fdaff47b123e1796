package serve

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	exact "github.com/tryacquire/ratelimit/internal/testing/model"
)

// A modelRule is a rate_limit, or that of a child n.
type modelRule struct {
	limit         int
	unit          string
	algorithm     string
	burst         int
	zone          string
	shadow, quota bool
	always        bool // counts what it denies
}

func (r *modelRule) window() time.Duration { return units[unitOf(r.unit)] }
func (r *modelRule) enforced() bool        { return !r.shadow && !r.quota }

func (r *modelRule) most() int {
	if r.algorithm == tokenBucket {
		return r.burst
	}
	return r.limit
}

func (r *modelRule) yaml() string {
	text := fmt.Sprintf("shadow_mode: %t, quota_mode: %t, rate_limit: {unit: %s, requests_per_unit: %d, algorithm: %s", r.shadow, r.quota, r.unit, r.limit, r.algorithm)
	switch {
	case r.burst > 0:
		text += fmt.Sprintf(", burst: %d", r.burst)
	case r.zone != "":
		text += ", time_zone: " + r.zone
	case r.always:
		text += ", count_denied: true"
	}
	return text + "}"
}

// fresh is the exact model of a key without use.
func (r *modelRule) fresh() exact.Model {
	switch r.algorithm {
	case tokenBucket:
		return exact.NewTokenBucket(r.limit, r.window(), r.burst)
	case slidingWindow:
		return exact.NewSlidingWindow(r.limit, r.window(), 40)
	case calendarWindow:
		zone, err := time.LoadLocation(r.zone)
		if err != nil {
			panic(err)
		}
		switch r.unit {
		case "week":
			return exact.NewCalendarWindow(r.limit, exact.Weeks(time.Monday, zone))
		case "month":
			return exact.NewCalendarWindow(r.limit, exact.Months(1, zone))
		}
		return exact.NewCalendarWindow(r.limit, exact.Days(zone))
	}
	limit := r.limit
	if r.always {
		limit = mostLimit
	}
	return exact.NewAlignedWindow(limit, r.window(), 0)
}

// A world is a random configuration, and what has been counted.
type world struct {
	random *rand.Rand
	o      Options
	rules  map[string]*modelRule // by how a file has it: a, a=1, a=v*, and a/n, a=1/n, …
	keys   map[string]exact.Model
}

func newWorld(random *rand.Rand) *world {
	w := &world{random: random, rules: map[string]*modelRule{}, keys: map[string]exact.Model{}}
	w.o.CountDenied = random.IntN(3) == 0
	if random.IntN(3) == 0 {
		w.o.Denials = []time.Duration{time.Second, 24 * time.Hour}[random.IntN(2)]
	}
	file := "domain: shop\ndescriptors:\n"
	for _, key := range strings.Split("abcdef", "") {
		for _, value := range []string{"", "1", "v*"} {
			if value != "" && random.IntN(2) == 0 {
				continue
			}
			name, text := key, "- {key: "+key
			if value != "" {
				name, text = key+"="+value, text+", value: "+value
			}
			w.rules[name], w.rules[name+"/n"] = w.rule(), w.rule()
			file += fmt.Sprintf("%s, %s, descriptors: [{key: n, %s}]}\n", text, w.rules[name].yaml(), w.rules[name+"/n"].yaml())
		}
	}
	w.o.Files = func() ([]Source, error) { return []Source{{"f", []byte(file)}}, nil }
	return w
}

func pick[T any](random *rand.Rand, of ...T) T { return of[random.IntN(len(of))] }

func (w *world) rule() *modelRule {
	r := &modelRule{limit: 1 + w.random.IntN(7), unit: pick(w.random, "second", "minute", "minute", "hour", "day", "week"), algorithm: fixedWindow}
	if w.o.Denials == 0 { // a bucket's denial from memory, of more hits than were denied before, knows when it may end, not when it does
		r.algorithm = pick(w.random, fixedWindow, fixedWindow, tokenBucket, slidingWindow, calendarWindow)
	}
	switch r.algorithm {
	case tokenBucket:
		r.burst = 1 + w.random.IntN(9)
	case calendarWindow:
		r.unit, r.zone = pick(w.random, "day", "week", "month"), pick(w.random, "UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu")
	case fixedWindow:
		r.always = w.random.IntN(4) == 0
		if w.random.IntN(12) == 0 {
			r.limit = 0
		}
	}
	switch w.random.IntN(5) {
	case 0:
		r.shadow = true
	case 1:
		r.quota = true
	}
	return r
}

// find is the rule of a descriptor of key and value, or of its child n.
func (w *world) find(key, value string, child bool) *modelRule {
	name := key
	if w.rules[key+"="+value] != nil {
		name = key + "=" + value
	} else if strings.HasPrefix(value, "v") && w.rules[key+"=v*"] != nil {
		name = key + "=v*"
	}
	if child {
		name += "/n"
	}
	return w.rules[name]
}

// parts are those of a random request, and its descriptors.
func (w *world) parts() (all []*modelPart, texts []string) {
	used := map[string]bool{}
	for range 1 + w.random.IntN(pick(w.random, 1, 2, 4, 12, 40)) {
		key, value, child := pick(w.random, "a", "b", "c", "d", "e", "f"), pick(w.random, "1", "2", "v1", "v2"), w.random.IntN(3) == 0
		name := key + "=" + value
		if child {
			name += ",n=" + pick(w.random, "1", "2")
		}
		if used[name] {
			continue
		}
		used[name] = true
		p := &modelPart{modelRule: w.find(key, value, child), hits: pick(w.random, 0, 1, 1, 1, 1, 2, 3, 8)}
		if w.o.CountDenied && p.algorithm == fixedWindow {
			own := *p.modelRule
			own.always = true
			p.modelRule = &own
		}
		if p.limit > 0 {
			if w.keys[name] == nil {
				w.keys[name] = p.fresh()
			}
			p.state = w.keys[name]
		}
		p.back = p.hits > 0 && p.algorithm != slidingWindow && w.random.IntN(12) == 0
		all, texts = append(all, p), append(texts, fmt.Sprintf("%s:%d", name, p.hits))
	}
	return all, texts
}
