package integration

import (
	"errors"
	"time"
)

// Later is err, for which there is no decision, with the time after which clients may come back.
func Later(err error, after time.Duration) error { return laterError{err, after} }

type laterError struct {
	error
	after time.Duration
}

func (e laterError) Unwrap() error { return e.error }

// RetryAfter is the time that Later has put into err, 0 if there is none.
func RetryAfter(err error) time.Duration {
	var later laterError
	if errors.As(err, &later) {
		return later.after
	}
	return 0
}
