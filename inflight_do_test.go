package ratelimit_test

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// A modelRedis does what Redis does for one key of an InFlight of limit 1 with a lease of
// half a minute, by the time of a bubble of synctest.
type modelRedis struct {
	mu   sync.Mutex // guards what follows
	key  model.InFlight
	sent []string // acquire, extend, release, and when

	// fault says how long a command takes to reply, and with which error. An execution
	// that is lost fails before it.
	fault func(kind string) (delay time.Duration, lost bool, err error)
	start time.Time
}

const modelLease = 30 * time.Second

func newModelRedis(t *testing.T) (*modelRedis, *ratelimit.InFlight) {
	m := &modelRedis{start: time.Now()}
	f, err := ratelimit.NewInFlight(m, 1, modelLease)
	require.NoError(t, err)
	return m, f
}

func (m *modelRedis) Process(_ context.Context, cmd redis.Cmder) error {
	if once, ok := cmd.(*redisexec.Once); ok {
		cmd = once.Cmder
	}
	args := cmd.Args()
	kind := map[any]string{ratelimit.ExtendDigest(): "extend"}[args[1]]
	switch {
	case args[0] == "zrem":
		kind = "release"
	case kind == "":
		kind = "acquire"
	}
	m.mu.Lock()
	m.sent = append(m.sent, kind+" "+time.Since(m.start).String())
	var delay time.Duration
	var lost bool
	var err error
	if m.fault != nil {
		delay, lost, err = m.fault(kind)
	}
	now := time.Now().UnixMicro()
	c := model.Call{Limit: 1, Lease: modelLease.Microseconds(), Server: now, Now: now}
	if !lost {
		switch kind {
		case "acquire":
			h := m.key.Acquire(c, *args[8].(*string), 1)
			cmd.(*redis.IntSliceCmd).SetVal([]int64{map[bool]int64{true: 1}[h.Allowed], int64(h.Used), h.Wait, h.Reset})
		case "extend":
			cmd.(*redis.IntSliceCmd).SetVal([]int64{map[bool]int64{true: 1}[m.key.Extend(c, *args[8].(*string), 1)]})
		case "release":
			before := len(m.key.Leases)
			m.key.Release(now, strings.Split(*args[2].(*string), "/")[1])
			cmd.(*redis.IntCmd).SetVal(int64(before - len(m.key.Leases)))
		}
	}
	m.mu.Unlock()
	time.Sleep(delay)
	return err
}

// commands are those sent so far.
func (m *modelRedis) commands() []string {
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sent
}

func (m *modelRedis) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.key.Leases = nil
}

func (m *modelRedis) held() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.key.Leases)
}

var errUnreachable = &net.OpError{Op: "dial", Err: errors.New("connection refused")}

func TestDoExtendsTheLeaseWhileWorkRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, f := newModelRedis(t)
		boom := errors.New("boom")
		require.Equal(t, boom, f.Do(t.Context(), "k", func(ctx context.Context) error {
			time.Sleep(39 * time.Second)
			require.NoError(t, ctx.Err())
			var denied *ratelimit.DeniedError
			err := f.Do(t.Context(), "k", func(context.Context) error { return errors.New("ran") })
			require.ErrorAs(t, err, &denied)
			require.Equal(t, &ratelimit.DeniedError{Key: "k", Result: ratelimit.Result{
				Limit: 1, Window: modelLease, RetryAfter: 21 * time.Second, ResetAfter: 21 * time.Second,
			}}, denied, "extended 9 s ago")
			return boom
		}))
		require.Equal(t, []string{"acquire 0s", "extend 10s", "extend 20s", "extend 30s", "acquire 39s", "release 39s"}, m.commands())
		require.Zero(t, m.held())
	})
}

// The lease counts from before the last call that Redis has confirmed was sent, less a
// thousandth, and the work's context ends then.
func TestDoCancelsWorkWhenTheLeaseCannotBeProven(t *testing.T) {
	const believed = modelLease - modelLease/1000
	down := func(kind string) (time.Duration, bool, error) { return 0, kind == "extend", errUnreachable }
	hangs := func(string) (time.Duration, bool, error) { return time.Hour, true, errUnreachable }
	unheard := func(string) (time.Duration, bool, error) { return time.Minute, false, io.EOF }
	for name, fault := range map[string]func(string) (time.Duration, bool, error){"down": down, "hangs": hangs, "replies are lost": unheard} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, f := newModelRedis(t)
				err := f.Do(t.Context(), "k", func(ctx context.Context) error {
					time.Sleep(15 * time.Second) // one extension
					m.mu.Lock()
					m.fault = fault
					m.mu.Unlock()
					<-ctx.Done()
					require.Equal(t, 10*time.Second+believed, time.Since(m.start))
					require.Equal(t, ratelimit.ErrLeaseLost, context.Cause(ctx))
					m.mu.Lock()
					m.fault = nil
					m.mu.Unlock()
					return ctx.Err()
				})
				require.ErrorIs(t, err, ratelimit.ErrLeaseLost)
				require.ErrorIs(t, err, context.Canceled)
				require.ErrorContains(t, err, `ratelimit: in-flight limiter "default", key "k": ratelimit: the lease is lost`)
				synctest.Wait()
				require.Zero(t, m.held(), "released, though the lease may have been over")
				tries := 0
				for _, c := range m.commands() {
					if strings.HasPrefix(c, "extend") {
						tries++
					}
				}
				require.GreaterOrEqual(t, tries, 4, "%v", m.commands())
				time.Sleep(2 * time.Hour) // what hangs
			})
		})
	}
}

func TestDoReportsALeaseThatWasLostWhateverWorkReturns(t *testing.T) {
	const believed = modelLease - modelLease/1000
	for _, test := range []struct {
		works time.Duration
		lost  bool
	}{{believed - 1, false}, {believed + 1, true}} {
		synctest.Test(t, func(t *testing.T) {
			m, f := newModelRedis(t)
			m.fault = func(kind string) (time.Duration, bool, error) {
				if kind == "extend" {
					return 0, true, errUnreachable
				}
				return 0, false, nil
			}
			err := f.Do(t.Context(), "k", func(context.Context) error {
				time.Sleep(test.works)
				return nil
			})
			require.Equal(t, test.lost, errors.Is(err, ratelimit.ErrLeaseLost), "%v", err)
			require.Equal(t, test.lost, err != nil)
		})
	}
}

func TestDoCancelsWorkWhenRedisHasForgottenTheHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, f := newModelRedis(t)
		err := f.Do(t.Context(), "k", func(ctx context.Context) error {
			m.reset()
			<-ctx.Done()
			require.Equal(t, 10*time.Second, time.Since(m.start))
			require.Equal(t, ratelimit.ErrLeaseLost, context.Cause(ctx))
			return nil
		})
		require.ErrorIs(t, err, ratelimit.ErrLeaseLost)
		require.Equal(t, []string{"acquire 0s", "extend 10s"}, m.commands(), "there is nothing to release")
	})
}

// Work that goes on after its context has ended, to finish, keeps its permit until it
// returns.
func TestDoKeepsThePermitUntilWorkReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, f := newModelRedis(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("the client is gone")
		err := f.Do(ctx, "k", func(ctx context.Context) error {
			time.Sleep(5 * time.Second)
			cancel(gone)
			require.Equal(t, gone, context.Cause(ctx))
			time.Sleep(30 * time.Second)
			require.Equal(t, 1, m.held())
			return ctx.Err()
		})
		require.Equal(t, context.Canceled, err, "the lease was not lost")
		require.Equal(t, []string{"acquire 0s", "extend 10s", "extend 20s", "extend 30s", "release 35s"}, m.commands())
		require.Zero(t, m.held())
	})
}

func TestDoReleasesWhenWorkPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, f := newModelRedis(t)
		require.PanicsWithValue(t, "boom", func() {
			_ = f.Do(t.Context(), "k", func(context.Context) error { panic("boom") })
		})
		require.Zero(t, m.held())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = f.Do(t.Context(), "k", func(context.Context) error { runtime.Goexit(); return nil })
		}()
		<-ended
		require.Zero(t, m.held())
		require.Equal(t, []string{"acquire 0s", "release 0s", "acquire 0s", "release 0s"}, m.commands())
	})
}

// A Redis that hangs holds nobody up for longer than a second after the work.
func TestDoWaitsASecondForTheRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, f := newModelRedis(t)
		m.fault = func(kind string) (time.Duration, bool, error) {
			if kind == "release" {
				return time.Hour, false, nil
			}
			return 0, false, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		require.NoError(t, f.Do(ctx, "k", func(context.Context) error { cancel(); return nil }))
		require.Equal(t, time.Second, time.Since(m.start))
		time.Sleep(time.Hour)
	})
}

func TestDoRunsNoWorkWithoutAPermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, f := newModelRedis(t)
		require.ErrorIs(t, f.Do(t.Context(), "k", nil), ratelimit.ErrInvalidConfig)
		m.fault = func(string) (time.Duration, bool, error) { return 0, true, errUnreachable }
		work := func(context.Context) error { t.Error("it ran"); return nil }
		require.ErrorIs(t, f.Do(t.Context(), "k", work), errUnreachable)
		require.ErrorIs(t, f.Do(t.Context(), "", work), ratelimit.ErrInvalidKey)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, f.Do(ended, "k", work), context.Canceled)
		require.Equal(t, []string{"acquire 0s"}, m.commands())
	})
}

// A hold of one's own: Do extends it, cancels the work if it is lost, and releases it.
func TestAHoldDoesItsWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, f := newModelRedis(t)
		hold, _, err := f.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		require.ErrorIs(t, hold.Do(t.Context(), nil), ratelimit.ErrInvalidConfig)
		ran := errors.New("it ran")
		require.Equal(t, ran, hold.Do(t.Context(), func(context.Context) error { time.Sleep(15 * time.Second); return ran }))
		require.Equal(t, []string{"acquire 0s", "extend 10s", "release 15s"}, m.commands())

		work := func(context.Context) error { t.Error("it ran"); return nil }
		err = hold.Do(t.Context(), work)
		require.ErrorIs(t, err, ratelimit.ErrLeaseLost, "it was released")
		require.EqualError(t, err, `ratelimit: in-flight limiter "default", key "k": ratelimit: the lease is lost`)
		require.ErrorIs(t, (*ratelimit.Hold)(nil).Do(t.Context(), work), ratelimit.ErrLeaseLost)
		require.ErrorIs(t, new(ratelimit.Hold).Do(t.Context(), work), ratelimit.ErrLeaseLost)

		hold, _, err = f.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		time.Sleep(modelLease)
		require.ErrorIs(t, hold.Do(t.Context(), work), ratelimit.ErrLeaseLost, "the lease has ended")
		require.Equal(t, []string{"acquire 0s", "extend 10s", "release 15s", "acquire 15s", "release 45s"}, m.commands())

		hold, _, err = f.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		err = hold.Do(t.Context(), func(ctx context.Context) error {
			m.reset()
			<-ctx.Done()
			require.Equal(t, ratelimit.ErrLeaseLost, context.Cause(ctx))
			return ran
		})
		require.ErrorIs(t, err, ratelimit.ErrLeaseLost)
		require.ErrorIs(t, err, ran)
	})
}

// Permits that the caller does not get to know of are given back.
func TestALostAcquireIsGivenBack(t *testing.T) {
	type fault struct {
		delay time.Duration
		lost  bool
		err   error
	}
	var pool fault
	pool.lost, pool.err = true, redis.ErrPoolTimeout
	for name, test := range map[string]struct {
		fault
		leaves   time.Duration // when the caller does; 0: never
		taken    bool          // by another
		commands []string
	}{
		"the reply is lost":                    {fault: fault{err: io.EOF}, commands: []string{"acquire 0s", "release 0s"}},
		"the request is lost":                  {fault: fault{lost: true, err: io.EOF}, commands: []string{"acquire 0s", "release 0s", "release 0s"}},
		"the server cannot be reached":         {fault: fault{lost: true, err: errUnreachable}, commands: []string{"acquire 0s"}},
		"there is no connection":               {fault: pool, commands: []string{"acquire 0s"}},
		"the caller leaves, and it is allowed": {fault: fault{delay: 3 * time.Second}, leaves: time.Second, commands: []string{"acquire 0s", "release 3s"}},
		"the caller leaves, and it is denied":  {fault: fault{delay: 3 * time.Second}, leaves: time.Second, taken: true, commands: []string{"acquire 0s"}},
		"the caller leaves, and it is lost":    {fault: fault{delay: 3 * time.Second, err: io.EOF}, leaves: time.Second, commands: []string{"acquire 0s", "release 3s"}},
		"the reply comes too late":             {fault: fault{delay: modelLease - modelLease/1000}, commands: []string{"acquire 0s", "release 29.97s"}},
	} {
		for _, endless := range []bool{false, true} {
			if endless && test.leaves > 0 {
				continue
			}
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m, f := newModelRedis(t)
					if test.taken {
						hold, _, err := f.TryAcquire(context.Background(), "k")
						require.NoError(t, err)
						defer func() { require.NoError(t, hold.Release(context.Background())) }()
						m.sent = nil
					}
					m.fault = func(kind string) (time.Duration, bool, error) {
						if kind == "acquire" {
							return test.delay, test.lost, test.err
						}
						return 0, false, nil
					}
					ctx := context.Background()
					if !endless {
						ctx = t.Context()
					}
					if test.leaves > 0 {
						var cancel context.CancelFunc
						ctx, cancel = context.WithTimeout(ctx, test.leaves)
						defer cancel()
					}
					hold, r, err := f.TryAcquire(ctx, "k")
					require.Error(t, err)
					require.Zero(t, r)
					require.Nil(t, hold)
					if test.leaves > 0 {
						require.ErrorIs(t, err, context.DeadlineExceeded)
						require.Equal(t, test.leaves, time.Since(m.start))
					}
					time.Sleep(5 * time.Second)
					require.Equal(t, test.commands, m.commands())
					if !test.taken {
						require.Zero(t, m.held())
					}
				})
			})
		}
	}
}

// A nanosecond before its end the lease is believed in, and then it is not.
func TestAHoldCountsItsLeaseFromBeforeItWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, f := newModelRedis(t)
		m.fault = func(string) (time.Duration, bool, error) { return 2 * time.Second, false, nil }
		hold, r, err := f.TryAcquire(t.Context(), "k")
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.Equal(t, 27970*time.Millisecond, hold.Left(), "30 s, less 30 ms, less 2 s")
		time.Sleep(27970*time.Millisecond - 1)
		require.Equal(t, time.Nanosecond, hold.Left())
		time.Sleep(time.Nanosecond)
		require.Zero(t, hold.Left())

		// Nobody else has needed the place.
		require.NoError(t, hold.Extend(t.Context()))
		require.Equal(t, 27970*time.Millisecond, hold.Left())

		m.fault = func(string) (time.Duration, bool, error) { return modelLease, false, nil }
		require.ErrorContains(t, hold.Extend(t.Context()), "the reply came when the lease could have ended")
		require.Zero(t, hold.Left())
		m.fault = nil
		require.NoError(t, hold.Extend(t.Context()))

		require.NoError(t, hold.Release(t.Context()))
		require.Zero(t, hold.Left())
		require.ErrorIs(t, hold.Extend(t.Context()), ratelimit.ErrLeaseLost)
		sent := len(m.commands())
		require.NoError(t, hold.Release(t.Context()))
		require.Len(t, m.commands(), sent, "what is released is not asked for")
	})
}

// Release is deferred with the request's context, which may have ended.
func TestReleaseIsSentThoughTheContextHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, f := newModelRedis(t)
		ctx, cancel := context.WithCancel(t.Context())
		hold, _, err := f.TryAcquire(ctx, "k")
		require.NoError(t, err)
		cancel()
		m.fault = func(string) (time.Duration, bool, error) { return 0, true, io.EOF }
		require.ErrorIs(t, hold.Release(ctx), io.EOF)
		require.Equal(t, 1, m.held())
		m.fault = nil
		require.NoError(t, hold.Release(ctx))
		require.Zero(t, m.held())
	})
}

// A hold that was taken earlier is extended when a third of its lease is over, which may be at
// once.
func TestDoOfAHoldThatIsOlder(t *testing.T) {
	for _, test := range []struct{ age, extended time.Duration }{
		{0, 10 * time.Second},
		{4 * time.Second, 10 * time.Second},
		{10 * time.Second, 10 * time.Second},
		{29 * time.Second, 29 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			m, f := newModelRedis(t)
			hold, _, err := f.TryAcquire(ctx, "k")
			require.NoError(t, err)
			time.Sleep(test.age)
			require.NoError(t, hold.Do(ctx, func(ctx context.Context) error {
				time.Sleep(test.extended - test.age + time.Second)
				return ctx.Err()
			}))
			require.Equal(t, []string{
				"acquire 0s", "extend " + test.extended.String(), "release " + (test.extended + time.Second).String(),
			}, m.commands())
		})
	}
}

// TestDoDoesNotWaitForAReleaseAfterTheLease: Redis hangs until the lease is over. Nothing depends
// on the release any more, so it is sent in the background.
func TestDoDoesNotWaitForAReleaseAfterTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, f := newModelRedis(t)
		var ended time.Time
		err := f.Do(t.Context(), "k", func(ctx context.Context) error {
			m.mu.Lock()
			m.fault = func(string) (time.Duration, bool, error) { return time.Hour, true, errUnreachable }
			m.mu.Unlock()
			<-ctx.Done()
			ended = time.Now()
			return nil
		})
		require.ErrorIs(t, err, ratelimit.ErrLeaseLost)
		require.Zero(t, time.Since(ended))
		synctest.Wait()
		commands := m.commands()
		require.Equal(t, "release 29.97s", commands[len(commands)-1])
		time.Sleep(2 * time.Hour) // what hangs
	})
}
