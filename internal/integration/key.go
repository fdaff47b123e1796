package integration

import (
	"errors"
	"fmt"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/errclass"
)

// The errors of key functions that are about the caller; package httplimit explains them.
var (
	ErrNoKey  = errclass.ErrNoKey
	ErrBadKey = errclass.ErrBadKey
)

var errEmptyKey = fmt.Errorf("%w: the key function returned an empty one and no error", ratelimit.ErrInvalidKey)

// CheckKey takes what a key function returned, and returns a key that is not empty, or an error.
func CheckKey(key string, err error) (string, error) {
	switch {
	case err != nil:
		return "", keyError{err}
	case key == "":
		return "", errEmptyKey
	}
	return key, nil
}

// A keyError is what a key function returned. There is no key, whatever the error is, so that
// ServeInOutages does not take it for an outage.
type keyError struct{ error }

func (e keyError) Unwrap() error { return e.error }

// IsKeyError reports whether err is what a key function returned.
func IsKeyError(err error) bool { return errors.As(err, new(keyError)) }
