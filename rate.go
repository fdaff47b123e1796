package ratelimit

import (
	"encoding"
	"math"
	"strconv"
	"strings"
	"time"
)

// A Rate is Count permits per Period, with the bounds of a [Rule].
//
// In configurations, flags and JSON a Rate is a text such as "5/m", see [ParseRate].
type Rate struct {
	Count  int
	Period time.Duration
}

var (
	_ encoding.TextMarshaler   = Rate{}
	_ encoding.TextUnmarshaler = (*Rate)(nil)
)

// PerSecond is n permits per second.
func PerSecond(n int) Rate { return Rate{n, time.Second} }

// PerMinute is n permits per minute.
func PerMinute(n int) Rate { return Rate{n, time.Minute} }

// PerHour is n permits per hour.
func PerHour(n int) Rate { return Rate{n, time.Hour} }

// Per is n permits per d. A rate is divided exactly by making its period longer: a quarter of 7 a minute is
// Per(7, 4*time.Minute).
func Per(n int, d time.Duration) Rate { return Rate{n, d} }

// ParseRate reads a rate from a text: a count, a slash and a period, which is s, m, h, d, a number of days such as
// 7d, or a duration as [time.ParseDuration] reads it: "5/m", "1000/h", "3/500ms", "10/1h30m". The error for any
// other text, and for a rate that no limiter accepts, wraps ErrInvalidConfig.
func ParseRate(text string) (Rate, error) {
	const remedy = "write a count and a period, such as 10/m, 500/h or 10/90s"
	count, period, ok := strings.Cut(text, "/")
	if !ok {
		return Rate{}, invalidConfig("the rate %s has no period; %s", shortKey(text), remedy)
	}
	n, err := strconv.Atoi(count)
	if err != nil {
		return Rate{}, invalidConfig("the rate %s has the count %s, which is not a whole number; %s", shortKey(text), shortKey(count), remedy)
	}
	d, ok := parsePeriod(period)
	if !ok {
		return Rate{}, invalidConfig("the rate %s has the period %s, which is neither s, m, h, d nor a duration; %s", shortKey(text), shortKey(period), remedy)
	}
	r := Rate{n, d}
	if err := r.check(); err != nil {
		return Rate{}, err
	}
	return r, nil
}

const day = 24 * time.Hour

// parsePeriod reads what stands behind the slash. time.ParseDuration knows no days, and no
// unit without a number.
func parsePeriod(text string) (time.Duration, bool) {
	switch text {
	case "s", "m", "h", "d":
		text = "1" + text
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.Atoi(days)
		return time.Duration(n) * day, err == nil && n >= 0 && int64(n) <= math.MaxInt64/int64(day)
	}
	d, err := time.ParseDuration(text)
	return d, err == nil
}

// String is the shortest text that ParseRate reads as r.
func (r Rate) String() string { return strconv.Itoa(r.Count) + "/" + periodText(r.Period) }

func periodText(d time.Duration) string {
	switch {
	case d == time.Second:
		return "s"
	case d == time.Minute:
		return "m"
	case d == time.Hour:
		return "h"
	case d == day:
		return "d"
	case d == 0:
		return "0s"
	case d%day == 0:
		return strconv.FormatInt(int64(d/day), 10) + "d"
	case d%time.Hour == 0:
		return strings.TrimSuffix(d.String(), "0m0s")
	case d%time.Minute == 0:
		return strings.TrimSuffix(d.String(), "0s")
	}
	return d.String()
}

// MarshalText is the text of String. It returns an error that wraps ErrInvalidConfig for a
// rate that ParseRate would refuse.
func (r Rate) MarshalText() ([]byte, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	return []byte(r.String()), nil
}

// UnmarshalText sets r to the rate that [ParseRate] reads from text. After an error r is as
// it was.
func (r *Rate) UnmarshalText(text []byte) error {
	parsed, err := ParseRate(string(text))
	if err == nil {
		*r = parsed
	}
	return err
}

// check refuses a rate that cannot work.
func (r Rate) check() error {
	if err := checkCount("the rate's Count", r.Count); err != nil {
		return err
	}
	return checkSpan("the rate's Period", r.Period)
}
