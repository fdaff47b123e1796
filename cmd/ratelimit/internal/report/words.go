package report

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// shown is a text of a log as a person can see it: what is not printed, or changes how the text
// around it is read, is written as in Go ("\x00", "\u202e"), and so is what is not UTF-8.
func shown(s string) string {
	clean := true
	for _, r := range s {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	var b strings.Builder
	for i, size := 0, 0; i < len(s); i += size {
		var r rune
		r, size = utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return b.String()
}

// number has its digits in groups: 1,234,567.
func number(n int) string {
	digits := strconv.Itoa(n)
	from := len(digits) % 3
	if from == 0 {
		from = 3
	}
	parts := []string{digits[:from]}
	for ; from < len(digits); from += 3 {
		parts = append(parts, digits[from:from+3])
	}
	return strings.Join(parts, ",")
}

// percent is part of whole, such that only nothing is 0 % and only all is 100 %.
func percent(part, whole int) string {
	if part == 0 || whole == 0 {
		return "0 %"
	}
	if part == whole {
		return "100 %"
	}
	share := 100 * float64(part) / float64(whole)
	switch {
	case share < 0.01:
		return "< 0.01 %"
	case share > 99.99:
		return "> 99.99 %"
	}
	return strconv.FormatFloat(share, 'f', 2, 64) + " %"
}

// stamp is an instant to the second, and to the minute if that is all there is to it.
func stamp(t time.Time, zone *time.Location) string {
	t = t.In(zone)
	if t.Second() == 0 {
		return t.Format("2006-01-02 15:04")
	}
	return t.Format(time.DateTime)
}

// inWords is the length of a bucket: "one minute", "5 seconds".
func inWords(d time.Duration) string {
	for _, unit := range []struct {
		length time.Duration
		name   string
	}{{24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}, {time.Second, "second"}} {
		if d >= unit.length && d%unit.length == 0 {
			if n := d / unit.length; n > 1 {
				return fmt.Sprintf("%d %ss", n, unit.name)
			}
			return "one " + unit.name
		}
	}
	return d.String()
}
