//go:build !linux

package redistest

import "time"

// timer sleeps as precisely as the runtime does, which is precise enough on systems other than Linux.
type timer struct{}

func (*timer) sleep(d time.Duration) { time.Sleep(d) }
func (*timer) close()                {}
