package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/algorithms"
)

// parseRate reads "10/m" or "10/90s".
func parseRate(name, s string) (ratelimit.Rate, error) {
	r, err := ratelimit.ParseRate(strings.TrimSpace(s))
	if err != nil {
		return r, fmt.Errorf("--%s: %w", name, err)
	}
	return r, nil
}

func parseRules(values []string) ([]ratelimit.Rule, error) {
	var rules []ratelimit.Rule
	for _, v := range values {
		for one := range strings.SplitSeq(v, ",") {
			r, err := parseRate("rule", strings.TrimSpace(one))
			if err != nil {
				return nil, err
			}
			rules = append(rules, ratelimit.Rule{Limit: r.Count, Window: r.Period})
		}
	}
	return rules, nil
}

// parseDuration reads a duration of Go's, or s, m, h or d with or without a
// count: time.ParseDuration knows no days.
func parseDuration(s string) (time.Duration, error) {
	switch s {
	case "s", "m", "h":
		s = "1" + s
	case "d":
		s = "1d"
	}
	const day = 24 * time.Hour
	if n, ok := strings.CutSuffix(s, "d"); ok {
		if days, err := strconv.ParseInt(n, 10, 64); err == nil && days > -math.MaxInt64/int64(day) && days < math.MaxInt64/int64(day) {
			return time.Duration(days) * day, nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, errors.New("it is not a duration such as 90s, 5m, 1h30m or 1d")
	}
	return d, nil
}

func parseStorage(s string) (ratelimit.Storage, error) {
	i := slices.Index(storageNames(), strings.ToLower(s))
	if i < 0 {
		return 0, fmt.Errorf("--storage %q: choose one of %s", s, strings.Join(storageNames(), ", "))
	}
	return ratelimit.Storage(i), nil
}

// storageNames are those of --storage.
func storageNames() (names []string) {
	for _, in := range algorithms.Storages() {
		names = append(names, strings.ToLower(in.Storage))
	}
	return names
}
