// Package simulate decides requests as the limiters of package ratelimit do, in memory and
// at instants that the caller gives: what would this limit have done to that traffic?
//
//	limiter, err := simulate.New(simulate.TokenBucket{Rate: ratelimit.PerMinute(10), Burst: 20})
//	for _, request := range log { // in the order of time
//		result, err := limiter.TryAcquire(request.Time, request.ClientIP)
//		…
//	}
//
// It needs no Redis and no script, and takes less than a microsecond for a decision, so that a
// day's log is replayed in seconds and a row of limits can be compared. The program
// github.com/tryacquire/ratelimit/cmd/ratelimit does that for access logs.
//
// Every field of a [ratelimit.Result] is what the limiter with this rule would have returned,
// if it had the key for itself and was asked at these instants of the server's clock. That
// holds for instants that go back, too, as when the server's clock is set back. Tests compare
// the package with the models from which the limiters are tested, and with the limiters
// themselves.
//
// Simulated limiters take, look and reset. They neither charge, give back, reserve nor hold.
package simulate
