package simulate

import (
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/gcra"
)

// A bucket is one whose refill is even, or comes in steps.
type bucket struct{ *gcra.Bucket }

// A bucketState is what was missing at an instant: at the last step before permits were last
// taken, or when they were if steps are aligned.
type bucketState struct {
	missing gcra.Level // the zero Level: never used, or full
	at      int64
}

func newBucket(rate ratelimit.Rate, size int, every time.Duration) bucket {
	return bucket{gcra.New(int64(rate.Count), rate.Period, int64(size), every)}
}

func (b bucket) decide(s *bucketState, now, n int64, peek bool) ratelimit.Result {
	missing, last := b.load(s, now)
	repaired := s.missing != gcra.Level{} && s.at > b.Latest(now)

	r := ratelimit.Result{Limit: int(b.Size), Window: b.Window}
	wanted := missing.Plus(n)
	if r.Allowed = wanted.Ceil() <= b.Size; r.Allowed && !peek {
		missing = wanted
	}
	if !r.Allowed {
		r.RetryAfter = micros(b.Restores(wanted.Plus(-b.Size)) + last - now)
	}
	r.Remaining = int(max(b.Size-missing.Ceil(), 0))
	if missing != (gcra.Level{}) {
		r.ResetAfter = micros(b.Restores(missing) + last - now)
	}
	switch {
	case peek:
	case r.Allowed:
		s.missing, s.at = missing, b.Dated(last, now)
	case repaired:
		s.at = b.Latest(now)
	}
	return r
}

// load is what is missing at now, and the instant of the last step. Of steps that are not aligned, that is now if the
// clock was set back; and if nothing is missing, because the next permits begin a new row of steps.
func (b bucket) load(s *bucketState, now int64) (missing gcra.Level, last int64) {
	at, last := b.Last(s.at), b.Last(now)
	switch {
	case s.missing == gcra.Level{}:
		return s.missing, last
	case last < at:
		return b.Again(s.missing), last
	}
	passed := b.Steps(last - at)
	if missing = b.Minus(s.missing, passed); missing == (gcra.Level{}) {
		return missing, last
	}
	return missing, at + passed
}

func (b bucket) unused(s *bucketState, now int64) bool {
	missing, _ := b.load(s, now)
	return missing == gcra.Level{}
}
