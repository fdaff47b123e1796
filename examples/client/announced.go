package main

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// announced returns for how long a server wants no requests. It is the longest of these:
// Retry-After, in seconds or as a date; the times of the limits in RateLimit of which no permits are
// left (draft-ietf-httpapi-ratelimit-headers-11); and X-RateLimit-Reset, if no permits are left, in
// seconds or as a Unix time.
func announced(resp *http.Response, now time.Time) time.Duration {
	var pause time.Duration
	h := resp.Header
	if v := h.Get("Retry-After"); v != "" {
		pause = seconds(v)
		if date, err := http.ParseTime(v); err == nil {
			pause = date.Sub(now)
		}
	}
	for _, limit := range limits(h) {
		if limit["r"] == "0" {
			pause = max(pause, seconds(limit["t"]))
		}
	}
	if h.Get("X-RateLimit-Remaining") == "0" {
		reset := seconds(h.Get("X-RateLimit-Reset"))
		if reset > 10*365*24*time.Hour {
			reset = time.Unix(0, 0).Add(reset).Sub(now)
		}
		pause = max(pause, reset)
	}
	return max(pause, 0)
}

// left returns how many requests a server says are left: the fewest of X-RateLimit-Remaining and of the limits in
// RateLimit. ok is false if it does not say.
func left(resp *http.Response) (fewest int, ok bool) {
	texts := []string{resp.Header.Get("X-RateLimit-Remaining")}
	for _, limit := range limits(resp.Header) {
		texts = append(texts, limit["r"])
	}
	for _, text := range texts {
		if n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 31); err == nil && (!ok || int(n) < fewest) {
			fewest, ok = int(n), true
		}
	}
	return fewest, ok
}

// limits returns the parameters of each limit in RateLimit.
func limits(h http.Header) (all []map[string]string) {
	for _, limit := range split(strings.Join(h.Values("RateLimit"), ","), ',') {
		params := map[string]string{}
		for _, param := range split(limit, ';')[1:] {
			name, value, _ := strings.Cut(strings.TrimSpace(param), "=")
			params[name] = value
		}
		all = append(all, params)
	}
	return all
}

// seconds returns 0 for a text that is no number of seconds, and at most 272 years.
func seconds(s string) time.Duration {
	n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 33)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0
	}
	return time.Duration(n) * time.Second
}

// split splits a structured field at sep, but not within a quoted string.
func split(s string, sep byte) []string {
	var parts []string
	quoted, begin := false, 0
	for i := 0; i < len(s); i++ {
		switch {
		case quoted && s[i] == '\\':
			i++
		case s[i] == '"':
			quoted = !quoted
		case s[i] == sep && !quoted:
			parts = append(parts, s[begin:i])
			begin = i + 1
		}
	}
	return append(parts, s[begin:])
}
