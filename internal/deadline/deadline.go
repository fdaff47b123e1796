// Package deadline tells an outage from a call whose own time is over.
package deadline

import (
	"context"
	"time"
)

// Ended returns why ctx ended, or nil. It also compares the deadline with the clock: a client of
// Redis that sets the deadline on its connection may return a timeout a moment before ctx.Err does,
// which is no outage.
func Ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if d, ok := ctx.Deadline(); ok && !time.Now().Before(d) {
		return context.DeadlineExceeded
	}
	return nil
}
