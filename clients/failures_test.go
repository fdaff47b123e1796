package clients_test

import (
	"encoding/json"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// theBucket is a call of a token bucket that nobody fills again while a test runs.
var theBucket = call{"tokenbucket", map[string]int64{"count": 1, "period": 3_600_000_000, "burst": 10}, "k", 1}

// TestClientsNeverSendACallAgain: a call whose reply is lost was made once. Its caller gets an error, and so does every later
// call of the connection, of which none is sent: a late reply would answer another call.
func TestClientsNeverSendACallAgain(t *testing.T) {
	for _, language := range languages {
		for name, failure := range map[string]struct {
			lose func(*redistest.Proxy) func()
			says string
		}{
			"the reply is late": {func(p *redistest.Proxy) func() { p.HoldReplies(); return p.Unhang }, "time"},
			"the reply is lost": {func(p *redistest.Proxy) func() { p.DropNextReply(redistest.OnScript()); return func() {} }, "ended"},
			"the reply is cut":  {func(p *redistest.Proxy) func() { p.CutReplyAfter(6, redistest.OnScript()); return func() {} }, "ended"},
		} {
			t.Run(language+", "+name, func(t *testing.T) {
				t.Parallel()
				server := redistest.Start(t)
				proxy := redistest.NewProxy(t, server.Addr())
				timeout := patience
				if failure.says == "time" {
					timeout = time.Second
				}
				o := startAt(t, language, proxy.Addr(), timeout)
				require.Equal(t, 9, o.ask(theBucket).Remaining)

				arrives := failure.lose(proxy)
				_, failed := o.try(theBucket)
				require.Contains(t, failed, failure.says)
				arrives()
				for range 2 {
					_, failed = o.try(theBucket)
					require.Contains(t, failed, "closed")
					require.Contains(t, failed, failure.says, "what has closed it")
				}
				require.Equal(t, 1, proxy.Accepted())

				bucket := ratelimit.Must(ratelimit.NewTokenBucket(server.Client(t), ratelimit.PerHour(1), 10))
				r, err := bucket.Peek(ctx, "k")
				require.NoError(t, err)
				require.Equal(t, 8, r.Remaining, "the lost call was made once, the later ones were not sent")
			})
		}
	}
}

// TestClientsSendAScriptThatTheServerHasNot: after SCRIPT FLUSH, and after a restart.
func TestClientsSendAScriptThatTheServerHasNot(t *testing.T) {
	for _, language := range languages {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			admin := server.Client(t)
			o := startAt(t, language, server.Addr(), patience)
			for left := 9; left > 6; left-- {
				require.Equal(t, left, o.ask(theBucket).Remaining)
				require.NoError(t, admin.ScriptFlush(ctx).Err())
			}
		})
	}
}

// TestClientsOfAnotherServerSayWhatItReplied: one that does not speak Redis's protocol.
func TestClientsOfAnotherServerSayWhatItReplied(t *testing.T) {
	for _, language := range languages {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer func() { _ = listener.Close() }()
			go func() {
				for {
					c, err := listener.Accept()
					if err != nil {
						return
					}
					_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
				}
			}()
			o := startAt(t, language, listener.Addr().String(), patience)
			for range 2 {
				_, failed := o.try(theBucket)
				require.Contains(t, failed, "HTTP/1.1 400 Bad Request")
			}
		})
	}
}

// TestErrorsOfClientsSayTheCause: errors of the server are its own, and the connection goes on.
func TestErrorsOfClientsSayTheCause(t *testing.T) {
	for _, language := range languages {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			admin := server.Client(t)
			o := startAt(t, language, server.Addr(), patience)
			const key = "ratelimit:default:tokenbucket{k}"

			require.NoError(t, admin.LPush(ctx, key, "x").Err())
			_, failed := o.try(theBucket)
			require.Contains(t, failed, "WRONGTYPE")

			require.NoError(t, admin.Set(ctx, key, "x", time.Hour).Err())
			_, failed = o.try(theBucket)
			require.Contains(t, failed, "CORRUPT no state of a bucket")

			require.NoError(t, admin.Del(ctx, key).Err())
			require.Equal(t, 9, o.ask(theBucket).Remaining)

			for _, mistake := range []call{
				{theBucket.Algorithm, theBucket.Rule, "", 1},
				{theBucket.Algorithm, theBucket.Rule, "k", 11},
				{"slidingwindow-list", map[string]int64{"limit": 3, "window": 1_000_000, "sub_windows": 7}, "k", 1},
			} {
				_, failed = o.try(mistake)
				require.Regexp(t, "^(ValueError|RangeError): ", failed)
			}
			// The scripts take whatever they are given: half a permit was taken, and a window of 0 allowed everything.
			for _, mistake := range []string{
				`{"algorithm": "tokenbucket", "rule": {"count": 1, "period": 1, "burst": 10}, "key": "k", "n": 1.5}`,
				`{"algorithm": "tokenbucket", "rule": {"count": 0, "period": 1, "burst": 10}, "key": "k", "n": 1}`,
				`{"algorithm": "tokenbucket", "rule": {"count": 0.5, "period": 1, "burst": 10}, "key": "k", "n": 1}`,
				`{"algorithm": "tokenbucket", "rule": {"count": 1, "period": -1, "burst": 10}, "key": "k", "n": 1}`,
				`{"algorithm": "tokenbucket", "rule": {"count": 1, "period": 1, "burst": 1000000000001}, "key": "k", "n": 1}`,
				`{"algorithm": "tokenbucket", "rule": {"count": 1, "period": 1, "burst": 10, "every": -1}, "key": "k", "n": 1}`,
				`{"algorithm": "slidingwindow-list", "rule": {"limit": 3, "window": 0}, "key": "k", "n": 1}`,
				`{"algorithm": "slidingwindow-list", "rule": {"limit": 2.5, "window": 1000000}, "key": "k", "n": 1}`,
				`{"algorithm": "slidingwindow-list", "rule": {"limit": 3, "window": 1000000, "sub_windows": 0}, "key": "k", "n": 1}`,
				`{"algorithm": "slidingwindow-list", "rule": {"limit": 3, "window": 2251799813685249, "sub_windows": 1}, "key": "k", "n": 1}`,
			} {
				_, failed = o.try(json.RawMessage(mistake))
				require.Regexp(t, "^(ValueError|RangeError): .*whole number", failed, mistake)
			}
			require.Equal(t, 8, o.ask(theBucket).Remaining, "nobody was asked")

			server.Kill()
			_, failed = o.try(theBucket)
			require.Regexp(t, "ended|reset", failed)
		})
	}
}
