package simulate

import (
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/gcra"
)

// A bucket is one whose refill is even, or comes in steps.
type bucket struct{ *gcra.Bucket }

// A bucketState is what was missing at an instant: at the last step before permits were last
// taken.
type bucketState struct {
	missing gcra.Level // the zero Level: never used, or full
	at      int64
}

func newBucket(rate ratelimit.Rate, size int, every time.Duration) bucket {
	return bucket{gcra.New(int64(rate.Count), rate.Period, int64(size), every)}
}

func (b bucket) decide(s *bucketState, now, n int64, peek bool) ratelimit.Result {
	missing, at := b.load(s, now)
	repaired := s.missing != gcra.Level{} && now < s.at

	r := ratelimit.Result{Limit: int(b.Size), Window: b.Window}
	wanted := missing.Plus(n)
	if r.Allowed = wanted.Ceil() <= b.Size; r.Allowed && !peek {
		missing = wanted
	}
	if !r.Allowed {
		r.RetryAfter = micros(b.Restores(wanted.Plus(-b.Size)) + at - now)
	}
	r.Remaining = int(b.Size - missing.Ceil())
	if missing != (gcra.Level{}) {
		r.ResetAfter = micros(b.Restores(missing) + at - now)
	}
	if !peek && (r.Allowed || repaired) {
		s.missing, s.at = missing, at
	}
	return r
}

// load is what is missing at now, and the instant of the last step. If the clock was set back,
// that is now; and if nothing is missing, because the next permits begin a new row of steps.
func (b bucket) load(s *bucketState, now int64) (missing gcra.Level, at int64) {
	if now <= s.at {
		return s.missing, now
	}
	passed := b.Steps(now - s.at)
	if missing = b.Minus(s.missing, passed); missing == (gcra.Level{}) {
		return missing, now
	}
	return missing, s.at + passed
}

func (b bucket) unused(s *bucketState, now int64) bool {
	missing, _ := b.load(s, now)
	return missing == gcra.Level{}
}
