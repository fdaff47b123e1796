package limits

import (
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/tryacquire/ratelimit"
)

const inFlight = "in_flight"

// An algorithm is what a file can ask for.
type algorithm struct {
	fields   []string // beside those of every limit
	required []string // those of fields that have no default
	build    func(c ratelimit.Client, r rule, opts []ratelimit.Option) (any, error)
}

// algorithms are those that a file can name.
var algorithms = map[string]algorithm{
	"token_bucket": {
		fields:   []string{"rate", "burst", "refill_every", "align", "headroom"},
		required: []string{"rate", "burst"},
		build: func(c ratelimit.Client, r rule, opts []ratelimit.Option) (any, error) {
			if r.refillEvery != 0 {
				opts = append(opts, ratelimit.WithRefillEvery(r.refillEvery))
			}
			if r.aligned {
				opts = append(opts, ratelimit.WithAlignment(r.align))
			}
			return ratelimit.NewTokenBucket(c, r.rates[0], r.size, opts...)
		},
	},
	"leaky_bucket": {
		fields:   []string{"rate", "capacity", "headroom"},
		required: []string{"rate", "capacity"},
		build: func(c ratelimit.Client, r rule, opts []ratelimit.Option) (any, error) {
			return ratelimit.NewLeakyBucket(c, r.rates[0], r.size, opts...)
		},
	},
	"fixed_window": {
		fields:   []string{"rate", "align", "headroom"},
		required: []string{"rate"},
		build: func(c ratelimit.Client, r rule, opts []ratelimit.Option) (any, error) {
			if r.aligned {
				opts = append(opts, ratelimit.WithAlignment(r.align))
			}
			return ratelimit.NewFixedWindow(c, r.rates[0].Count, r.rates[0].Period, opts...)
		},
	},
	"sliding_window": {
		fields:   []string{"rate", "storage", "sub_windows", "headroom"},
		required: []string{"rate"},
		build: func(c ratelimit.Client, r rule, opts []ratelimit.Option) (any, error) {
			if r.storage != "" {
				opts = append(opts, ratelimit.WithStorage(storages[r.storage]))
			}
			if r.subWindows != 0 {
				opts = append(opts, ratelimit.WithSubWindows(r.subWindows))
			}
			return ratelimit.NewSlidingWindow(c, r.rates[0].Count, r.rates[0].Period, opts...)
		},
	},
	"sliding_log": {
		fields:   []string{"rates", "resolution", "headroom"},
		required: []string{"rates"},
		build: func(c ratelimit.Client, r rule, opts []ratelimit.Option) (any, error) {
			if r.resolution != 0 {
				opts = append(opts, ratelimit.WithResolution(r.resolution))
			}
			var rules []ratelimit.Rule
			for _, rate := range r.rates {
				rules = append(rules, ratelimit.Rule{Limit: rate.Count, Window: rate.Period})
			}
			return ratelimit.NewSlidingLog(c, rules, opts...)
		},
	},
	"calendar_window": {
		fields:   []string{"limit", "every", "first_day", "day", "time_zone", "headroom"},
		required: []string{"limit", "every", "time_zone"},
		build: func(c ratelimit.Client, r rule, opts []ratelimit.Option) (any, error) {
			zone, err := time.LoadLocation(r.zone)
			if err != nil {
				return nil, fmt.Errorf("%w: time_zone: %w", ratelimit.ErrInvalidConfig, err)
			}
			return ratelimit.NewCalendarWindow(c, r.size, r.calendar(zone), opts...)
		},
	},
	inFlight: {
		fields:   []string{"limit", "lease"},
		required: []string{"limit", "lease"},
		build: func(c ratelimit.Client, r rule, opts []ratelimit.Option) (any, error) {
			return ratelimit.NewInFlight(c, r.size, r.lease, opts...)
		},
	},
}

// examples are values for the fields that are required.
var examples = map[string]string{
	"rate": "100/m", "burst": "20", "capacity": "20", "rates": "[20/s, 100/m]", "limit": "1000", "every": "month",
	"time_zone": "Europe/Berlin", "lease": "30s",
}

var storages = map[string]ratelimit.Storage{
	"hash": ratelimit.StorageHash, "list": ratelimit.StorageList, "zset": ratelimit.StorageZSet,
}

var weekdays = map[string]time.Weekday{
	"monday": time.Monday, "tuesday": time.Tuesday, "wednesday": time.Wednesday, "thursday": time.Thursday,
	"friday": time.Friday, "saturday": time.Saturday, "sunday": time.Sunday,
}

// weekdayNames are in the order of a week.
var weekdayNames = []string{"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"}

func (r rule) calendar(zone *time.Location) ratelimit.Calendar {
	switch r.every {
	case "week":
		return ratelimit.Weekly(weekdays[r.firstDay], zone)
	case "month":
		return ratelimit.Monthly(r.day, zone)
	}
	return ratelimit.Daily(zone)
}

// names are the keys of a table, in order.
func names[V any](table map[string]V) []string { return slices.Sorted(maps.Keys(table)) }

// local is the rate and the burst that each of several instances has in an outage. Of a window it is a bucket as large
// as its limit; of several rules, one as small and as slow as the strictest.
func (r rule) local(instances int) (ratelimit.Rate, int) {
	rate, burst := ratelimit.Rate{Count: r.size, Period: 24 * time.Hour}, r.size
	switch r.every {
	case "week":
		rate.Period *= 7
	case "month":
		rate.Period *= 31
	}
	for i, other := range r.rates {
		if i == 0 || slower(other, rate) {
			rate = other
		}
		if r.size == 0 && (burst == 0 || other.Count < burst) {
			burst = other.Count
		}
	}
	if rate.Period > math.MaxInt64/time.Duration(instances) {
		rate.Period = math.MaxInt64 // which the constructor refuses
	} else {
		rate.Period *= time.Duration(instances)
	}
	return rate, max((burst-r.headroom)/instances, 1)
}

func slower(a, b ratelimit.Rate) bool {
	high, low := bits.Mul64(uint64(a.Count), uint64(b.Period))
	most, rest := bits.Mul64(uint64(b.Count), uint64(a.Period))
	return high < most || high == most && low < rest
}
