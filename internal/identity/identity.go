// Package identity says whether two limiters, or two clients, are one.
package identity

// Same reports whether a and b are one limiter, or one client. Values of a type that cannot
// be compared, such as a struct with a slice, never are.
func Same(a, b any) (equal bool) {
	defer func() { _ = recover() }()
	return a == b
}
