package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"context"
	"net"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/ratelimittest"
)

// openWorld is a playground in a bubble, which runs until the test ends.
func openWorld(t *testing.T, s settings) *world {
	env := ratelimittest.New(t)
	w, err := newWorld(func(ctx context.Context) (net.Conn, error) { return env.Dial(ctx, "", "") }, "a Redis of the test", "test", budget)
	require.NoError(t, err)
	t.Cleanup(w.close)
	require.NoError(t, w.set(s))
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	go w.run(ctx)
	return w
}

func advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestCallersShareTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := usual
		s.Rate = 5
		w := openWorld(t, s)
		advance(10*time.Second + time.Millisecond)
		v := w.view(t.Context())
		// Two callers make 100 calls; the bucket holds 10 and refills 1 a second.
		require.Equal(t, counts{Allowed: 19, Denied: 81}, v.Totals)
		require.Equal(t, []state{{
			Key: "user:1", Words: "0 of 10 permits left; the next call is allowed in 199 ms, all are back in 9.2 s.",
			Raw:     "test:demo:tokenbucket{user:1} (string): 0946684809200000/10000000/1000000/1",
			Expires: "9.2 s", Left: 0, Limit: 10,
		}}, v.States)
	})
}

func TestPlanCountsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := usual
		s.Rate = 0
		w := openWorld(t, s)
		w.burst(20)
		synctest.Wait()
		require.Equal(t, counts{Allowed: 10, Denied: 10}, w.view(t.Context()).Totals)
		s.Plan = "pro"
		require.NoError(t, w.set(s))
		w.burst(30)
		synctest.Wait()
		// What was used carries over: 20 of 30 are left.
		require.Equal(t, counts{Allowed: 30, Denied: 20}, w.view(t.Context()).Totals)
	})
}

func TestOutageIsDecidedByThePolicy(t *testing.T) {
	for policy, want := range map[string]counts{
		"allow": {Allowed: 20, Secondary: 20},
		"deny":  {Denied: 20, Secondary: 20},
		"local": {Allowed: 5, Denied: 15, Secondary: 20},
		"error": {Failed: 20},
	} {
		t.Run(policy, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := usual
				s.Rate, s.Policy, s.Down = 0, policy, true
				w := openWorld(t, s)
				w.burst(20)
				advance(callTimeout)
				v := w.view(t.Context())
				require.Equal(t, want, v.Totals)
				require.Contains(t, v.Unread, errDown.Error())
				require.Empty(t, v.States)
				require.Equal(t, []outage{{From: v.Now - 2}}, v.Outages)
				s.Down = false
				require.NoError(t, w.set(s))
				advance(time.Second) // until the breaker asks again
				require.Equal(t, []outage{{From: v.Now - 2, To: v.Now}}, w.view(t.Context()).Outages)
				w.burst(1)
				synctest.Wait()
				require.Equal(t, want.Allowed+1, w.view(t.Context()).Totals.Allowed)
			})
		})
	}
}

func TestCallersWaitInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := usual
		s.Rate, s.Wait = 0, true
		w := openWorld(t, s)
		w.burst(20)
		synctest.Wait()
		v := w.view(t.Context())
		// Ten are allowed at once and seven in less than the 8 s that they would wait; three leave.
		require.Equal(t, counts{Allowed: 10, Denied: 3}, v.Totals)
		require.Equal(t, 7, v.Waiting)
		advance(longestWait)
		v = w.view(t.Context())
		require.Equal(t, counts{Allowed: 17, Denied: 3}, v.Totals)
		require.Equal(t, 0, v.Waiting)
		require.Equal(t, "allowed, after a wait of 7 s", v.Lines[0].Text)
	})
}

func TestResetGivesAllPermitsBack(t *testing.T) {
	for algorithm := range limiters {
		t.Run(algorithm, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := usual
				s.Rate, s.Algorithm, s.Shared = 0, algorithm, false
				w := openWorld(t, s)
				w.burst(30)
				synctest.Wait()
				used := w.view(t.Context())
				require.Len(t, used.States, 2)
				for _, one := range used.States {
					require.Regexp(t, "^0 of ", one.Words)
				}
				w.reset(t.Context())
				fresh := w.view(t.Context())
				require.Equal(t, counts{}, fresh.Totals)
				for _, one := range fresh.States {
					require.Regexp(t, "^Nothing is used", one.Words)
					require.Regexp(t, "^no key(\nno key)?$", one.Raw)
				}
			})
		})
	}
}

// TestAGreedyCaller takes nearly all of one token bucket. With a key for each, what the others do not use is nobody's; in fair
// shares it is the greedy one's.
func TestAGreedyCaller(t *testing.T) {
	for name, test := range map[string]struct {
		algorithm     string
		limit         int
		shared        bool
		fewest, most  int  // of the greedy one, in nine seconds and a part
		othersAreDone bool // they get all that they ask for
	}{
		"one bucket": {"token-bucket", 60, true, 40, 60, false},
		"one each":   {"token-bucket", 20, false, 18, 20, true},
		"shares":     {fair, 60, true, 30, 45, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := usual
				s.Algorithm, s.Limit, s.Shared = test.algorithm, test.limit, test.shared
				s.Callers, s.Rate, s.Greedy = 3, 1, true
				w := openWorld(t, s)
				advance(60*time.Second + time.Millisecond)
				c := w.view(t.Context()).Callers
				require.Equal(t, []string{"caller 1, greedy", "caller 2", "caller 3"}, []string{c[0].Who, c[1].Who, c[2].Who})
				require.GreaterOrEqual(t, c[0].Allowed, test.fewest)
				require.LessOrEqual(t, c[0].Allowed, test.most)
				require.Equal(t, test.othersAreDone, c[1].Denied+c[2].Denied == 0)
			})
		})
	}
}

// TestAPause stops one key until its instant, and takes nothing from it.
func TestAPause(t *testing.T) {
	for _, wait := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := usual
			s.Rate, s.Shared, s.Wait = 0, false, wait
			w := openWorld(t, s)
			require.NoError(t, w.pause(t.Context(), 10*time.Second))
			w.burst(4) // two of each
			synctest.Wait()
			v := w.view(t.Context())
			require.Equal(t, counts{Allowed: 2, Denied: 2}, v.Totals)
			require.Equal(t, "Paused for another 10 s. Nothing is used: 10 of 10 permits left.", v.States[0].Words)
			require.Regexp(t, `^no key\ntest:demo:pause\{user:1\} \(string\): \d+/10000000/0/0/0/0$`, v.States[0].Raw)
			require.Regexp(t, "^8 of 10 permits left", v.States[1].Words)
			advance(10*time.Second - time.Microsecond)
			require.Regexp(t, "^Paused for another 1 µs", w.view(t.Context()).States[0].Words)
			advance(time.Microsecond)
			require.Regexp(t, "^Nothing is used", w.view(t.Context()).States[0].Words)

			require.NoError(t, w.pause(t.Context(), time.Hour))
			require.NoError(t, w.lift(t.Context()))
			w.burst(2)
			synctest.Wait()
			require.Equal(t, counts{Allowed: 4, Denied: 2}, w.view(t.Context()).Totals)
		})
	}
}

func TestSettingsAreChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := openWorld(t, usual)
		bad := settings{Algorithm: "none", Limit: 0, Window: 3601, Plan: "gold", Callers: 7, Rate: 21, Policy: "panic"}
		require.EqualError(t, w.set(bad), `the algorithm "none" is unknown
the policy "panic" is unknown
the plan "gold" is unknown
the limit is 0; it can be 1 to 1000
the window in seconds is 3601; it can be 1 to 3600
the number of callers is 7; it can be 1 to 6
the number of requests a second is 21; it can be 0 to 20`)
		require.Equal(t, usual, w.view(t.Context()).Settings)
	})
}

// TestStrangersCannotUseThePlayground: neither a page of another site, nor one whose name leads here.
func TestStrangersCannotUseThePlayground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := handler(openWorld(t, usual))
		ask := func(host, origin string) int {
			r := httptest.NewRequest(http.MethodPost, "http://"+host+"/burst", strings.NewReader(`{"n": 1}`))
			if origin != "" {
				r.Header.Set("Origin", origin)
				r.Header.Set("Sec-Fetch-Site", "cross-site")
			}
			reply := httptest.NewRecorder()
			h.ServeHTTP(reply, r)
			return reply.Code
		}
		require.Equal(t, http.StatusNoContent, ask("localhost:8070", ""))
		require.Equal(t, http.StatusNoContent, ask("127.0.0.1:8070", ""))
		require.Equal(t, http.StatusNoContent, ask("[::1]:8070", ""))
		require.Equal(t, http.StatusForbidden, ask("evil.example:8070", ""))
		require.Equal(t, http.StatusForbidden, ask("localhost:8070", "https://evil.example"))
		synctest.Wait()
	})
}
