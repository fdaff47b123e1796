package ratelimit

import "time"

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// ceilDiv is a/b rounded up, for a ≥ 0 and b > 0.
func ceilDiv(a, b int64) int64 {
	q := a / b
	if a%b > 0 {
		q++
	}
	return q
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// checkCount refuses a number of permits that cannot work.
func checkCount(name string, n int) error {
	if n < 1 {
		return invalidConfig("%s is %d; it must be at least 1", name, n)
	}
	if n > maxCount {
		return invalidConfig("%s is %d; it must be at most %d", name, n, maxCount)
	}
	return nil
}

// checkRule refuses a limit or a window that cannot work.
func checkRule(r Rule) error {
	if err := checkCount("the limit", r.Limit); err != nil {
		return err
	}
	return checkSpan("the window", r.Window)
}

// checkSpan refuses a window or period that cannot work.
func checkSpan(name string, d time.Duration) error {
	switch {
	case d < time.Millisecond:
		return invalidConfig("%s is %v; it must be at least 1ms", name, d)
	case d > micros(maxMicros):
		return invalidConfig("%s is %v; it must be at most %v", name, d, micros(maxMicros))
	case d%time.Microsecond != 0:
		return invalidConfig("%s is %v; it must be a whole number of microseconds", name, d)
	}
	return nil
}
