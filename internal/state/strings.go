package state

import (
	"math"
	"math/big"
	"regexp"
	"strings"
	"time"
)

var bucketState = regexp.MustCompile(`^(\d{1,16})/(\d+)(?:\+(\d+))?/([1-9]\d*)/([1-9]\d*)(?:/([1-9]\d*))?(@\d*)?(?:~(\d+)[\d,]*)?(?:!(\d+)(?:;.*)?)?$`) // behind "~" are slices that are out, behind ";" are cancels that wait

// bucket reads the state of a token bucket or a leaky bucket. A microsecond restores flow units, and
// permit units are a permit.
func (s *State) bucket(text string, now int64) error {
	m := bucketState.FindStringSubmatch(text)
	if m == nil {
		return s.corrupt()
	}
	for i, otherwise := range map[int]string{3: "0", 6: "1", 8: "0", 9: "0"} {
		if m[i] == "" {
			m[i] = otherwise
		}
	}
	n, ok := numbers(m[1], m[2], m[3], m[4], m[5], m[6], m[8], m[9])
	if !ok {
		return s.corrupt()
	}
	at, level, rest, permit, flow, every, leased, promise := n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7]
	s.CallersClock = m[7] != ""
	s.Rule = Rule{Permits: flow, Per: micros(permit)}
	if every > 1 {
		s.Rule.Every = micros(every)
	}
	if at > now && !s.CallersClock { // the server's clock stepped back
		at = now
	}
	s.Leased = micros(max(at+leased-now, 0))
	s.Promised = micros(max(at+promise-now, 0))

	missing := big.NewInt(level)
	if strings.Contains(text, "+") {
		missing.Mul(missing, big.NewInt(permit)).Add(missing, big.NewInt(rest))
	}
	passed := max(now-at, 0)
	passed -= passed % every
	restored := new(big.Int).Mul(big.NewInt(passed), big.NewInt(flow))
	if missing.Sub(missing, restored).Sign() <= 0 {
		return nil
	}
	used, left := ceil(missing, permit), ceil(missing, flow)
	if left < 0 {
		return s.corrupt() // no bucket takes so long to be full again
	}
	s.Used = used
	left += (every - left%every) % every
	s.Empty = micros(at + passed + left - now)
	return nil
}

var (
	tenantState = regexp.MustCompile(`^ *-?\d+,([1-9]\d*),(\d+)(?:,\d+,\d+)?$`)
	sharedState = regexp.MustCompile(`^ *(\d+)/ *(\d+), *\d+, *\d+;(?:\d+,){5}\d+(?:,\d+){0,3}(/\d+/\d+@?\d*)$`)
)

// fairBucket reads the state of a limit that tenants share, and of a tenant.
func (s *State) fairBucket(text string, now int64) error {
	if m := tenantState.FindStringSubmatch(text); m != nil {
		n, ok := numbers(m[1], m[2])
		if !ok {
			return s.corrupt()
		}
		s.Weight = n[0]
		return nil
	}
	m := sharedState.FindStringSubmatch(text)
	if m == nil {
		return s.corrupt()
	}
	return s.bucket(m[1]+"/"+m[2]+m[3], now)
}

// ceil is a / b, rounded up, or -1 if that is 2^53 or more.
func ceil(a *big.Int, b int64) int64 {
	quotient, rest := new(big.Int).QuoRem(a, big.NewInt(b), new(big.Int))
	if rest.Sign() > 0 {
		quotient.Add(quotient, big.NewInt(1))
	}
	if quotient.BitLen() > 53 {
		return -1
	}
	return quotient.Int64()
}

var (
	windowState      = regexp.MustCompile(`^(\d+)(\d{5})(\d)(?:~(\d+))?$`)
	datedWindowState = regexp.MustCompile(`^(\d+)/(-?\d+)/([1-9]\d*)(@\d*)?(?:~(\d+))?$`)
	pauseState       = regexp.MustCompile(`^(\d+)/(\d+)/(\d+)/(\d+)/(\d+)/(\d+)(@?)$`)
	calendarState    = regexp.MustCompile(`^(\d+)/(\d+)-(\d+)(@\d*)?(?:~(\d+))?$`)
)

// longestSlice is how long a key may outlast its window for slices, as fixedwindow.lua has it.
const longestSlice = 10_001 * time.Millisecond

// fixedWindow reads the state of a fixed window, with its start or with a TTL that is its end.
func (s *State) fixedWindow(text string, now int64) error {
	if m := windowState.FindStringSubmatch(text); m != nil {
		n, ok := numbers(m[1], m[2], m[3])
		if !ok {
			return s.corrupt()
		}
		length := n[1] // milliseconds
		for range n[2] {
			length *= 10
		}
		if length == 0 || length > math.MaxInt64/int64(time.Millisecond) {
			return s.corrupt()
		}
		s.Rule.Window = time.Duration(length) * time.Millisecond
		s.Used, s.Empty = n[0], s.Expires
		if s.Expires == 0 { // it is about to be deleted
			s.Used = 0
		}
		if s.Expires < 0 || s.Expires > s.Rule.Window { // it has lost its TTL, or the clock stepped back
			s.Empty = s.Rule.Window
		}
		if m[4] != "" {
			out, ok := numbers(m[4])
			if !ok || out[0] > length {
				return s.corrupt()
			}
			if out[0] == 0 && 0 < s.Expires && s.Expires <= longestSlice { // the key is there for its slices
				s.Empty = s.Expires
			}
			s.Leased = max(s.Empty-time.Duration(out[0])*time.Millisecond, 0)
		}
		return nil
	}
	m := datedWindowState.FindStringSubmatch(text)
	if m == nil {
		return s.corrupt()
	}
	n, ok := numbers(m[1], strings.TrimPrefix(m[2], "-"), m[3])
	if !ok {
		return s.corrupt()
	}
	if m[2][0] == '-' {
		n[1] = -n[1]
	}
	s.Rule.Window, s.CallersClock = micros(n[2]), m[4] != ""
	if !s.leasedUntil(m[5], n[1], now) {
		return s.corrupt()
	}
	if end := n[1] + n[2]; n[0] > 0 && end > now {
		s.Used, s.Empty = n[0], micros(end-now)
	}
	return nil
}

// leasedUntil notes how long slices may still be spent: until so long after an instant; not at all without a text.
func (s *State) leasedUntil(after string, instant, now int64) (ok bool) {
	if after == "" {
		return true
	}
	n, ok := numbers(after)
	if ok {
		s.Leased = micros(max(instant+n[0]-now, 0))
	}
	return ok
}

func (s *State) calendarWindow(text string, now int64) error {
	m := calendarState.FindStringSubmatch(text)
	if m == nil {
		return s.corrupt()
	}
	n, ok := numbers(m[1], m[2], m[3])
	if !ok || n[1] >= n[2] {
		return s.corrupt()
	}
	s.CallersClock = m[4] != ""
	if !s.leasedUntil(m[5], n[1], now) {
		return s.corrupt()
	}
	if n[0] > 0 && n[2] > now {
		s.Used, s.Empty = n[0], micros(n[2]-now)
	}
	return nil
}

// pause reads the state of a pause.
func (s *State) pause(text string, now int64) error {
	m := pauseState.FindStringSubmatch(text)
	if m == nil {
		return s.corrupt()
	}
	n, ok := numbers(m[1:7]...)
	if !ok {
		return s.corrupt()
	}
	instant, length, strikes, forget := n[0], n[1], n[3], n[5]
	s.CallersClock = m[7] != ""
	left := max(instant-now, 0)
	if !s.CallersClock { // the server's clock may have stepped back
		left = min(left, length)
	}
	s.Paused = micros(left)
	if now < forget {
		s.Strikes = strikes
	}
	return nil
}
