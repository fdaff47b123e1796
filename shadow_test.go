package ratelimit_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

var (
	allowedOf10 = ratelimit.Result{Allowed: true, Limit: 10, Window: time.Second, Remaining: 7, ResetAfter: time.Second}
	deniedOf5   = ratelimit.Result{Limit: 5, Window: time.Second, RetryAfter: time.Second, ResetAfter: time.Second}
)

func answers(r ratelimit.Result, err error) *limitertest.Stub {
	return &limitertest.Stub{Result: r, Err: err}
}

func TestShadowConfigErrors(t *testing.T) {
	l, report := ratelimit.AllowAll(), func(ratelimit.Trial) {}
	for _, test := range []struct {
		enforced, trial ratelimit.Limiter
		report          func(ratelimit.Trial)
		says            string
	}{
		{nil, l, report, "NewShadow: the enforced limiter is nil; AllowAll() allows every call"},
		{(*ratelimit.Shadow)(nil), l, report, "the enforced limiter is nil"},
		{l, nil, report, "NewShadow: the trial is nil"},
		{l, (*ratelimit.Choice)(nil), report, "the trial is nil"},
		{l, l, nil, "NewShadow: report is nil"},
	} {
		s, err := ratelimit.NewShadow(test.enforced, test.trial, test.report)
		require.Nil(t, s)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, test.says)
	}
	for _, s := range []*ratelimit.Shadow{{}} {
		_, err := s.TryAcquire(ctx, "k")
		require.ErrorContains(t, err, "was not made by its constructor")
		_, err = s.Peek(ctx, "k")
		require.ErrorContains(t, err, "was not made by its constructor")
		require.ErrorContains(t, s.Reset(ctx, "k"), "was not made by its constructor")
	}
}

// The caller gets what the enforced limiter says; report gets both answers.
func TestAShadowReportsWhatTheTrialSays(t *testing.T) {
	failure := errors.New("no answer")
	for _, test := range []struct {
		about           string
		enforced, trial *limitertest.Stub
		want            []ratelimit.Trial
		err             error
	}{
		{"a stricter limit", answers(allowedOf10, nil), answers(deniedOf5, nil),
			[]ratelimit.Trial{{Key: "k", N: 3, Enforced: allowedOf10, Result: deniedOf5}}, nil},
		{"a looser limit", answers(deniedOf5, nil), answers(allowedOf10, nil),
			[]ratelimit.Trial{{Key: "k", N: 3, Enforced: deniedOf5, Result: allowedOf10}}, nil},
		{"the trial fails", answers(allowedOf10, nil), answers(ratelimit.Result{}, failure),
			[]ratelimit.Trial{{Key: "k", N: 3, Enforced: allowedOf10, Err: failure}}, nil},
		{"no decision, so no trial", answers(ratelimit.Result{}, failure), answers(allowedOf10, nil), nil, failure},
	} {
		synctest.Test(t, func(t *testing.T) {
			var got []ratelimit.Trial
			s := ratelimit.Must(ratelimit.NewShadow(test.enforced, test.trial, func(trial ratelimit.Trial) { got = append(got, trial) }))
			r, err := s.TryAcquireN(ctx, "k", 3)
			wantResult, wantErr := test.enforced.TryAcquireN(ctx, "k", 3)
			require.Equal(t, wantResult, r, test.about)
			require.Equal(t, wantErr, err, test.about)
			synctest.Wait()
			require.Equal(t, test.want, got, test.about)
			_, _ = s.Peek(ctx, "k")
			synctest.Wait()
			require.Equal(t, test.want, got, "a Peek is not tried")
			require.Zero(t, s.Dropped())
		})
	}
}

// A trial that hangs, fails or panics costs the caller nothing, and its goroutines end.
func TestATrialThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []ratelimit.Trial
		hangs := limitertest.InTurn(limitertest.Hang)
		reports := make(chan ratelimit.Trial, 10)
		s := ratelimit.Must(ratelimit.NewShadow(answers(allowedOf10, nil), hangs, func(trial ratelimit.Trial) { reports <- trial }))
		ratelimit.SetMaxTrials(s, 2)
		gone, leave := context.WithCancel(ctx)
		begun := time.Now()
		for range 5 {
			r, err := s.TryAcquire(gone, "k")
			require.NoError(t, err)
			require.Equal(t, allowedOf10, r)
		}
		require.Zero(t, time.Since(begun), "no call has waited")
		require.Equal(t, int64(3), s.Dropped())
		leave()
		time.Sleep(time.Second - 1) // of the bubble's clock
		synctest.Wait()
		require.Empty(t, reports, "a caller that leaves does not end the trial")
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		close(reports)
		for trial := range reports {
			got = append(got, trial)
		}
		want := ratelimit.Trial{Key: "k", N: 1, Enforced: allowedOf10, Err: context.DeadlineExceeded}
		require.Equal(t, []ratelimit.Trial{want, want}, got)
	})
}

func TestPanicsOfATrialAndOfAReport(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	synctest.Test(t, func(t *testing.T) {
		panics := &limitertest.Stub{Answer: func(_ context.Context, _ string, n int) (ratelimit.Result, error) {
			if n == fakes.Reset {
				panic("no reset")
			}
			panic("no trial")
		}}
		var got []ratelimit.Trial
		s := ratelimit.Must(ratelimit.NewShadow(answers(allowedOf10, nil), panics, func(trial ratelimit.Trial) {
			got = append(got, trial)
			panic("no report")
		}))
		ratelimit.SetMaxTrials(s, 1)
		for range 2 { // the first has given its place back
			r, err := s.TryAcquire(ctx, "k")
			require.NoError(t, err)
			require.Equal(t, allowedOf10, r)
			synctest.Wait()
		}
		require.NoError(t, s.Reset(ctx, "k"))
		synctest.Wait()
		require.Len(t, got, 3)
		require.EqualError(t, got[1].Err, "ratelimit: shadow: the trial panicked: no trial")
		require.Equal(t, ratelimit.Trial{Key: "k", Reset: true, Err: got[2].Err}, got[2])
		require.EqualError(t, got[2].Err, "ratelimit: shadow: the trial panicked: no reset")
		require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("the report of a shadow panicked")), "%s", &log)
		require.Contains(t, log.String(), `limiter=default panic="no report"`)
		require.Zero(t, s.Dropped())

		exits := ratelimit.Must(ratelimit.NewShadow(answers(allowedOf10, nil), answers(deniedOf5, nil), func(ratelimit.Trial) { runtime.Goexit() }))
		ratelimit.SetMaxTrials(exits, 1)
		for range 3 {
			_, err := exits.TryAcquire(ctx, "k")
			require.NoError(t, err)
			synctest.Wait()
		}
		require.Zero(t, exits.Dropped(), "a goroutine that ends gives its place back")
	})
}

func TestResetOfAShadowResetsBoth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reset []string
		failure := errors.New("no answer")
		of := func(name string, err error) *limitertest.Stub {
			return &limitertest.Stub{Answer: func(_ context.Context, key string, _ int) (r ratelimit.Result, _ error) {
				reset = append(reset, name+" "+key)
				return r, err
			}}
		}
		var got []ratelimit.Trial
		report := func(trial ratelimit.Trial) { got = append(got, trial) }
		s := ratelimit.Must(ratelimit.NewShadow(of("enforced", nil), of("trial", nil), report))
		require.NoError(t, s.Reset(ctx, "k"))
		synctest.Wait()
		require.Equal(t, []string{"enforced k", "trial k"}, reset)
		require.Empty(t, got, "a Reset that works is not reported")
		s = ratelimit.Must(ratelimit.NewShadow(of("enforced", failure), of("trial", failure), report))
		require.Equal(t, failure, s.Reset(ctx, "l"))
		synctest.Wait()
		require.Equal(t, []string{"enforced k", "trial k", "enforced l", "trial l"}, reset)
		require.Equal(t, []ratelimit.Trial{{Key: "l", Reset: true, Err: failure}}, got)
	})
}

// A dry run takes and reports, and lets every call pass.
func TestADryRun(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	planned := ratelimit.Must(ratelimit.NewFixedWindow(s.Client, 2, time.Minute, ratelimit.WithName("planned")))
	trials := make(chan ratelimit.Trial)
	dry := ratelimit.Must(ratelimit.NewShadow(ratelimit.AllowAll(), planned, func(trial ratelimit.Trial) { trials <- trial }))
	for i := range 4 {
		r := must(t)(dry.TryAcquire(ctx, "k"))
		require.True(t, r.Unlimited())
		want := ratelimit.Result{Allowed: true, Limit: 2, Window: time.Minute, Remaining: 1 - i, ResetAfter: time.Minute}
		if i >= 2 {
			want.Allowed, want.Remaining, want.RetryAfter = false, 0, time.Minute
		}
		require.Equal(t, ratelimit.Trial{Key: "k", N: 1, Enforced: r, Result: want}, <-trials)
	}
	_, err := dry.TryAcquireN(ctx, "k", 3)
	require.NoError(t, err)
	require.ErrorIs(t, (<-trials).Err, ratelimit.ErrExceedsLimit)
}

// TestATrialOnAHangingClientKeepsItsPlace: a call that its context cannot end is under way until the
// client returns.
func TestATrialOnAHangingClientKeepsItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int64
		back := make(chan struct{}) // closed when the server answers
		client := fakes.NewClient(func(_ context.Context, cmd redis.Cmder) error {
			calls.Add(1)
			<-back
			cmd.SetErr(redis.ErrClosed)
			return redis.ErrClosed
		})
		trial := ratelimit.Must(ratelimit.NewFixedWindow(client, 2, time.Minute))
		var reports []error
		s := ratelimit.Must(ratelimit.NewShadow(answers(allowedOf10, nil), trial, func(trial ratelimit.Trial) {
			reports = append(reports, trial.Err)
		}))
		ratelimit.SetMaxTrials(s, 1)
		for range 5 {
			_, err := s.TryAcquire(ctx, "k")
			require.NoError(t, err)
			time.Sleep(2 * time.Second) // of the bubble's clock
			synctest.Wait()
		}
		require.Len(t, reports, 1)
		require.ErrorIs(t, reports[0], context.DeadlineExceeded, "after its second")
		require.EqualValues(t, 1, calls.Load())
		require.EqualValues(t, 4, s.Dropped())
		close(back)
		synctest.Wait()
		for range 2 { // the place is free again, each time
			_, err := s.TryAcquire(ctx, "k")
			require.NoError(t, err)
			synctest.Wait()
			require.EqualValues(t, 4, s.Dropped())
		}
	})
}
