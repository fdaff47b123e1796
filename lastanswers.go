package ratelimit

import "context"

// mayFollow reports whether secondary may be a bucket with WithLastAnswers, or have one inside. The error is that of one
// that would hear no answers.
func mayFollow(secondary any) (bool, error) {
	switch l := secondary.(type) {
	case *LocalTokenBucket:
		return l.follow, nil
	case *Choice:
		return true, nil
	case *Fallback:
		return mayFollow(l.secondary)
	case *All:
		for _, c := range l.memory {
			if follows, err := mayFollow(c.outer); follows || err != nil {
				return false, invalidConfig("NewFallback: WithLastAnswers in an All that is the secondary hears no answers; " +
					"put a Fallback around each limiter, and claim them together with TryAcquireAll")
			}
		}
	}
	return false, nil
}

// follower is the bucket with WithLastAnswers that decides for key in an outage, nil if there is none.
func follower(ctx context.Context, secondary any, key string) *LocalTokenBucket {
	switch l := secondary.(type) {
	case *LocalTokenBucket:
		if l.follow {
			return l
		}
	case *Choice:
		if picked, err := l.of(ctx, key); err == nil {
			return follower(ctx, picked, key)
		}
	case *Fallback:
		return follower(ctx, l.secondary, key)
	}
	return nil
}

// A lastAnswer hears of what comes back to the primary after its answer, of a limit of so many.
type lastAnswer struct {
	local *LocalTokenBucket
	limit int
}

// givesBack notes what has come back. After an error it notes nothing, unless more was used: an outage may have begun.
func (a *lastAnswer) givesBack(_ context.Context, key string, n, actual int) (done func(error)) {
	return func(err error) {
		if err == nil || actual > n {
			a.local.noteChange(key, n-actual, a.limit)
		}
	}
}
