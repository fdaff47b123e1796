// Package observe has observers for [ratelimit.WithObserver] that need only the standard
// library: [Log] writes a sample of the denials and failures to a log, [Top] counts which keys
// are denied most, and [Crossings] tells once when 80 % of a limit are used.
//
//	denials, err := observe.NewLog(slog.Default())
//	...
//	top, err := observe.NewTop(1000)
//	...
//	watched := ratelimit.WithObserver(denials.Observe, top.Observe)
//	limiter, err := ratelimit.NewTokenBucket(client, ratelimit.PerSecond(10), 20, ratelimit.WithName("api"), watched)
//
// Module github.com/tryacquire/ratelimit/otellimit has metrics.
package observe

import (
	"fmt"

	"github.com/tryacquire/ratelimit"
)

func invalidConfig(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ratelimit.ErrInvalidConfig, fmt.Sprintf(format, args...))
}
