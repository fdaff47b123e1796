package main

import (
	"slices"
	"strconv"
	"time"
)

// A scene is traffic on one key, and the rules that hold while it comes.
type scene struct {
	name     string
	title    string
	length   time.Duration
	requests []time.Duration // each is one request, in order
	limits   []change        // the first at 0
	notes    []note
}

// A change puts another limit into force: so many permits at once, or in a window of 10 s; buckets
// refill as many in 10 s.
type change struct {
	at    time.Duration
	limit int
}

// A note is written above the traffic that comes between two instants.
type note struct {
	from, to time.Duration
	text     string
}

const usual = 10 // permits

const seconds = time.Second

func scenes() []scene {
	unchanged := []change{{0, usual}}
	return []scene{
		{
			name: "overview", title: "One limit of 10 in 10 seconds: what each algorithm allows of the same requests", length: 58 * seconds, limits: unchanged,
			requests: slices.Concat(together(15, 2*seconds), stream(14*seconds, 34*seconds, 3),
				together(1, 42*seconds), together(9, 51*seconds), together(10, 53*seconds)),
			notes: []note{{0, 12 * seconds, "15 at once"}, {14 * seconds, 34 * seconds, "3 a second"}, {42 * seconds, 55 * seconds, "20 around a boundary"}},
		},
		{
			name: "burst", title: "Bursts: 15 requests at once, again after 6 s, and after 18 s", length: 34 * seconds, limits: unchanged,
			requests: slices.Concat(together(15, 2*seconds), together(15, 8*seconds), together(15, 26*seconds)),
			notes:    []note{{0, 6 * seconds, "15"}, {6 * seconds, 12 * seconds, "15"}, {24 * seconds, 30 * seconds, "15"}},
		},
		{
			name: "stream", title: "A steady stream: 3 requests a second, three times what the limit allows", length: 34 * seconds, limits: unchanged,
			requests: stream(2*seconds, 32*seconds, 3),
			notes:    []note{{2 * seconds, 32 * seconds, "3 a second"}},
		},
		{
			name: "boundary", title: "A boundary: 10 requests before the end of a fixed window, 10 after it", length: 24 * seconds, limits: unchanged,
			requests: slices.Concat(together(1, 2*seconds), together(9, 11*seconds), together(10, 13*seconds), together(1, 22*seconds)),
			notes:    []note{{1 * seconds, 5 * seconds, "1"}, {9 * seconds, 12 * seconds, "9"}, {12 * seconds, 15 * seconds, "10"}, {21 * seconds, 24 * seconds, "1"}},
		},
		{
			name: "change", title: "A change of the limit while 3 requests a second come", length: 46 * seconds,
			requests: stream(1*seconds, 45*seconds, 3),
			limits:   []change{{0, usual}, {15 * seconds, 2 * usual}, {31 * seconds, usual / 2}},
			notes:    []note{{0, 15 * seconds, "limit 10"}, {15 * seconds, 31 * seconds, "limit 20"}, {31 * seconds, 46 * seconds, "limit 5"}},
		},
	}
}

// together is n requests at one instant.
func together(n int, at time.Duration) []time.Duration { return slices.Repeat([]time.Duration{at}, n) }

// stream is n requests a second, the first at from, before to.
func stream(from, to time.Duration, n int) []time.Duration {
	var all []time.Duration
	for i := 0; ; i++ {
		at := from + time.Duration(i)*seconds/time.Duration(n)
		if at >= to {
			return all
		}
		all = append(all, at)
	}
}

// limitAt is the limit in force at an instant.
func (s scene) limitAt(at time.Duration) int {
	limit := 0
	for _, c := range s.limits {
		if c.at <= at {
			limit = c.limit
		}
	}
	return limit
}

// limitInWords is the limit, or "limit" if it changes.
func (s scene) limitInWords() string {
	if len(s.limits) > 1 {
		return "limit"
	}
	return strconv.Itoa(s.limits[0].limit)
}
