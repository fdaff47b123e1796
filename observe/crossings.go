package observe

import (
	"context"
	"errors"
	"slices"

	"github.com/tryacquire/ratelimit"
)

// Crossings returns an observer that calls crossed when a call brings what is used of a key to percent % of the limit, or
// above: "80 % of this month's budget are used", told once.
//
//	told := ratelimit.Must(observe.Crossings(func(_ context.Context, percent int, o ratelimit.Observation) {
//		mail(o.Key, percent)
//	}, 80, 100))
//	budget, err := ratelimit.NewCalendarWindow(client, 1_000_000, ratelimit.Monthly(1, time.UTC), ratelimit.WithObserver(told))
//
// It keeps no state. Calls are decided one after the other, so of all calls of all processes exactly one finds the key
// below a share and leaves it at the share or above; it calls crossed, once for each share that it crosses, in ascending
// order. A charge that exceeds the limit, a settlement that charges more than its estimate or comes after its lease, and
// permits that are reserved or waited for count too. It is not reported if the reply of that call is lost, or if
// its process ends first.
//
// It happens again when the key has been below the share since: after permits were given back (a settlement, a cancel,
// a Reset, a release), in a new window, and as a bucket refills, permits leave a sliding window, or leases end. So it says
// most of fixed and calendar windows, and on a busy bucket it may be told often.
//
// A share is one of the limit in the Result, of which what [ratelimit.WithHeadroom] leaves to others counts as used. Give
// all limiters of a name the same limit, and this observer. The Result of a [ratelimit.SlidingLog] with several rules is
// that of one rule, which changes from call to call: observe several limiters instead. What
// [ratelimit.TryAcquireAcrossSlots], or a wait that is given up, takes and gives back can hide a crossing. The answers of a Fallback's secondary do not
// count: each process would tell of its own.
//
// percents are 1 to 100. The error wraps [ratelimit.ErrInvalidConfig].
func Crossings(crossed func(ctx context.Context, percent int, o ratelimit.Observation), percents ...int) (ratelimit.Observer, error) {
	if crossed == nil {
		return nil, invalidConfig("Crossings: the function is nil")
	}
	if len(percents) == 0 {
		return nil, invalidConfig("Crossings: there is no share; give some, such as 80 and 100")
	}
	for _, p := range percents {
		if p < 1 || p > 100 {
			return nil, invalidConfig("Crossings: %d is not between 1 and 100", p)
		}
	}
	shares := slices.Clone(percents)
	slices.Sort(shares)
	shares = slices.Compact(shares)
	return func(ctx context.Context, o ratelimit.Observation) {
		if o.Source == ratelimit.SourceFallback || o.Err != nil && !errors.Is(o.Err, ratelimit.ErrLeaseLost) || o.Result.Limit == 0 {
			return
		}
		for _, percent := range shares {
			left := int(int64(o.Result.Limit) * int64(100-percent) / 100) // as many or fewer, when the share is used
			if o.Before > left && o.Result.Remaining <= left {
				crossed(ctx, percent, o)
			}
		}
	}, nil
}
