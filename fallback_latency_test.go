package ratelimit_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
)

// failsAfter is a client that fails each command after so long.
func failsAfter(d time.Duration) ratelimit.Client {
	return fakes.NewClient(func(_ context.Context, cmd redis.Cmder) error {
		time.Sleep(d)
		cmd.SetErr(errors.New("down"))
		return cmd.Err()
	})
}

// TestLatencyOfWhatASecondaryAnswers: every call lasts as long as the primary took to fail.
func TestLatencyOfWhatASecondaryAnswers(t *testing.T) {
	const took = 3 * time.Millisecond
	for name, opts := range map[string][]ratelimit.PolicyOption{
		"no budget": nil, "a budget": {ratelimit.WithBudget(time.Hour)},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx := t.Context()
			var seen []ratelimit.Observation
			watch := ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) { seen = append(seen, o) })
			opts := append([]ratelimit.PolicyOption{watch}, opts...)
			client := failsAfter(took)
			bucket := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerHour(1), 9))
			f := ratelimit.Must(ratelimit.NewFallback(bucket, localBucket(9), opts...))
			holds := ratelimit.Must(ratelimit.NewHoldFallback(
				ratelimit.Must(ratelimit.NewInFlight(client, 9, time.Minute)), ratelimit.Must(ratelimit.NewLocalInFlight(9)), opts...))
			for call, ask := range map[string]func() error{
				"acquire":  func() error { _, err := f.TryAcquireN(ctx, "k", 1); return err },
				"peek":     func() error { _, err := f.Peek(ctx, "k"); return err },
				"up to":    func() error { _, _, err := f.TryAcquireUpTo(ctx, "k", 1); return err },
				"estimate": func() error { _, _, err := f.Estimate(ctx, "k", 1); return err },
				"charge":   func() error { _, err := f.Charge(ctx, "k", 1); return err },
				"credit":   func() error { _, err := f.Credit(ctx, "k", 1); return err },
				"reserve":  func() error { _, err := f.Reserve(ctx, "k", 1, time.Hour); return err },
				"hold":     func() error { _, _, err := holds.TryAcquire(ctx, "k"); return err },
				"places":   func() error { _, err := holds.Peek(ctx, "k"); return err },
				"claims": func() error {
					_, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimOf(f, "{k}a", 1), ratelimit.ClaimOf(f, "{k}b", 1))
					return err
				},
			} {
				seen = nil
				require.NoError(t, ask(), "%s, %s", name, call)
				require.NotEmpty(t, seen, "%s, %s", name, call)
				for _, o := range seen {
					require.Equal(t, ratelimit.SourceFallback, o.Source, "%s, %s", name, call)
					require.Equal(t, took, o.Latency, "%s, %s", name, call)
				}
			}
			time.Sleep(time.Minute) // what failed is given back in the background
		})
	}
}

// TestAClaimThatWasNotAskedIsNotObserved: the first of two secondaries denies the call, and nobody asks the other.
func TestAClaimThatWasNotAskedIsNotObserved(t *testing.T) {
	var seen []string
	watch := ratelimit.WithObserver(func(_ context.Context, o ratelimit.Observation) {
		require.Equal(t, ratelimit.OutcomeDenied, o.Outcome)
		require.Equal(t, time.Second, o.Result.RetryAfter, o.Key)
		seen = append(seen, o.Key)
	})
	f := ratelimit.Must(ratelimit.NewFallback(
		ratelimit.Must(ratelimit.NewTokenBucket(failsAfter(0), ratelimit.PerHour(1), 9)), ratelimit.DenyAll(), watch))
	r, err := ratelimit.TryAcquireAll(t.Context(), ratelimit.ClaimOf(f, "{k}a", 1), ratelimit.ClaimOf(f, "{k}b", 1))
	require.NoError(t, err)
	require.False(t, r.Allowed)
	var asked []string
	for _, p := range r.Parts {
		if !p.Unknown {
			asked = append(asked, p.Key)
		}
	}
	require.NotEmpty(t, asked)
	require.Equal(t, asked, seen)
	require.Less(t, len(seen), len(r.Parts))
}
