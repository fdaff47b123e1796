package observe

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
)

const (
	canceled = "context_canceled"
	other    = "_OTHER"
)

// errorTypes are the types of errors that errors.Is recognizes; the first match counts.
var errorTypes = []struct {
	is   error
	name string
}{
	{ratelimit.ErrOverBudget, "over_budget"},
	{ratelimit.ErrBreakerOpen, "breaker_open"},
	{ratelimit.ErrInvalidKey, "invalid_key"},
	{ratelimit.ErrInvalidPermits, "invalid_permits"},
	{ratelimit.ErrExceedsLimit, "exceeds_limit"},
	{ratelimit.ErrInvalidConfig, "invalid_config"},
	{ratelimit.ErrCorruptState, "corrupt_state"},
	{ratelimit.ErrCrossSlot, "cross_slot"},
	{ratelimit.ErrTooMuchDebt, "too_much_debt"},
	{ratelimit.ErrSettled, "settled"},
	{ratelimit.ErrLeaseLost, "lease_lost"},
	{ratelimit.ErrWaitTooLong, "wait_too_long"},
	{context.Canceled, canceled},
	{context.DeadlineExceeded, "context_deadline_exceeded"},
	{redis.ErrPoolTimeout, "pool_timeout"},
	{redis.ErrClosed, "client_closed"},
	{io.EOF, "connection"},
	{io.ErrUnexpectedEOF, "connection"},
}

// replies are the first words of Redis's errors that have types of their own.
var replies = map[string]bool{
	"BUSY": true, "CLUSTERDOWN": true, "LOADING": true, "MASTERDOWN": true, "MISCONF": true, "NOAUTH": true, "NOPERM": true,
	"NOREPLICAS": true, "OOM": true, "READONLY": true, "TRYAGAIN": true, "WRONGPASS": true,
}

// ErrorType returns a short name for the kind of an error, such as "timeout",
// "connection", "breaker_open" or "redis_loading"; "" for nil, and "_OTHER" for an error
// of no known kind. There are some thirty such names, so that they can be a label of a
// metric: OpenTelemetry calls it error.type. A name holds nothing of the error's text.
func ErrorType(err error) string {
	if err == nil {
		return ""
	}
	for _, t := range errorTypes {
		if errors.Is(err, t.is) {
			return t.name
		}
	}
	var reply redis.Error
	if errors.As(err, &reply) {
		if word, _, _ := strings.Cut(reply.Error(), " "); replies[word] {
			return "redis_" + strings.ToLower(word)
		}
		return "redis"
	}
	var network net.Error
	switch {
	case errors.As(err, &network) && network.Timeout():
		return "timeout"
	case errors.As(err, &network), errors.As(err, new(*net.OpError)):
		return "connection"
	}
	return other
}
