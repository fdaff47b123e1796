package ratelimit_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

func TestErrorsAreThoseOfTheContract(t *testing.T) {
	for _, err := range []error{ratelimit.ErrInvalidConfig, ratelimit.ErrInvalidKey, ratelimit.ErrInvalidPermits, ratelimit.ErrExceedsLimit, ratelimit.ErrDenied, ratelimit.ErrCorruptState} {
		require.Regexp(t, "^ratelimit: ", err.Error())
		require.True(t, errors.Is(err, err))
	}
}

func TestErrOfADenial(t *testing.T) {
	require.NoError(t, ratelimit.Result{Allowed: true}.Err())
	err := ratelimit.Result{RetryAfter: 1500 * time.Millisecond}.Err()
	require.ErrorIs(t, err, ratelimit.ErrDenied)
	var denied *ratelimit.DeniedError
	require.ErrorAs(t, err, &denied)
	require.Equal(t, 1500*time.Millisecond, denied.Result.RetryAfter)
	require.Equal(t, "ratelimit: denied, retry after 1.5s", err.Error())
	require.Equal(t, `ratelimit: "k" denied, retry after 1.5s`, (&ratelimit.DeniedError{Key: "k", Result: denied.Result}).Error())
	require.Contains(t, (&ratelimit.DeniedError{Key: strings.Repeat("k", 500)}).Error(), "… (500 bytes)")
	require.NotErrorIs(t, err, errors.ErrUnsupported)
}

func TestMustPanicsAtAnError(t *testing.T) {
	require.Panics(t, func() { ratelimit.Must(ratelimit.NewTokenBucket(nil, ratelimit.PerSecond(1), 1)) })
	require.NotNil(t, ratelimit.Must(ratelimit.NewTokenBucket(limitertest.Offline(t), ratelimit.PerSecond(1), 1)))
}
