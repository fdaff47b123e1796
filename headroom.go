package ratelimit

// WithHeadroom leaves the last x permits of each key to the other limiters of the same
// algorithm, name and prefix: this limiter allows a call only if x permits are left after
// it. Give callers of low priority a limiter with this option, and more important callers a
// limiter with a smaller x or without the option:
//
//	rate, name := ratelimit.PerSecond(100), ratelimit.WithName("api")
//	online := ratelimit.Must(ratelimit.NewTokenBucket(client, rate, 200, name))
//	batch := ratelimit.Must(ratelimit.NewTokenBucket(
//		client, rate, 200, name, ratelimit.WithHeadroom(50)))
//
// All these limiters take from one limit, and permits that one of them takes count for all.
// Limit in the Result is that limit, Remaining what is left for this limiter, at most Limit −
// x, and RetryAfter when it allows the same call. A call for more than Limit − x permits
// returns ErrExceedsLimit. x is 0 or more, and less than the limit: for a [SlidingLog], less
// than the limit of every rule, because each rule's last x permits are left.
//
// The option makes no call more expensive, of this limiter or of the others. For an [InFlight], use
// the same name and a limit that is lower by x instead.
func WithHeadroom(x int) Option {
	return limiterOption("WithHeadroom", func(s *settings) {
		if x < 0 {
			s.refuse("WithHeadroom: %d is below 0; leave the option out to use the whole limit", x)
		}
		s.headroom = x
	})
}

// checkHeadroom refuses a headroom that leaves this limiter nothing of a limit, which the
// error calls what.
func (s *settings) checkHeadroom(what string, limit int) error {
	if s.headroom >= limit {
		return invalidConfig("WithHeadroom: %d leaves this limiter nothing of the %s %d; choose at most %d",
			s.headroom, what, limit, limit-1)
	}
	return nil
}
