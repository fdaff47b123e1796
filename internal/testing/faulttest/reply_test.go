package faulttest

import (
	"context"
	"fmt"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// generous is far more than a promised time, for the machine may be slow, and a
// pipeline of a ClusterClient tries four times to get a connection.
const generous = 15 * time.Second

// ample are limiters that allow everything here and forget nothing, one whose
// reply is an integer and one whose reply is a list.
var ample = []struct {
	name  string
	build func(c ratelimit.Client, opts ...ratelimit.Option) (ratelimit.Limiter, error)
}{
	{"fixed window", func(c ratelimit.Client, o ...ratelimit.Option) (ratelimit.Limiter, error) {
		return ratelimit.NewFixedWindow(c, plenty, time.Hour, o...)
	}},
	{"sliding log", func(c ratelimit.Client, o ...ratelimit.Option) (ratelimit.Limiter, error) {
		return ratelimit.NewSlidingLog(c, []ratelimit.Rule{{Limit: plenty - 1, Window: time.Hour}, {Limit: plenty, Window: 2 * time.Hour}}, o...)
	}},
}

const plenty = 1_000_000_000

// used is how many permits of a key of an ample limiter are gone.
func used(t testing.TB, l ratelimit.Limiter, key string) int {
	t.Helper()
	r := must(t)(l.Peek(ctx, key))
	return r.Limit - r.Remaining
}

// The group calls for 5⁰, 5¹, 5², … permits of one key all at once, so that the
// permits used show how often each call was executed.
const groupSize = 12

func weight(i int) int {
	w := 1
	for range i {
		w *= 5
	}
	return w
}

// A group is calls of one key that are made all at once: call i is for weight(i) permits.
type group struct {
	name  string
	kinds []kindOfCall // call i is of kind i, and over again
}

// A kindOfCall is what the calls of a group do. Each leaves one digit of the permits used: before
// it is prepared 0, before it is called begin, and after each execution one more or one less.
type kindOfCall struct {
	begin, step int
	call        func(c context.Context, l settling, t *ratelimit.Ticket, key string, n int) (ratelimit.Result, error)
}

type settling interface {
	ratelimit.Limiter
	ratelimit.Settler
	TryAcquireUpTo(ctx context.Context, key string, n int) (taken int, r ratelimit.Result, err error)
}

var taking = kindOfCall{0, 1, func(c context.Context, l settling, _ *ratelimit.Ticket, key string, n int) (ratelimit.Result, error) {
	return l.TryAcquireN(c, key, n)
}}

// groups are calls that take, and calls of all kinds that are merged with each other.
var groups = []group{
	{"takes", []kindOfCall{taking}},
	{"all kinds", []kindOfCall{
		taking,
		{0, 1, func(c context.Context, l settling, _ *ratelimit.Ticket, key string, n int) (ratelimit.Result, error) {
			_, r, err := l.TryAcquireUpTo(c, key, n)
			return r, err
		}},
		{0, 1, func(c context.Context, l settling, _ *ratelimit.Ticket, key string, n int) (ratelimit.Result, error) {
			return l.Charge(c, key, n)
		}},
		{0, 1, func(c context.Context, l settling, _ *ratelimit.Ticket, key string, n int) (ratelimit.Result, error) {
			_, r, err := l.Estimate(c, key, n)
			return r, err
		}},
		{1, 1, func(c context.Context, _ settling, t *ratelimit.Ticket, _ string, n int) (ratelimit.Result, error) {
			return ratelimit.Result{}, t.Settle(c, 2*n)
		}},
		{4, -1, func(c context.Context, _ settling, t *ratelimit.Ticket, _ string, n int) (ratelimit.Result, error) {
			return ratelimit.Result{}, t.Settle(c, 3*n)
		}},
	}},
}

func (g group) kind(i int) kindOfCall { return g.kinds[i%len(g.kinds)] }

// prepare returns the calls of the group, after the estimates that they settle.
func (g group) prepare(t testing.TB, built ratelimit.Limiter, key string) func(c context.Context, i int) (ratelimit.Result, error) {
	l := built.(settling)
	var tickets [groupSize]*ratelimit.Ticket
	for i := range tickets {
		if begin := g.kind(i).begin; begin > 0 {
			var err error
			tickets[i], _, err = l.Estimate(ctx, key, begin*weight(i))
			require.NoError(t, err)
		}
	}
	return func(c context.Context, i int) (ratelimit.Result, error) {
		return g.kind(i).call(c, l, tickets[i], key, weight(i))
	}
}

// executed returns how often each call of the group was executed: any number below
// five, and go-redis sends a command four times at most.
func (g group) executed(t testing.TB, l ratelimit.Limiter, key string) [groupSize]int {
	t.Helper()
	var times [groupSize]int
	rest := used(t, l, key)
	for i := range times {
		times[i] = (rest%5 - g.kind(i).begin) * g.kind(i).step
		rest /= 5
	}
	require.Zero(t, rest)
	return times
}

// gather makes the calls of the group, and returns each call's error. The calls overlap:
// they meet in the batches of a merging limiter.
func gather(f *figures, call func(i int) (ratelimit.Result, error)) (wait func() [groupSize]error) {
	var errs [groupSize]error
	var wg sync.WaitGroup
	ready := make(chan struct{})
	for i := range errs {
		wg.Go(func() {
			<-ready
			start := time.Now()
			r, err := call(i)
			f.count(start, r, err)
			errs[i] = err
		})
	}
	close(ready)
	return func() [groupSize]error {
		wg.Wait()
		return errs
	}
}

// requireOnce checks that a call that was answered has been executed once, and
// one that failed not more than once.
func requireOnce(t testing.TB, times [groupSize]int, errs [groupSize]error) {
	t.Helper()
	for i, n := range times {
		if errs[i] == nil {
			require.Equal(t, 1, n, "the executions of call %d, which was answered; of all: %v", i, times)
		} else {
			require.LessOrEqual(t, n, 1, "the executions of call %d, which failed; of all: %v", i, times)
		}
	}
}

// onMerged matches the requests that carry several calls for a key of a group.
func onMerged() redistest.Matcher {
	byDigest, several := redistest.OnCommand("evalsha"), regexp.MustCompile(`[0-9][xecg][0-9/]+,[0-9]`)
	return func(request []byte) bool { return byDigest(request) && several.Match(request) }
}

func TestACallWhoseReplyIsLostIsExecutedOnce(t *testing.T) {
	t.Parallel()
	g := startGrid(t)

	// A single call, whose reply is cut after each of its bytes.
	t.Run("cut at every byte", func(t *testing.T) {
		g.each(t, 5*time.Second, func(t *testing.T, r *rig) {
			for _, a := range ample {
				l, err := a.build(r.client, r.opts...)
				require.NoError(t, err)
				truth, err := a.build(r.admin)
				require.NoError(t, err)
				// A cut answer that the script is not known would be one of a call that did not run.
				require.NoError(t, ratelimit.Preload(ctx, ratelimit.ClaimOf(l, "k", 1)))
				var f figures
				before := redistest.Executions(t, r.admin)
				for cut := 0; ; cut++ {
					key := fmt.Sprint(t.Name(), cut)
					r.all(func(p *redistest.Proxy) { p.CutReplyAfter(cut, redistest.OnScript()) })
					start := time.Now()
					res, err := l.TryAcquireN(ctx, key, 7)
					f.count(start, res, err)
					r.all((*redistest.Proxy).Disarm)
					if err == nil {
						require.Greater(t, cut, 3)
						break // the reply was not longer
					}
					require.ErrorContains(t, err, a.name)
					require.ErrorContains(t, err, key[:20])
					require.Zero(t, res)
					start = time.Now()
					res, err = l.TryAcquireN(ctx, key, 7)
					f.count(start, res, err)
					require.NoError(t, err, "after a cut at byte %d", cut)
				}
				ran := redistest.Executions(t, r.admin) - before
				t.Logf("%s: %v; %d executions", a.name, &f, ran)
				require.Equal(t, int64(f.calls), ran, "each call was executed once, answered or not")
				for cut := range f.failed {
					require.Equal(t, 14, used(t, truth, fmt.Sprint(t.Name(), cut)), "permits used after a cut at byte %d", cut)
				}
				// The last cut came after the reply: the next call may be the one that notices.
				_, _ = l.Peek(ctx, t.Name())
			}
		})
	})

	// Many calls, merged where the limiter merges.
	t.Run("cut in a group", func(t *testing.T) {
		g.each(t, 5*time.Second, func(t *testing.T, r *rig) {
			a := ample[0]
			l, err := a.build(r.client, r.opts...)
			require.NoError(t, err)
			truth, err := a.build(r.admin)
			require.NoError(t, err)
			which := redistest.OnScript()
			if r.merging {
				which = onMerged()
			}
			for _, of := range groups {
				var f figures
				var struck, unanswered int
				for cut := range 24 {
					keys := [2]string{fmt.Sprint(t.Name(), of.name, cut, "a"), fmt.Sprint(t.Name(), of.name, cut, "b")}
					a, b := of.prepare(t, l, keys[0]), of.prepare(t, l, keys[1])
					faults := []*redistest.Fault{}
					r.all(func(p *redistest.Proxy) { faults = append(faults, p.CutReplyAfter(cut, which)) })
					r.all((*redistest.Proxy).HoldReplies) // so that they wait for each other
					first := gather(&f, func(i int) (ratelimit.Result, error) { return a(ctx, i) })
					second := gather(&f, func(i int) (ratelimit.Result, error) { return b(ctx, i) })
					r.all((*redistest.Proxy).Unhang)
					errs := [2][groupSize]error{first(), second()}
					r.all((*redistest.Proxy).Disarm)
					for _, fault := range faults {
						struck += fault.Hits()
					}
					for k, key := range keys {
						times := of.executed(t, truth, key)
						requireOnce(t, times, errs[k])
						for i, n := range times {
							if errs[k][i] != nil {
								unanswered += n
							}
						}
					}
					_, _ = l.Peek(ctx, t.Name()) // it may notice the cut connection
				}
				t.Logf("%s: %v; %d replies cut; %d calls executed without an answer", of.name, &f, struck, unanswered)
				require.Positive(t, struck)
				require.Positive(t, unanswered, "a lost reply is one of a call that was executed")
			}
		})
	})

	t.Run("lost", func(t *testing.T) {
		g.each(t, 500*time.Millisecond, func(t *testing.T, r *rig) {
			for _, a := range ample {
				l, err := a.build(r.client, r.opts...)
				require.NoError(t, err)
				truth, err := a.build(r.admin)
				require.NoError(t, err)
				for _, loss := range []struct {
					name string
					arm  func(p *redistest.Proxy)
				}{
					{"dropped", func(p *redistest.Proxy) { p.DropReply(1, redistest.OnScript()) }},
					{"silent", func(p *redistest.Proxy) { p.MuteReply(1, redistest.OnScript()) }},
				} {
					key := t.Name() + loss.name
					must(t)(l.TryAcquireN(ctx, key, 1))
					before := redistest.Executions(t, r.admin)
					r.all(loss.arm)
					var f figures
					start := time.Now()
					res, err := l.TryAcquireN(ctx, key, 5)
					f.count(start, res, err)
					r.all((*redistest.Proxy).Disarm)
					require.Error(t, err)
					require.Zero(t, res)
					require.Less(t, f.longest, generous)
					require.Equal(t, int64(1), redistest.Executions(t, r.admin)-before)
					must(t)(l.TryAcquireN(ctx, key, 25))
					require.Equal(t, 31, used(t, truth, key), "each call was executed once")
					t.Logf("%s, %s: %v", a.name, loss.name, &f)
				}
			}
		})
	})
}

func TestCallsEndInTimeWhenTheServerHangs(t *testing.T) {
	t.Parallel()
	g := startGrid(t)
	ways := []struct {
		name string
		hang func(p *redistest.Proxy)
		ran  bool // the calls reach the server
	}{
		{"the way there", (*redistest.Proxy).Hang, false},
		{"the way back", (*redistest.Proxy).HoldReplies, true},
	}

	// No context has a deadline: the client's timeout ends the calls.
	t.Run("within the read timeout", func(t *testing.T) {
		g.each(t, 200*time.Millisecond, func(t *testing.T, r *rig) {
			a := ample[0]
			l, err := a.build(r.client, r.opts...)
			require.NoError(t, err)
			truth, err := a.build(r.admin)
			require.NoError(t, err)
			for at := range len(ways) * len(groups) {
				way, of := ways[at%len(ways)], groups[at/len(ways)]
				key := t.Name() + way.name + of.name
				must(t)(l.TryAcquire(ctx, "warm up"))
				call := of.prepare(t, l, key)
				var f figures
				r.all(way.hang)
				errs := gather(&f, func(i int) (ratelimit.Result, error) { return call(ctx, i) })()
				r.all((*redistest.Proxy).Unhang)
				for i, err := range errs {
					require.Error(t, err, "call %d", i)
				}
				require.Less(t, f.longest, generous)
				eventually(t, "calls are answered again", func() bool { // the read timeout is short for a busy machine
					res, err := l.TryAcquire(ctx, key+" afterwards")
					return err == nil && res.Allowed
				})
				settle()
				times := of.executed(t, truth, key)
				requireOnce(t, times, errs)
				t.Logf("%s: %v; executions %v", way.name, &f, times)
			}
		})
	})

	// The client would wait for a minute, the callers do not.
	t.Run("within the context", func(t *testing.T) {
		g.each(t, time.Minute, func(t *testing.T, r *rig) {
			a := ample[0]
			l, err := a.build(r.client, r.opts...)
			require.NoError(t, err)
			truth, err := a.build(r.admin)
			require.NoError(t, err)
			for at := range len(ways) * len(groups) {
				way, of := ways[at%len(ways)], groups[at/len(ways)]
				for _, end := range []struct {
					name string
					want error
					ctx  func() (context.Context, context.CancelFunc)
				}{
					{"expires", context.DeadlineExceeded, func() (context.Context, context.CancelFunc) {
						return context.WithTimeout(ctx, 30*time.Millisecond)
					}},
					{"is cancelled", context.Canceled, func() (context.Context, context.CancelFunc) {
						c, cancel := context.WithCancel(ctx)
						time.AfterFunc(30*time.Millisecond, cancel)
						return c, cancel
					}},
				} {
					key := t.Name() + way.name + of.name + end.name
					must(t)(l.TryAcquire(ctx, "warm up"))
					call := of.prepare(t, l, key)
					var f figures
					r.all(way.hang)
					errs := gather(&f, func(i int) (ratelimit.Result, error) {
						c, cancel := end.ctx()
						defer cancel()
						return call(c, i)
					})()
					for _, call := range []func(c context.Context) error{
						func(c context.Context) error { _, err := l.Peek(c, key); return err },
						func(c context.Context) error { return l.Reset(c, "another") },
					} {
						c, cancel := end.ctx()
						start := time.Now()
						err := call(c)
						f.count(start, ratelimit.Result{}, err)
						cancel()
						require.ErrorIs(t, err, end.want)
						require.ErrorContains(t, err, a.name)
					}
					r.all((*redistest.Proxy).Unhang)
					for i, err := range errs {
						require.ErrorIs(t, err, end.want, "call %d", i)
						require.ErrorContains(t, err, a.name)
					}
					require.Less(t, f.longest, generous)
					start := time.Now()
					require.True(t, must(t)(l.TryAcquire(ctx, key+" afterwards")).Allowed)
					again := time.Since(start)
					settle()
					times := of.executed(t, truth, key)
					requireOnce(t, times, errs)
					t.Logf("%s, the context %s: %v; executions %v; works again after %v", way.name, end.name, &f, times, again)
				}
			}
		})
	})
}

// settle gives requests that were held up time to be executed, and to be executed
// twice.
func settle() { time.Sleep(20 * time.Millisecond) }

// A command of go-redis's own is what the library must not send: the same fault
// executes it up to four times. If this fails, go-redis has changed.
func TestAPlainCommandIsSentAgain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	client := server.Client(t, func(o *redis.Options) { o.Addr = proxy.Addr() })
	fault := proxy.DropReply(3, redistest.OnCommand("incr"))
	n, err := client.Incr(ctx, "n").Result()
	require.NoError(t, err)
	require.Equal(t, int64(4), n)
	require.Equal(t, 3, fault.Hits())
}
