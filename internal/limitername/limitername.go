// Package limitername returns the name of a limiter, for errors, observations and the policies in answers to clients.
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
