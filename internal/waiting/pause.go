package waiting

import "time"

const (
	leastPause = time.Millisecond
	mostJitter = 100 * time.Millisecond
)

// Pause is how long a denied caller who may wait for so long waits before it asks again: RetryAfter and a random delay of
// up to a tenth of it, so that those who wait for the same permits do not all ask at once. jitter draws from 0 to most.
func Pause(retryAfter, left time.Duration, jitter func(most time.Duration) time.Duration) time.Duration {
	pause := max(retryAfter, leastPause)
	if late := jitter(min(retryAfter/10, mostJitter)); pause+late < left {
		pause += late
	}
	return pause
}
