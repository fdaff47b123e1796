package observe

import "github.com/tryacquire/ratelimit/internal/errclass"

// ErrorType returns a short name for the kind of an error, such as "timeout",
// "connection", "breaker_open" or "redis_loading"; "" for nil, and "_OTHER" for an error
// of no known kind. There are some forty such names, so that they can be a label of a
// metric: OpenTelemetry calls it error.type. A name holds nothing of the error's text.
func ErrorType(err error) string {
	if err == nil {
		return ""
	}
	return errclass.Of(err).Type
}
