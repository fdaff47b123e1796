package httplimit_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/httplimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// The optional methods of a ResponseWriter, each of which notes that it was called.
type noted struct{ calls *[]string }

func (n noted) note(what string) { *n.calls = append(*n.calls, what) }

type (
	canFlush  struct{ noted }
	canHijack struct{ noted }
	canRead   struct{ noted }
	canPush   struct{ noted }
)

func (n canFlush) Flush() { n.note("flush") }
func (n canHijack) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	n.note("hijack")
	return nil, nil, nil
}
func (n canRead) ReadFrom(r io.Reader) (int64, error) { n.note("read"); return io.Copy(io.Discard, r) }
func (n canPush) Push(string, *http.PushOptions) error {
	n.note("push")
	return http.ErrNotSupported
}

// TestWhatAResponseWriterCanDo: the one that counts has the optional methods that the server's has,
// and no others, for each of their 16 combinations; and with those of a wrapped one.
func TestWhatAResponseWriterCanDo(t *testing.T) {
	type rw struct{ http.ResponseWriter }
	for has := range 16 {
		var calls []string
		n := noted{&calls}
		w := rw{httptest.NewRecorder()}
		w.ResponseWriter = struct{ http.ResponseWriter }{w.ResponseWriter} // without the recorder's own
		f, h, d, p := canFlush{n}, canHijack{n}, canRead{n}, canPush{n}
		given := [16]http.ResponseWriter{
			w,
			struct {
				rw
				canFlush
			}{w, f},
			struct {
				rw
				canHijack
			}{w, h},
			struct {
				rw
				canFlush
				canHijack
			}{w, f, h},
			struct {
				rw
				canRead
			}{w, d},
			struct {
				rw
				canFlush
				canRead
			}{w, f, d},
			struct {
				rw
				canHijack
				canRead
			}{w, h, d},
			struct {
				rw
				canFlush
				canHijack
				canRead
			}{w, f, h, d},
			struct {
				rw
				canPush
			}{w, p},
			struct {
				rw
				canFlush
				canPush
			}{w, f, p},
			struct {
				rw
				canHijack
				canPush
			}{w, h, p},
			struct {
				rw
				canFlush
				canHijack
				canPush
			}{w, f, h, p},
			struct {
				rw
				canRead
				canPush
			}{w, d, p},
			struct {
				rw
				canFlush
				canRead
				canPush
			}{w, f, d, p},
			struct {
				rw
				canHijack
				canRead
				canPush
			}{w, h, d, p},
			struct {
				rw
				canFlush
				canHijack
				canRead
				canPush
			}{w, f, h, d, p},
		}[has]
		for _, wrapped := range []bool{false, true} {
			t.Run(fmt.Sprint(has, wrapped), func(t *testing.T) {
				calls = nil
				outer := given
				if wrapped {
					outer = unwrapper{given}
				}
				c := newCosting(t, limitertest.OnMiniredis(t))
				handler := c.around(func(w http.ResponseWriter, r *http.Request) {
					var want []string
					flusher, ok := w.(http.Flusher)
					require.Equal(t, has&1 != 0, ok)
					if ok {
						flusher.Flush()
						require.NoError(t, w.(interface{ FlushError() error }).FlushError())
						require.NoError(t, http.NewResponseController(w).Flush())
						want = append(want, "flush", "flush", "flush")
					} else {
						require.ErrorIs(t, http.NewResponseController(w).Flush(), http.ErrNotSupported)
					}
					from, ok := w.(io.ReaderFrom)
					require.Equal(t, has&4 != 0 && !wrapped, ok)
					if ok {
						n, err := from.ReadFrom(strings.NewReader("hello"))
						require.NoError(t, err)
						require.Equal(t, int64(5), n)
						want = append(want, "read")
					}
					pusher, ok := w.(http.Pusher)
					require.Equal(t, has&8 != 0 && !wrapped, ok)
					if ok {
						require.ErrorIs(t, pusher.Push("/a", nil), http.ErrNotSupported)
						want = append(want, "push")
					}
					hijacker, ok := w.(http.Hijacker)
					require.Equal(t, has&2 != 0, ok)
					if ok {
						_, _, err := hijacker.Hijack()
						require.NoError(t, err)
						want = append(want, "hijack")
					}
					require.Equal(t, want, calls)
					_, ok = w.(interface{ CloseNotify() <-chan bool })
					require.True(t, ok, "gin asks every ResponseWriter")
				}, byBytes)
				handler.ServeHTTP(outer, newRequest("GET", "/"))
				o := httplimit.Outcome{Estimate: 100, Reported: 100, Status: 200, Hijacked: has&2 != 0}
				if has&4 != 0 && !wrapped {
					o.Bytes = 5
				}
				if has&2 != 0 && has&1 == 0 && o.Bytes == 0 {
					o.Status = 0 // hijacked before anything was written
				}
				require.Equal(t, []httplimit.Outcome{o}, c.outcomes)
			})
		}
	}
}

type unwrapper struct{ inner http.ResponseWriter }

func (u unwrapper) Header() http.Header         { return u.inner.Header() }
func (u unwrapper) Write(b []byte) (int, error) { return u.inner.Write(b) }
func (u unwrapper) WriteHeader(status int)      { u.inner.WriteHeader(status) }
func (u unwrapper) Unwrap() http.ResponseWriter { return u.inner }

// TestCloseNotify works where the server's ResponseWriter has none: it follows the context.
func TestCloseNotify(t *testing.T) {
	c := newCosting(t, limitertest.OnMiniredis(t))
	ctx, leave := context.WithCancel(t.Context())
	h := c.around(func(w http.ResponseWriter, _ *http.Request) {
		gone := w.(interface{ CloseNotify() <-chan bool }).CloseNotify()
		select {
		case <-gone:
			t.Error("the client is still there")
		default:
		}
		leave()
		require.True(t, <-gone)
	}, byBytes)
	do(h, newRequest("GET", "/").WithContext(ctx))
}

// settledServer is a server whose handlers cost the bytes that they write.
func settledServer(t *testing.T, http2 bool, handler http.HandlerFunc) (*httptest.Server, *costing, chan httplimit.Outcome) {
	c := newCosting(t, limitertest.OnMiniredis(t))
	outcomes := make(chan httplimit.Outcome, 100)
	h := c.around(handler, func(o httplimit.Outcome) int {
		outcomes <- o
		return int(o.Bytes)
	})
	return startServer(t, h, http2), c, outcomes
}

// TestSettledOnARealServer: statuses, a second WriteHeader, informational ones, HEAD, flushing,
// deadlines, files, and a body that the handler asks for with 100-continue, over HTTP/1 and HTTP/2.
func TestSettledOnARealServer(t *testing.T) {
	hello := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }
	cases := map[string]struct {
		method  string
		body    string
		handler http.HandlerFunc
		status  int
		text    string
		outcome httplimit.Outcome
	}{
		"no WriteHeader": {handler: hello, status: 200, text: "hello", outcome: httplimit.Outcome{Status: 200, Bytes: 5}},
		"nothing at all": {handler: func(http.ResponseWriter, *http.Request) {}, status: 200, outcome: httplimit.Outcome{Status: 200}},
		"double WriteHeader": {handler: func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(404)
			w.WriteHeader(500)
			hello(w, r)
		}, status: 404, text: "hello", outcome: httplimit.Outcome{Status: 404, Bytes: 5}},
		"WriteHeader after Write": {handler: func(w http.ResponseWriter, r *http.Request) { hello(w, r); w.WriteHeader(500) }, status: 200, text: "hello", outcome: httplimit.Outcome{Status: 200, Bytes: 5}},
		"informational": {handler: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Link", "</a>; rel=preload")
			w.WriteHeader(103)
			w.WriteHeader(102)
			w.WriteHeader(201)
			hello(w, r)
		}, status: 201, text: "hello", outcome: httplimit.Outcome{Status: 201, Bytes: 5}},
		"HEAD":       {method: "HEAD", handler: hello, status: 200, outcome: httplimit.Outcome{Status: 200}},
		"no content": {handler: func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(204); hello(w, r) }, status: 204, outcome: httplimit.Outcome{Status: 204}},
		"flushed": {handler: func(w http.ResponseWriter, r *http.Request) {
			hello(w, r)
			w.(http.Flusher).Flush()
			if err := http.NewResponseController(w).Flush(); err != nil {
				panic(err)
			}
			hello(w, r)
		}, status: 200, text: "hellohello", outcome: httplimit.Outcome{Status: 200, Bytes: 10}},
		"deadlines": {handler: func(w http.ResponseWriter, r *http.Request) {
			c := http.NewResponseController(w)
			if err := c.SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
				panic(err)
			}
			if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
				panic(err)
			}
			hello(w, r)
		}, status: 200, text: "hello", outcome: httplimit.Outcome{Status: 200, Bytes: 5}},
		"copied": {handler: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.Copy(w, bytes.NewReader(make([]byte, 100_000)))
		},
			status: 200, text: string(make([]byte, 100_000)), outcome: httplimit.Outcome{Status: 200, Bytes: 100_000}},
		"a body with 100-continue": {method: "POST", body: strings.Repeat("a", 100_000), handler: func(w http.ResponseWriter, r *http.Request) {
			n, err := io.Copy(w, r.Body)
			if n != 100_000 || err != nil {
				panic(err)
			}
		}, status: 200, text: strings.Repeat("a", 100_000), outcome: httplimit.Outcome{Status: 200, Bytes: 100_000}},
		"a body that nobody reads": {method: "POST", body: strings.Repeat("a", 1<<20), handler: hello, status: 200, text: "hello", outcome: httplimit.Outcome{Status: 200, Bytes: 5}},
	}
	for _, http2 := range []bool{false, true} {
		for name, c := range cases {
			t.Run(fmt.Sprintf("%s, HTTP/2 %v", name, http2), func(t *testing.T) {
				server, costing, outcomes := settledServer(t, http2, c.handler)
				var body io.Reader
				if c.body != "" {
					body = strings.NewReader(c.body)
				}
				response, text := request(t, server, c.method, "", body)
				require.Equal(t, c.status, response.StatusCode)
				require.Equal(t, c.text, text)
				require.Equal(t, `"default";r=900;t=60`, response.Header.Get("RateLimit"))
				c.outcome.Estimate, c.outcome.Reported = 100, 100
				require.Equal(t, c.outcome, <-outcomes)
				server.Close() // waits for the handler
				require.Equal(t, int(min(c.outcome.Bytes, 1000)), costing.taken())
			})
		}
	}
}

// TestHijackedAndSettled: what a handler does to the connection itself is not counted.
func TestHijackedAndSettled(t *testing.T) {
	server, _, outcomes := settledServer(t, false, echoes)
	require.Equal(t, "echo hello\n", upgrade(t, server, "/"))
	require.Equal(t, httplimit.Outcome{Estimate: 100, Reported: 100, Hijacked: true}, <-outcomes)
}

// TestAReverseProxyBehindTheLimit: informational answers come from another goroutine, and an
// upgrade goes through.
func TestAReverseProxyBehindTheLimit(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			echoes(w, r)
			return
		}
		for range 3 {
			w.WriteHeader(103)
		}
		w.WriteHeader(201)
		_, _ = io.WriteString(w, "hello")
	}))
	t.Cleanup(backend.Close)
	target, err := url.Parse(backend.URL)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	server, _, outcomes := settledServer(t, false, proxy.ServeHTTP)
	response, text := request(t, server, "GET", "", nil)
	require.Equal(t, 201, response.StatusCode)
	require.Equal(t, "hello", text)
	require.Equal(t, httplimit.Outcome{Estimate: 100, Reported: 100, Status: 201, Bytes: 5}, <-outcomes)

	require.Equal(t, "echo hello\n", upgrade(t, server, "/"))
	require.Equal(t, httplimit.Outcome{Estimate: 100, Reported: 100, Hijacked: true}, <-outcomes)
}
