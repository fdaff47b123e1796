package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A sweep is a flag of a limit with a row of values.
type sweep struct {
	name   string
	values []string
}

// parseSweeps makes a limit of each value of a sweep, and of each combination of several, in rising order.
func parseSweeps(g given, texts []string) ([]limit, error) {
	limits, base := []given{g}, g
	var labels [][]string
	labels = append(labels, nil)
	for _, text := range texts {
		s, err := parseSweep(text)
		if err != nil {
			return nil, fmt.Errorf("--sweep %q: %w", text, err)
		}
		if base.has(s.name) {
			return nil, fmt.Errorf("--sweep %q: --%s is given too: leave one of them out", text, s.name)
		}
		base = base.without()
		base[s.name] = s.values
		var more []given
		var moreLabels [][]string
		for i, of := range limits {
			for _, v := range s.values {
				with := of.without()
				with[s.name] = []string{v}
				more = append(more, with)
				label := v
				if s.name != "rate" && s.name != "rule" {
					label = s.name + " " + v
				}
				moreLabels = append(moreLabels, append(slices.Clone(labels[i]), label))
			}
		}
		limits, labels = more, moreLabels
	}
	var all []limit
	for i, of := range limits {
		one, err := parseLimits(of, nil)
		if err != nil {
			return nil, err
		}
		if len(one) > 1 {
			return nil, errors.New("--sweep is for one --algorithm")
		}
		one[0].label = strings.Join(labels[i], " ")
		all = append(all, one[0])
	}
	return all, nil
}

func parseSweep(text string) (sweep, error) {
	name, values, ok := strings.Cut(text, "=")
	var names []string
	for _, f := range limitFlags {
		if f.name != "algorithm" && f.name != "storage" {
			names = append(names, f.name)
		}
	}
	if !ok || !slices.Contains(names, name) || strings.TrimSpace(values) == "" {
		return sweep{}, fmt.Errorf("write for example rate=5/m,10/m,20/m; what can be swept: %s", strings.Join(names, ", "))
	}
	s := sweep{name: name}
	for v := range strings.SplitSeq(values, ",") {
		s.values = append(s.values, strings.TrimSpace(v))
	}
	slices.SortStableFunc(s.values, func(a, b string) int { return cmp.Compare(size(a), size(b)) })
	return s, nil
}

// size is what a value is sorted by: a count, a rate's permits in an hour, or a duration. One that is none
// of these is an error when the limit is made.
func size(value string) float64 {
	if n, err := strconv.Atoi(value); err == nil {
		return float64(n)
	}
	if r, err := parseRate("rate", value); err == nil {
		return float64(r.Count) / r.Period.Hours()
	}
	d, _ := parseDuration(value)
	return d.Hours()
}
