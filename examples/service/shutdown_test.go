package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// TestShutdown: after a SIGTERM no connection is accepted, a request under way finishes, and the mail that was accepted is sent.
func TestShutdown(t *testing.T) {
	server := redistest.Start(t)
	p := start(t, server.Addr())
	for n := range 3 {
		eventually(t, "an invitation", func() bool {
			return p.must(t, call{path: "/invite", apiKey: "secret-1", form: fmt.Sprint("to=guest-", n)}).status == 202
		})
	}
	redisClient := server.Client(t)
	held := func() int64 { return redisClient.ZCard(t.Context(), "ratelimit:running:inflight{user:acme}").Val() }
	var connection net.Conn
	send := func(text string) {
		_, err := io.WriteString(connection, text)
		require.NoError(t, err)
	}
	eventually(t, "a request holds its permit on Redis, and waits for its body", func() (ok bool) {
		var err error
		connection, err = net.Dial("tcp", p.customers)
		require.NoError(t, err)
		send("POST /chat HTTP/1.1\r\nHost: localhost\r\nX-API-Key: secret-1\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 10\r\n\r\n")
		time.Sleep(100 * time.Millisecond)
		if held() == 1 {
			return true
		}
		_ = connection.Close() // it missed its budget, and what Redis took is given back
		return false
	})
	defer func() { _ = connection.Close() }()

	p.stop(t)
	eventually(t, "no connection is accepted", func() bool {
		late, err := net.Dial("tcp", p.customers)
		if err == nil {
			_ = late.Close()
		}
		return err != nil
	})
	send("prompt=why")
	got, err := http.ReadResponse(bufio.NewReader(connection), nil)
	require.NoError(t, err)
	body, err := io.ReadAll(got.Body)
	require.NoError(t, err)
	require.Equal(t, 200, got.StatusCode)
	require.Equal(t, "You said: why\n", string(body))
	<-p.ended
	require.Equal(t, 0, p.cmd.ProcessState.ExitCode(), p.log())
	for n := range 3 {
		require.Contains(t, p.log(), fmt.Sprint("an invitation to=guest-", n))
	}
	require.Zero(t, held(), "its permit is given back")
}

// TestTheFirstRequestsNeedNoScripts: they would otherwise be over their budget, and be denied because memory begins empty.
func TestTheFirstRequestsNeedNoScripts(t *testing.T) {
	server := redistest.Start(t)
	p, w := start(t, server.Addr()), &world{}
	redisClient := server.Client(t)
	before := redistest.WholeScripts(t, redisClient)
	require.Positive(t, before)
	for _, question := range []func() call{w.invite, w.chat, w.login, w.stranger} {
		w.decided(t, p, question)
	}
	p.await(t, "an invitation")
	require.Equal(t, before, redistest.WholeScripts(t, redisClient))
}

// TestALogOfDenials: one line for a limit and a key, the fallback and the breaker; and neither keys nor names.
func TestALogOfDenials(t *testing.T) {
	server := redistest.Start(t)
	p := start(t, server.Addr())
	login := call{path: "/login", from: "192.0.2.7", form: "user=eve&password=x"}
	eventually(t, "a denial", func() bool { return p.must(t, login).status == 429 })
	p.must(t, login)
	p.await(t, "WARN rate limit exceeded limiter=login-user source=redis n=1 limit=5 window=15m0s")
	require.Equal(t, 1, strings.Count(p.log(), "limiter=login-user source=redis"))

	server.Kill()
	eventually(t, "an open breaker", func() bool { return p.must(t, login).status == 503 && strings.Contains(p.log(), "to=open") })
	p.await(t, "WARN rate limiter uses its fallback limiter=login-address error.type=") // it denies, so that of the user is not asked
	p.await(t, "WARN circuit breaker changed limiter=redis from=closed to=open")
	for _, private := range []string{"192.0.2.7", "eve"} {
		require.NotContains(t, p.log(), private)
	}
	require.Contains(t, p.must(t, call{method: "GET", path: "/top", admin: true}).body, "192.0.2.7", "which is for admins")
}

func TestTrustedProxies(t *testing.T) {
	for list, want := range map[string][]netip.Prefix{
		"":                          nil,
		"10.0.0.0/8, 2001:db8::/32": {netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")},
		"10.0.0.0/8 127.0.0.1/32":   {netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("127.0.0.1/32")},
	} {
		got, err := trustedProxies(list)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := trustedProxies("10.0.0.1")
	require.ErrorContains(t, err, "TRUSTED_PROXIES")
	require.ErrorContains(t, err, "give networks such as 10.0.0.0/8")
}

// TestWrongSettings end the program before it serves.
func TestWrongSettings(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	for _, test := range []struct{ name, value, want string }{
		{"TRUSTED_PROXIES", "proxy", `TRUSTED_PROXIES: netip.ParsePrefix("proxy"): no '/'; give networks such as 10.0.0.0/8`},
		{"INSTANCES", "0", `INSTANCES: "0" is no number of instances; give one such as 3`},
		{"INSTANCES", "three", `INSTANCES: "three" is no number of instances; give one such as 3`},
		{"ADDR", taken.Addr().String(), "address already in use"},
	} {
		for name, value := range map[string]string{"ADDR": "127.0.0.1:0", "ADMIN_ADDR": "127.0.0.1:0", test.name: test.value} {
			t.Setenv(name, value)
		}
		require.ErrorContains(t, run(t.Context()), test.want)
		t.Setenv(test.name, "")
	}
}
