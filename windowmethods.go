package ratelimit

import "context"

// The methods that the limiters on Redis share are those of core. They are not promoted from it: Go looks for the
// embedded core before it calls a promoted method, so a nil *TokenBucket, as a constructor returns with an error, would
// panic; core's own methods return errUnmade. To embed core by value would not help, for Go checks the outer pointer
// then too.

func (l *FixedWindow) decider() *core {
	if l == nil {
		return nil
	}
	return l.core
}

// Name returns the limiter's name, see [WithName].
func (l *FixedWindow) Name() string { return l.decider().Name() }

// TryAcquire is that of [Limiter].
func (l *FixedWindow) TryAcquire(ctx context.Context, key string) (Result, error) {
	return l.decider().TryAcquire(ctx, key)
}

// TryAcquireN is that of [Limiter].
func (l *FixedWindow) TryAcquireN(ctx context.Context, key string, n int) (Result, error) {
	return l.decider().TryAcquireN(ctx, key, n)
}

// Peek is that of [Limiter].
func (l *FixedWindow) Peek(ctx context.Context, key string) (Result, error) {
	return l.decider().Peek(ctx, key)
}

// Reset is that of [Limiter].
func (l *FixedWindow) Reset(ctx context.Context, key string) error {
	return l.decider().Reset(ctx, key)
}

// Preload is [TokenBucket.Preload].
func (l *FixedWindow) Preload(ctx context.Context) error { return l.decider().Preload(ctx) }

// Claim is what [TryAcquireAll] takes.
func (l *FixedWindow) Claim(key string, n int) Claim { return l.decider().Claim(key, n) }

// TryAcquireMany is [TokenBucket.TryAcquireMany].
func (l *FixedWindow) TryAcquireMany(ctx context.Context, requests []Request) []Answer {
	return l.decider().TryAcquireMany(ctx, requests)
}

// TryAcquireUpTo is [TokenBucket.TryAcquireUpTo].
func (l *FixedWindow) TryAcquireUpTo(ctx context.Context, key string, n int) (taken int, r Result, err error) {
	return l.decider().TryAcquireUpTo(ctx, key, n)
}

// Estimate is that of [Settler].
func (l *FixedWindow) Estimate(ctx context.Context, key string, n int) (*Ticket, Result, error) {
	return l.decider().Estimate(ctx, key, n)
}

// Charge is that of [Settler].
func (l *FixedWindow) Charge(ctx context.Context, key string, n int) (Result, error) {
	return l.decider().Charge(ctx, key, n)
}

func (l *CalendarWindow) decider() *core {
	if l == nil {
		return nil
	}
	return l.core
}

// Name returns the limiter's name, see [WithName].
func (l *CalendarWindow) Name() string { return l.decider().Name() }

// TryAcquire is that of [Limiter].
func (l *CalendarWindow) TryAcquire(ctx context.Context, key string) (Result, error) {
	return l.decider().TryAcquire(ctx, key)
}

// TryAcquireN is that of [Limiter].
func (l *CalendarWindow) TryAcquireN(ctx context.Context, key string, n int) (Result, error) {
	return l.decider().TryAcquireN(ctx, key, n)
}

// Peek is that of [Limiter].
func (l *CalendarWindow) Peek(ctx context.Context, key string) (Result, error) {
	return l.decider().Peek(ctx, key)
}

// Reset is that of [Limiter].
func (l *CalendarWindow) Reset(ctx context.Context, key string) error {
	return l.decider().Reset(ctx, key)
}

// Preload is [TokenBucket.Preload].
func (l *CalendarWindow) Preload(ctx context.Context) error { return l.decider().Preload(ctx) }

// Claim is what [TryAcquireAll] takes.
func (l *CalendarWindow) Claim(key string, n int) Claim { return l.decider().Claim(key, n) }

// TryAcquireMany is [TokenBucket.TryAcquireMany].
func (l *CalendarWindow) TryAcquireMany(ctx context.Context, requests []Request) []Answer {
	return l.decider().TryAcquireMany(ctx, requests)
}

// TryAcquireUpTo is [TokenBucket.TryAcquireUpTo].
func (l *CalendarWindow) TryAcquireUpTo(ctx context.Context, key string, n int) (taken int, r Result, err error) {
	return l.decider().TryAcquireUpTo(ctx, key, n)
}

// Estimate is that of [Settler].
func (l *CalendarWindow) Estimate(ctx context.Context, key string, n int) (*Ticket, Result, error) {
	return l.decider().Estimate(ctx, key, n)
}

// Charge is that of [Settler].
func (l *CalendarWindow) Charge(ctx context.Context, key string, n int) (Result, error) {
	return l.decider().Charge(ctx, key, n)
}

func (l *SlidingWindow) decider() *core {
	if l == nil {
		return nil
	}
	return l.core
}

// Name returns the limiter's name, see [WithName].
func (l *SlidingWindow) Name() string { return l.decider().Name() }

// TryAcquire is that of [Limiter].
func (l *SlidingWindow) TryAcquire(ctx context.Context, key string) (Result, error) {
	return l.decider().TryAcquire(ctx, key)
}

// TryAcquireN is that of [Limiter].
func (l *SlidingWindow) TryAcquireN(ctx context.Context, key string, n int) (Result, error) {
	return l.decider().TryAcquireN(ctx, key, n)
}

// Peek is that of [Limiter].
func (l *SlidingWindow) Peek(ctx context.Context, key string) (Result, error) {
	return l.decider().Peek(ctx, key)
}

// Reset is that of [Limiter].
func (l *SlidingWindow) Reset(ctx context.Context, key string) error {
	return l.decider().Reset(ctx, key)
}

// Preload is [TokenBucket.Preload].
func (l *SlidingWindow) Preload(ctx context.Context) error { return l.decider().Preload(ctx) }

// Claim is what [TryAcquireAll] takes.
func (l *SlidingWindow) Claim(key string, n int) Claim { return l.decider().Claim(key, n) }

// TryAcquireMany is [TokenBucket.TryAcquireMany].
func (l *SlidingWindow) TryAcquireMany(ctx context.Context, requests []Request) []Answer {
	return l.decider().TryAcquireMany(ctx, requests)
}

// TryAcquireUpTo is [TokenBucket.TryAcquireUpTo].
func (l *SlidingWindow) TryAcquireUpTo(ctx context.Context, key string, n int) (taken int, r Result, err error) {
	return l.decider().TryAcquireUpTo(ctx, key, n)
}

// Estimate is that of [Settler].
func (l *SlidingWindow) Estimate(ctx context.Context, key string, n int) (*Ticket, Result, error) {
	return l.decider().Estimate(ctx, key, n)
}

// Charge is that of [Settler].
func (l *SlidingWindow) Charge(ctx context.Context, key string, n int) (Result, error) {
	return l.decider().Charge(ctx, key, n)
}

func (l *SlidingLog) decider() *core {
	if l == nil {
		return nil
	}
	return l.core
}

// Name returns the limiter's name, see [WithName].
func (l *SlidingLog) Name() string { return l.decider().Name() }

// TryAcquire is that of [Limiter].
func (l *SlidingLog) TryAcquire(ctx context.Context, key string) (Result, error) {
	return l.decider().TryAcquire(ctx, key)
}

// TryAcquireN is that of [Limiter].
func (l *SlidingLog) TryAcquireN(ctx context.Context, key string, n int) (Result, error) {
	return l.decider().TryAcquireN(ctx, key, n)
}

// Peek is that of [Limiter].
func (l *SlidingLog) Peek(ctx context.Context, key string) (Result, error) {
	return l.decider().Peek(ctx, key)
}

// Reset is that of [Limiter].
func (l *SlidingLog) Reset(ctx context.Context, key string) error { return l.decider().Reset(ctx, key) }

// Preload is [TokenBucket.Preload].
func (l *SlidingLog) Preload(ctx context.Context) error { return l.decider().Preload(ctx) }

// Claim is what [TryAcquireAll] takes.
func (l *SlidingLog) Claim(key string, n int) Claim { return l.decider().Claim(key, n) }

// TryAcquireMany is [TokenBucket.TryAcquireMany].
func (l *SlidingLog) TryAcquireMany(ctx context.Context, requests []Request) []Answer {
	return l.decider().TryAcquireMany(ctx, requests)
}

// TryAcquireUpTo is [TokenBucket.TryAcquireUpTo].
func (l *SlidingLog) TryAcquireUpTo(ctx context.Context, key string, n int) (taken int, r Result, err error) {
	return l.decider().TryAcquireUpTo(ctx, key, n)
}

// Estimate is that of [Settler].
func (l *SlidingLog) Estimate(ctx context.Context, key string, n int) (*Ticket, Result, error) {
	return l.decider().Estimate(ctx, key, n)
}

// Charge is that of [Settler].
func (l *SlidingLog) Charge(ctx context.Context, key string, n int) (Result, error) {
	return l.decider().Charge(ctx, key, n)
}
