package integrationtest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// Waits are calls that wait for their permits.
type Waits struct {
	// Call makes a call for the key "k", whose limit waits for at most the time given.
	Call   func(ctx context.Context, l ratelimit.Limiter, wait time.Duration) error
	Denied Denied

	UntilDeadline time.Duration // the package's own
}

// Test tests that a call waits for its permits up to the wait and the deadline, and not where that
// is hopeless. It waits for a bucket by a reservation.
func (w Waits) Test(t *testing.T) {
	const period = 3 * time.Millisecond
	// Redis's clock stands still, so that three calls make reservations that are one, two and
	// three periods away.
	stage := limitertest.OnMiniredis(t)
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(stage.Client, ratelimit.Per(1, period), 1))
	for i := range 4 {
		begin := time.Now()
		require.NoError(t, w.Call(t.Context(), bucket, w.UntilDeadline))
		require.GreaterOrEqual(t, time.Since(begin), time.Duration(i)*period)
	}
	// The fifth would be due after four periods.
	w.Denied(t, w.Call(t.Context(), bucket, 4*period-time.Millisecond), "default", 1, period, 4*period)

	// By the call's own deadline, which leaves no time.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	far := limitertest.Denying(5, time.Second, time.Hour)
	w.Denied(t, w.Call(ctx, far, w.UntilDeadline), "default", 5, time.Second, time.Hour)
	require.Equal(t, []string{"k 1", "k 1"}, far.Asked(), "to wait, it is asked again")
	w.Denied(t, w.Call(t.Context(), far, time.Hour-1), "default", 5, time.Second, time.Hour)
	require.Equal(t, []string{"k 1"}, far.Asked())

	// Others are faster until the wait is over.
	starved := limitertest.Denying(5, time.Second, time.Microsecond)
	w.Denied(t, w.Call(t.Context(), starved, 4*time.Millisecond), "default", 5, time.Second, time.Millisecond)
	require.Greater(t, len(starved.Asked()), 1)
}

// TestEnd tests that a wait that is over is a denial, with what is known of the next permit.
func (w Waits) TestEnd(t *testing.T) {
	const wait = 20 * time.Millisecond
	soon := ratelimit.Result{Limit: 5, Window: time.Second, RetryAfter: time.Millisecond}
	late := ratelimit.Result{Limit: 5, Window: time.Second, RetryAfter: time.Hour}

	others := limitertest.InTurn(nil, soon, late)
	w.Denied(t, w.Call(t.Context(), others, wait), "default", 5, time.Second, late.RetryAfter)
	silent := limitertest.InTurn(limitertest.Hang, soon)
	w.Denied(t, w.Call(t.Context(), silent, wait), "default", 5, time.Second, soon.RetryAfter)
}

// DeadlinesAreNoOutages tests that a limiter which fails at a deadline causes no outage: at the end
// of the wait the call is denied, and at its own deadline, which a client chooses, it has ended.
// ask makes a call under a limit that is open in outages and, if wait is more than 0, waits.
func DeadlinesAreNoOutages[Code any](t *testing.T, denied, ended Code,
	ask func(ctx context.Context, t *testing.T, l ratelimit.Limiter, wait time.Duration) Code) {
	for range 100 { // the limiter fails a moment before or after the context ends
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			denying := limitertest.InTurn(limitertest.TimeOut, ratelimit.Result{Limit: 5, Window: time.Second, RetryAfter: time.Second})
			require.Equal(t, denied, ask(ctx, t, denying, 2*time.Second))
			require.Equal(t, ended, ask(ctx, t, limitertest.InTurn(limitertest.TimeOut), 0))
		})
	}
}
