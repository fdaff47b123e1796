// Package limitername says what a limiter is called, in errors, observations and the policies that clients are told.
package limitername

// Default is the name of a limiter without one.
const Default = "default"

// Of is the name that the limiter or decorator has, and Default for one that has none.
func Of(limiter any) string {
	if l, ok := limiter.(interface{ Name() string }); ok {
		if name := l.Name(); name != "" {
			return name
		}
	}
	return Default
}
