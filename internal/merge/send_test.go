package merge

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/redisclient"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
)

type serverError string

func (e serverError) Error() string { return string(e) }
func (serverError) RedisError()     {}

var (
	panicking = fakes.NewClient(func(context.Context, redis.Cmder) error { panic("boom") })
	exiting   = fakes.NewClient(func(context.Context, redis.Cmder) error { runtime.Goexit(); return nil })
)

// waitingFor has calls wait until few others are answered. They are then sent together,
// and are the only ones in flight.
func waitingFor(t *testing.T, s *server, m *Merger, keys ...string) []*call {
	t.Helper()
	few(t, s, m)
	return acquireAll(m, 1, keys...)
}

// TestAKeyThatFailsIsAskedForAgain: its first run on its own learns the reason.
func TestAKeyThatFailsIsAskedForAgain(t *testing.T) {
	corrupt, full := serverError("WRONGTYPE"), serverError("OOM")
	for _, test := range []struct {
		name string
		err  error
		want []call // of a, b, b, c, where b fails
		sent []string
	}{
		{
			"an error about what the key holds", corrupt,
			[]call{allowed(9), failed(corrupt), failed(corrupt), allowed(9)},
			[]string{"a 1, b 1x2, c 1", "b 1x2"},
		},
		{
			"an error about all keys", full,
			[]call{allowed(9), failed(full), failed(full), allowed(9)},
			[]string{"a 1, b 1x2, c 1", "b 1x2"},
		},
		{
			"it has been mended", nil,
			[]call{allowed(9), allowed(9), allowed(8), allowed(9)},
			[]string{"a 1, b 1x2, c 1", "b 1x2"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			held(t, 10, func(t *testing.T, s *server, m *Merger) {
				calls := waitingFor(t, s, m, "a", "b", "b", "c")
				s.answerFew()
				s.broken["b"], s.errs["b"] = []int{0}, test.err
				for range test.sent {
					s.answerNext(nil)
				}
				requireCalls(t, calls, test.want...)
				require.Equal(t, test.sent, s.take())
			})
		})
	}
}

// TestAnErrorAboutAllKeysEndsTheSearch for reasons: every key that failed has it.
func TestAnErrorAboutAllKeysEndsTheSearch(t *testing.T) {
	held(t, 10, func(t *testing.T, s *server, m *Merger) {
		calls := waitingFor(t, s, m, "a", "b", "c", "d")
		s.answerFew()
		corrupt, full := serverError("WRONGTYPE"), serverError("OOM")
		s.broken = map[string][]int{"a": {0}, "b": {0}, "c": {0}}
		s.errs = map[string]error{"a": corrupt, "b": full, "c": corrupt}
		for range 3 {
			s.answerNext(nil)
		}
		requireCalls(t, calls, failed(corrupt), failed(full), failed(full), allowed(9))
		require.Equal(t, []string{"a 1, b 1, c 1, d 1", "a 1", "b 1"}, s.take())
	})
}

// TestAKeyThatFailsNowAndThen: each time its next run is asked for on its own, and the
// calls behind it follow in their order.
func TestAKeyThatFailsNowAndThen(t *testing.T) {
	held(t, 10, func(t *testing.T, s *server, m *Merger) {
		calls := waitingFor(t, s, m, "k")
		within, cancel := context.WithCancel(ctx)
		gone := acquire(within, m, "k", 1)
		for _, n := range []int{1, 2, 3, 1} {
			calls = append(calls, acquire(ctx, m, "k", n))
		}
		cancel()
		synctest.Wait()
		s.broken["k"] = []int{0, 0}
		s.answerFew()
		for range 5 {
			s.answerNext(nil)
		}
		require.Equal(t, failed(context.Canceled), *gone)
		requireCalls(t, calls, allowed(9), allowed(8), allowed(6), allowed(3), allowed(2))
		require.Equal(t, []string{"k 1x2,2x1,3x1,1x1", "k 1x2", "k 2x1,3x1,1x1", "k 2", "k 3x1,1x1"}, s.take())
	})
}

// TestWhatAnExecutionHasNoTimeFor goes in another one, in its order.
func TestWhatAnExecutionHasNoTimeFor(t *testing.T) {
	all := "a 1, b 1x1,2x1, c 1, d 1"
	decided := []call{allowed(9), allowed(9), allowed(7), allowed(9), allowed(9)}
	down, corrupt, reused := serverError("LOADING"), serverError("WRONGTYPE"), serverError("REUSED")
	for _, test := range []struct {
		late   []int
		broken string
		err    error // of the last command
		sent   []string
		want   []call // of a, b, b, c, d
	}{
		{[]int{1}, "", nil, []string{all, "b 1x1,2x1, c 1, d 1"}, decided},
		{[]int{2}, "", nil, []string{all, "b 2x1, c 1, d 1"}, decided},
		{[]int{3, 1}, "", nil, []string{all, "c 1, d 1", "d 1"}, decided},
		{[]int{0}, "", nil, []string{all, "a 1", "b 1", "b 2x1", "c 1", "d 1"}, decided}, // no script does that
		{[]int{2}, "b", nil, []string{all, "b 1", "b 2x1", "d 1"}, decided},
		{[]int{3}, "a", nil, []string{all, "a 1", "d 1"}, decided},
		{[]int{2}, "", down, []string{all, "b 2x1, c 1, d 1"}, []call{decided[0], decided[1], failed(down), failed(down), failed(down)}},
		{[]int{3}, "a", down, []string{all, "a 1"}, []call{failed(down), decided[1], decided[2], decided[3], failed(down)}},
		{[]int{3}, "a", corrupt, []string{all, "a 1", "d 1"}, []call{failed(corrupt), decided[1], decided[2], decided[3], decided[4]}},
		{[]int{3}, "a", reused, []string{all, "a 1", "d 1"}, []call{failed(reused), decided[1], decided[2], decided[3], decided[4]}},
	} {
		t.Run(fmt.Sprint(test.late, test.broken, test.err), func(t *testing.T) {
			held(t, 10, func(t *testing.T, s *server, m *Merger) {
				calls := waitingFor(t, s, m, "a", "b")
				calls = append(calls, acquire(ctx, m, "b", 2), acquire(ctx, m, "c", 1), acquire(ctx, m, "d", 1))
				s.answerFew()
				s.late = test.late
				if test.broken != "" {
					s.broken[test.broken] = []int{0}
				}
				if test.err != down {
					s.errs[test.broken] = test.err
				}
				for i := range test.sent {
					if i == len(test.sent)-1 && test.err == down {
						s.answerNext(down)
					} else {
						s.answerNext(nil)
					}
				}
				require.Equal(t, test.sent, s.take())
				requireCalls(t, calls, test.want...)
			})
		})
	}
}

func TestAReplyThatEndsTooSoonIsAnError(t *testing.T) {
	held(t, 10, func(t *testing.T, s *server, m *Merger) {
		s.Client = fakes.Losing(s, func(cmd redis.Cmder) error { // the end of every reply to many requests
			if reply := cmd.(*redisexec.Once).Cmder.(*redis.IntSliceCmd); len(reply.Val()) > 2 {
				reply.SetVal(reply.Val()[:3])
			}
			return nil
		})
		calls := waitingFor(t, s, m, "a", "b", "c")
		s.answerFew()
		s.answerNext(nil)
		requireCalls(t, calls, allowed(9), failed(errShortReply), failed(errShortReply))
	})
}

func TestAClientThatKeepsACommandIsAnError(t *testing.T) {
	held(t, 10, func(t *testing.T, s *server, m *Merger) {
		calls := waitingFor(t, s, m, "a", "b", "c")
		s.Client = fakes.NewClient(func(context.Context, redis.Cmder) error { return <-s.hold }) // sends nothing
		s.answerFew()
		s.answerNext(nil)
		for _, c := range calls {
			require.EqualError(t, c.err, "the client reported neither an error nor a reply")
		}
	})
}

// TestAClientThatDoesNotReturnIsAnError for each call of the batch, and for a call that
// was sent directly if its caller can leave; and the queue goes on.
func TestAClientThatDoesNotReturnIsAnError(t *testing.T) {
	for want, client := range map[string]redisclient.Client{
		"the client or the clock panicked: boom":          panicking,
		"the client ended the goroutine (runtime.Goexit)": exiting,
	} {
		held(t, 10, func(t *testing.T, s *server, m *Merger) {
			within, cancel := context.WithCancel(ctx)
			defer cancel()
			for range 2 * maxInFlight {
				s.Client = s
				calls := waitingFor(t, s, m, "a", "b", "b")
				s.Client = client
				s.answerFew()
				calls = append(calls, acquire(within, m, "a", 1))
				for _, c := range calls {
					require.EqualError(t, c.err, want)
				}
			}
			require.True(t, m.common.idle())
		})
	}
}

func TestAClockThatFailsIsAnError(t *testing.T) {
	held(t, 10, func(t *testing.T, s *server, m *Merger) {
		wrong := errors.New("1969")
		calls := waitingFor(t, s, m, "a", "b", "b")
		s.Now = func() (int64, error) { return 0, wrong }
		s.answerFew()
		requireCalls(t, calls, failed(wrong), failed(wrong), failed(wrong))
	})
}

// TestPermitsOfOverlappingCallsAddUp: each call that is allowed has a permit of its own.
func TestPermitsOfOverlappingCallsAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(300)
		m := New(s.Executor, asGiven)
		calls := make([][]*call, 8)
		for i := range calls {
			go func() {
				for range 100 {
					c := &call{}
					reply, err := m.Acquire(ctx, fmt.Sprint(i%2), 1)
					c.err = err
					if err == nil {
						c.allowed = reply.Index < reply.Words[0]
						c.left = reply.Words[1] - min(reply.Index+1, reply.Words[0])
						reply.Done()
					}
					calls[i] = append(calls[i], c)
				}
			}()
		}
		synctest.Wait()
		for key := range 2 {
			left := map[int64]bool{}
			for i := key; i < 8; i += 2 {
				for _, c := range calls[i] {
					require.NoError(t, c.err)
					if c.allowed {
						require.False(t, left[c.left], "a permit was given twice")
						left[c.left] = true
					}
				}
			}
			require.Len(t, left, 300)
		}
	})
}
