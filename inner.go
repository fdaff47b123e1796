package ratelimit

import "reflect"

// isNil reports whether x is nil, or a nil pointer as from a constructor whose
// error was not looked at: better refused now than a panic in the first outage.
func isNil(x any) bool {
	v := reflect.ValueOf(x)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}

// ceilingOf is the most permits that one call can get of the limiter that a
// decorator is put around, 0 where that is not known: what embeds a limiter may
// grant more than that.
func ceilingOf(l Limiter) int {
	t := reflect.TypeOf(l)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	own, ok := l.(interface{ ceiling() int })
	if !ok || t.PkgPath() != reflect.TypeFor[core]().PkgPath() {
		return 0
	}
	return own.ceiling()
}

func (c *core) ceiling() int {
	if c == nil {
		return 0
	}
	return c.most
}
