package state

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/algorithms"
)

// Words says what the key holds.
func (s State) Words() string {
	switch {
	case s.Err != nil:
		return "It cannot be read: " + s.Err.Error() + "."
	case !s.Exists:
		return "There is no key: nothing is used."
	}
	if s.Parts.Algorithm == algorithms.Pause {
		return s.pauseWords()
	}
	words := []string{s.count(), s.rule()}
	if s.Leased > 0 {
		words = append(words, fmt.Sprintf("Slices of it may be spent in processes for the next %s.", Brief(s.Leased)))
	}
	if s.Weight > 0 {
		words = []string{fmt.Sprintf("A tenant of weight %d; what is missing is in the key of its limit.", s.Weight)}
	}
	if s.Promised > 0 {
		words = append(words, fmt.Sprintf("Permits are promised to callers that wait, for the next %s.", Brief(s.Promised)))
	}
	if s.Rule.Others > 0 {
		words = append(words, fmt.Sprintf("It keeps permits for %s of other limiters.", plural(int64(s.Rule.Others), "longer window")))
	}
	return strings.Join(words, " ") + s.clockWords()
}

// pauseWords says for how long the key is paused.
func (s State) pauseWords() string {
	words := "It is not paused any more."
	if s.Paused > 0 {
		words = fmt.Sprintf("It is paused for %s.", Brief(s.Paused))
	}
	if s.Strikes > 0 {
		words += fmt.Sprintf(" It has %s.", plural(s.Strikes, "strike"))
	}
	return words + s.clockWords()
}

// clockWords says what is unusual of the clock and the expiry.
func (s State) clockWords() (words string) {
	if s.CallersClock {
		words += " A caller's clock dates it."
	}
	if s.Expires < 0 {
		words += " It does not expire until a limiter repairs that."
	}
	return words
}

// count says how many permits are used.
func (s State) count() string {
	if s.Used == 0 {
		return "Nothing is used any more."
	}
	most, are := "", "are"
	if s.AtMost {
		most = "At most "
	}
	if s.Used == 1 {
		are = "is"
	}
	used := most + plural(s.Used, "permit")
	switch s.Parts.Algorithm {
	case algorithms.TokenBucket, algorithms.FairTokenBucket:
		return fmt.Sprintf("%s %s missing; the bucket is full in %s.", used, are, Brief(s.Empty))
	case algorithms.LeakyBucket:
		return fmt.Sprintf("%s %s in the bucket, which is empty in %s.", used, are, Brief(s.Empty))
	case algorithms.FixedWindow, algorithms.CalendarWindow:
		return fmt.Sprintf("%s %s used in the window, which ends in %s.", used, are, Brief(s.Empty))
	case algorithms.InFlight:
		return fmt.Sprintf("%s %s held; the last lease ends in %s, if none is extended.", used, are, Brief(s.Empty))
	}
	return fmt.Sprintf("%s %s used in the window; all have left it in %s.", used, are, Brief(s.Empty))
}

func (s State) rule() string {
	r := s.Rule
	switch s.Parts.Algorithm {
	case algorithms.TokenBucket, algorithms.LeakyBucket, algorithms.FairTokenBucket:
		verb := "come back"
		if s.Parts.Algorithm == algorithms.LeakyBucket {
			verb = "drain"
		}
		if r.Permits == 1 {
			verb = map[string]string{"come back": "comes back", "drain": "drains"}[verb]
		}
		steps := ""
		if r.Every > 0 {
			steps = ", in steps of " + Brief(r.Every)
		}
		return fmt.Sprintf("The rule that wrote it: %s %s every %s%s.", plural(r.Permits, "permit"), verb, Brief(r.Per), steps)
	case algorithms.InFlight:
		return fmt.Sprintf("The last lease: %s.", Brief(r.Window))
	case algorithms.CalendarWindow:
		return "The rule that wrote it: windows of a calendar."
	}
	slots := ""
	if r.Slot > 0 {
		slots = ", in parts of " + Brief(r.Slot)
	}
	return fmt.Sprintf("The rule that wrote it: a window of %s%s.", Brief(r.Window), slots)
}

// Result says what a look by a limiter has found.
func Result(now ratelimit.Result) string {
	switch {
	case now.Allowed && now.ResetAfter == 0: // of a fair token bucket, not all are for one tenant
		return fmt.Sprintf("Nothing is used: %d of %d permits left.", now.Remaining, now.Limit)
	case now.Allowed:
		return fmt.Sprintf("%d of %d permits left; all are back in %s.", now.Remaining, now.Limit, Brief(now.ResetAfter))
	}
	return fmt.Sprintf("0 of %d permits left; the next call is allowed in %s, all are back in %s.", now.Limit, Brief(now.RetryAfter), Brief(now.ResetAfter))
}

// Brief is a duration as people say it, to three digits or to the second.
func Brief(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", d.Seconds()), ".0") + " s"
	}
	text := d.Round(time.Second).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

func plural(n int64, what string) string {
	if n != 1 {
		what += "s"
	}
	return strconv.FormatInt(n, 10) + " " + what
}
