package simulate

import (
	"fmt"
	"time"

	"github.com/tryacquire/ratelimit"
)

// A Limiter decides whether a key may take permits at an instant. It remembers what each key
// has taken. Make one with [New].
//
// Instants are used to the microsecond, and one before 1970 counts as 1970. An instant that is
// earlier than one before is answered as by a limiter whose server's clock was set back.
//
// A key takes memory while what it has taken matters, as its state in Redis does until it
// expires: some 100 bytes, and in a log or a sliding window 16 for each entry. Keys that do not
// matter any more are removed when the number of keys has doubled, so that a log of any length
// needs memory for at most twice the keys of one window. If instants go back over the end of a
// state's use, the answer depends on whether the key was removed, as it does in Redis.
//
// A Limiter must not be used by several goroutines at the same time.
type Limiter struct{ keys keys }

// New returns a limiter that has not been used. The error wraps [ratelimit.ErrInvalidConfig],
// and is that of the constructor of the limiter that is simulated.
func New(a Algorithm) (*Limiter, error) {
	if a == nil {
		return nil, fmt.Errorf("%w: the algorithm is nil; give for example a simulate.TokenBucket", ratelimit.ErrInvalidConfig)
	}
	keys, err := a.build()
	if err != nil {
		return nil, err
	}
	return &Limiter{keys}, nil
}

// TryAcquire takes one permit from key, if one is available at that instant.
// It is TryAcquireN(at, key, 1).
func (l *Limiter) TryAcquire(at time.Time, key string) (ratelimit.Result, error) {
	return l.TryAcquireN(at, key, 1)
}

// TryAcquireN takes n permits from key, all or none. The errors are those of a limiter:
// [ratelimit.ErrInvalidKey], [ratelimit.ErrInvalidPermits] and [ratelimit.ErrExceedsLimit].
// With an error, nothing is taken and the Result is zero.
func (l *Limiter) TryAcquireN(at time.Time, key string, n int) (ratelimit.Result, error) {
	if err := l.check(key, n); err != nil {
		return ratelimit.Result{}, err
	}
	return l.keys.decide(max(at.UnixMicro(), 0), key, int64(n), false), nil
}

// Peek returns the state at that instant, and takes nothing: Allowed and RetryAfter are those
// of a call for one permit.
func (l *Limiter) Peek(at time.Time, key string) (ratelimit.Result, error) {
	if err := l.check(key, 1); err != nil {
		return ratelimit.Result{}, err
	}
	return l.keys.decide(max(at.UnixMicro(), 0), key, 1, true), nil
}

// Reset deletes what the key has taken.
func (l *Limiter) Reset(key string) error {
	if err := l.check(key, 1); err != nil {
		return err
	}
	l.keys.reset(key)
	return nil
}

// Keys is the number of keys that take memory.
func (l *Limiter) Keys() int { return l.keys.len() }

// maxKey is the most bytes of a key, as for every limiter.
const maxKey = 4096

func (l *Limiter) check(key string, n int) error {
	switch most := l.keys.most(); {
	case key == "":
		return fmt.Errorf("%w: it is empty", ratelimit.ErrInvalidKey)
	case len(key) > maxKey:
		return fmt.Errorf("%w: it has %d bytes and may have at most %d; use a hash of long keys", ratelimit.ErrInvalidKey, len(key), maxKey)
	case n < 1:
		return fmt.Errorf("%w: %d; ask for at least 1", ratelimit.ErrInvalidPermits, n)
	case n > most:
		return fmt.Errorf("%w: %d permits of %d at most", ratelimit.ErrExceedsLimit, n, most)
	}
	return nil
}
