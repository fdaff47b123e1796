package ratelimit

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/fakes"
)

// ours is every limiter of this package that a decorator can be put around, each of
// which allows at most 5 permits a call, and its zero pointer.
func ours(t *testing.T) map[Limiter]Limiter {
	c := fakes.Offline(t)
	bucket := Must(NewTokenBucket(c, PerSecond(1), 5))
	return map[Limiter]Limiter{
		Must(NewFixedWindow(c, 5, time.Second)):          (*FixedWindow)(nil),
		Must(NewCalendarWindow(c, 5, Daily(time.UTC))):   (*CalendarWindow)(nil),
		Must(NewSlidingWindow(c, 5, time.Second)):        (*SlidingWindow)(nil),
		Must(NewSlidingLog(c, []Rule{{5, time.Second}})): (*SlidingLog)(nil),
		bucket:                                   (*TokenBucket)(nil),
		Must(NewLeakyBucket(c, PerSecond(1), 5)): (*LeakyBucket)(nil),
		Must(NewFairTokenBucket(c, PerSecond(1), 6)):                                      (*FairTokenBucket)(nil),
		Must(NewLocalTokenBucket(PerSecond(1), 5)):                                        (*LocalTokenBucket)(nil),
		Must(NewFallback(bucket, AllowAll())):                                             (*Fallback)(nil),
		Must(NewShadow(bucket, bucket, func(Trial) {})):                                   (*Shadow)(nil),
		Must(NewLeased(bucket)):                                                           (*Leased)(nil),
		Must(NewBans(bucket, Must(NewPause(c)), []time.Duration{time.Second}, time.Hour)): (*Bans)(nil),
		Must(NewDenyCache(Must(NewFallback(bucket, AllowAll())))):                         (*DenyCache)(nil),
	}
}

func TestDecoratorsOfANilLimiterAreErrors(t *testing.T) {
	missing := []Limiter{nil}
	for _, l := range ours(t) {
		missing = append(missing, l)
	}
	for _, l := range missing {
		_, err := NewFallback(l, AllowAll())
		require.ErrorIs(t, err, ErrInvalidConfig)
		require.ErrorContains(t, err, "NewFallback: the primary is nil")
		_, err = NewFallback(AllowAll(), l)
		require.ErrorIs(t, err, ErrInvalidConfig)
		require.ErrorContains(t, err, "NewFallback: the secondary is nil")
		_, err = NewDenyCache(l)
		require.ErrorIs(t, err, ErrInvalidConfig)
		require.ErrorContains(t, err, "NewDenyCache: the limiter is nil")
		_, err = NewLeased(l)
		require.ErrorIs(t, err, ErrInvalidConfig)
		require.ErrorContains(t, err, "NewLeased: the limiter is nil")
	}
}

func TestDecoratorsKnowTheCeilingOfOurLimiters(t *testing.T) {
	for l := range ours(t) {
		require.Equal(t, 5, kindOf(l).most, "%T", l)
		f := Must(NewFallback(l, AllowAll()))
		require.Equal(t, 5, kindOf(f).most, "a Fallback around %T", l)
		_, err := f.TryAcquireN(t.Context(), "{k}:tenant", 6)
		require.ErrorIs(t, err, ErrExceedsLimit, "%T", l)
	}
	for _, l := range []Limiter{AllowAll(), DenyAll(), &TokenBucket{}, &LocalTokenBucket{}, struct{ *TokenBucket }{&TokenBucket{}}, &struct{ *TokenBucket }{Must(NewTokenBucket(fakes.Offline(t), PerSecond(1), 5))}} {
		require.Zero(t, kindOf(l).most, "%T", l)
		require.False(t, kindOf(l).absent, "%T", l)
	}
}

func TestAClientMustBeThere(t *testing.T) {
	for _, c := range []Client{nil, (*redis.Client)(nil), (*redis.ClusterClient)(nil), (*redis.Ring)(nil), (*redis.AutoPipeliner)(nil), (*redis.Conn)(nil), (*redis.Tx)(nil)} {
		_, err := NewTokenBucket(c, PerSecond(1), 1)
		require.ErrorIs(t, err, ErrInvalidConfig, "%T", c)
		require.ErrorContains(t, err, "the client is nil", "%T", c)
	}
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { _ = client.Close() })
	for _, c := range []Client{client.Pipeline(), client.TxPipeline()} {
		_, err := NewTokenBucket(c, PerSecond(1), 1)
		require.ErrorContains(t, err, "the client is a pipeline")
	}
	for _, c := range []Client{client, client.Conn(), fakes.Offline(t)} {
		_, err := NewTokenBucket(c, PerSecond(1), 1)
		require.NoError(t, err)
	}
}

func TestErrorsOfAFallbackAreThoseOfTheContract(t *testing.T) {
	require.Regexp(t, "^ratelimit: ", ErrOverBudget.Error())
	require.Regexp(t, "^ratelimit: ", ErrBreakerOpen.Error())
}
