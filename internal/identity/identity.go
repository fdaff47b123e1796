// Package identity says whether two limiters, or two clients, are one, and whether there is none.
package identity

import "reflect"

// Same reports whether a and b are one limiter, or one client. Values of a type that cannot
// be compared, such as a struct with a slice, never are.
func Same(a, b any) (equal bool) {
	defer func() { _ = recover() }()
	return a == b
}

// IsNil reports whether there is no limiter or client: nil, or a nil pointer.
func IsNil(v any) bool {
	if v == nil {
		return true
	}
	p := reflect.ValueOf(v)
	return p.Kind() == reflect.Pointer && p.IsNil()
}

// Comparable reports whether v can be compared, and so be a key of a map.
func Comparable(v any) bool { return v == nil || reflect.ValueOf(v).Comparable() }
