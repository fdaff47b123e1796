package httplimit_test

import (
	"bufio"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

func newRequest(method, target string) *http.Request {
	r := httptest.NewRequest(method, target, nil)
	r.RemoteAddr = "192.0.2.1:1234"
	return r
}

// served answers 204, so that a test can tell.
var served = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })

func serve(t testing.TB, limiter ratelimit.Limiter, r *http.Request, opts ...httplimit.Option) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	limit(t, limiter, opts...)(served).ServeHTTP(w, r)
	return w
}

// limit limits by address.
func limit(t testing.TB, limiter ratelimit.Limiter, opts ...httplimit.Option) func(http.Handler) http.Handler {
	t.Helper()
	wrap, err := httplimit.New(limiter, clientIP(t, nil), opts...)
	require.NoError(t, err)
	return wrap
}

const quotaExceeded = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
	`"title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"violated-policies":["api"]}`

func TestARealLimiterThroughTheMiddleware(t *testing.T) {
	stage := limitertest.OnMiniredis(t)
	bucket, err := ratelimit.NewTokenBucket(stage.Client, ratelimit.PerSecond(1), 2, ratelimit.WithName("api"))
	require.NoError(t, err)
	handler := limit(t, bucket, httplimit.WithPolicy("api"))(served)
	ask := func(peer string) *httptest.ResponseRecorder {
		r, w := newRequest("GET", "/"), httptest.NewRecorder()
		r.RemoteAddr = peer
		handler.ServeHTTP(w, r)
		return w
	}
	fields := func(more ...string) http.Header {
		h := http.Header{"Ratelimit-Policy": {`"api";q=2;w=2`}, "Ratelimit": {more[0]}}
		for i := 1; i < len(more); i += 2 {
			h.Set(more[i], more[i+1])
		}
		return h
	}

	w := ask("192.0.2.1:1")
	require.Equal(t, 204, w.Code)
	require.Equal(t, fields(`"api";r=1;t=1`), w.Header())
	w = ask("192.0.2.1:2")
	require.Equal(t, 204, w.Code)
	require.Equal(t, fields(`"api";r=0;t=1`), w.Header())
	w = ask("[::ffff:192.0.2.1]:3")
	require.Equal(t, 429, w.Code)
	require.Equal(t, fields(`"api";r=0;t=1`, "Retry-After", "1", "Content-Type", "application/problem+json",
		"Cache-Control", "no-store", "X-Content-Type-Options", "nosniff"), w.Header())
	require.Equal(t, quotaExceeded, w.Body.String())

	require.Equal(t, 204, ask("192.0.2.2:1").Code, "another client")
	keys, err := stage.Admin.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"ratelimit:api:tokenbucket{ip:192.0.2.1}", "ratelimit:api:tokenbucket{ip:192.0.2.2}"}, keys)
}

// TestOutages: an error is 503, and so is a closed policy; an open one lets requests through.
func TestOutages(t *testing.T) {
	primary := &limitertest.Stub{Err: errors.New("dial tcp 10.1.2.3:6379: secret")}
	for name, c := range map[string]struct {
		secondary ratelimit.Limiter
		code      int
		wait      string
	}{
		"none":   {nil, 503, ""},
		"closed": {ratelimit.DenyAll(), 503, "1"},
		"open":   {ratelimit.AllowAll(), 204, ""},
	} {
		var limiter ratelimit.Limiter = primary
		if c.secondary != nil {
			var err error
			limiter, err = ratelimit.NewFallback(primary, c.secondary)
			require.NoError(t, err)
		}
		w := serve(t, limiter, newRequest("GET", "/"))
		require.Equal(t, c.code, w.Code, name)
		require.Equal(t, c.wait, w.Header().Get("Retry-After"), name)
		require.Empty(t, w.Header().Values("RateLimit"), name)
		require.Empty(t, w.Header().Values("RateLimit-Policy"), name)
		if c.code == 503 {
			require.Equal(t, `{"title":"Service Unavailable","status":503}`, w.Body.String(), name)
		}
	}
	closed := ratelimit.Must(ratelimit.NewFallback(primary, ratelimit.DenyAll()))
	later := httplimit.WithOutageRetryAfter(5*time.Second + 1)
	for name, c := range map[string]struct {
		limiter ratelimit.Limiter
		opts    []httplimit.Option
		code    int
		wait    string
	}{
		"later":                 {primary, []httplimit.Option{later}, 503, "6"},
		"closed has its own":    {closed, []httplimit.Option{later}, 503, "1"},
		"served":                {primary, []httplimit.Option{later, httplimit.WithErrorHandler(httplimit.ServeInOutages)}, 204, ""},
		"no outage":             {&limitertest.Stub{Err: ratelimit.ErrExceedsLimit}, []httplimit.Option{later}, 400, ""},
		"a key that is damaged": {&limitertest.Stub{Err: ratelimit.ErrCorruptState}, []httplimit.Option{later}, 500, ""},
		"logged": {primary, []httplimit.Option{later, httplimit.WithErrorHandler(func(w http.ResponseWriter, r *http.Request, err error, next http.Handler) {
			require.ErrorIs(t, err, primary.Err)
			require.Equal(t, primary.Err.Error(), err.Error())
			httplimit.DefaultErrorHandler(w, r, fmt.Errorf("logged: %w", err), next)
		})}, 503, "6"},
	} {
		w := serve(t, c.limiter, newRequest("GET", "/"), c.opts...)
		require.Equal(t, c.code, w.Code, name)
		require.Equal(t, c.wait, w.Header().Get("Retry-After"), name)
		require.Empty(t, w.Header().Values("Access-Control-Expose-Headers"), name)
	}
	browser := newRequest("GET", "/")
	browser.Header.Set("Origin", "https://example.com")
	w := serve(t, primary, browser, later)
	require.Equal(t, []string{"Retry-After"}, w.Header().Values("Access-Control-Expose-Headers"))

	w = serve(t, ratelimit.DenyAll(), newRequest("GET", "/"), httplimit.WithPolicy("api"))
	require.Equal(t, 429, w.Code, "a client that is blocked, and no outage")
	require.Equal(t, quotaExceeded, w.Body.String())
}

func TestErrorsHaveAStatusAndNoText(t *testing.T) {
	for err, code := range map[error]int{
		httplimit.ErrNoKey: 400, httplimit.ErrBadKey: 400, ratelimit.ErrExceedsLimit: 400,
		ratelimit.ErrInvalidConfig: 500, ratelimit.ErrInvalidKey: 500, ratelimit.ErrInvalidPermits: 500, ratelimit.ErrCrossSlot: 500,
		ratelimit.ErrCorruptState: 500, ratelimit.ErrDenied: 429, context.Canceled: 503, errors.New("dial"): 503,
	} {
		wrapped := fmt.Errorf("secret: %w", err)
		want := fmt.Sprintf(`{"title":%q,"status":%d}`, http.StatusText(code), code)
		w := serve(t, &limitertest.Stub{Err: wrapped}, newRequest("GET", "/"))
		require.Equal(t, code, w.Code, err)
		require.Equal(t, want, w.Body.String())

		// The same from the key function; the limiter is then not asked.
		limiter := limitertest.Allowing()
		wrap, fault := httplimit.New(limiter, constantKey("", wrapped))
		require.NoError(t, fault)
		w = httptest.NewRecorder()
		wrap(served).ServeHTTP(w, newRequest("GET", "/"))
		require.Equal(t, code, w.Code, err)
		require.Equal(t, want, w.Body.String())
		require.Empty(t, limiter.Asked())
	}
	wrap, err := httplimit.New(&limitertest.Stub{Result: allowed(1, 1, 1, 1)}, constantKey("", nil))
	require.NoError(t, err)
	w := httptest.NewRecorder()
	wrap(served).ServeHTTP(w, newRequest("GET", "/"))
	require.Equal(t, 500, w.Code, "an empty key")
	w = httptest.NewRecorder()
	wrap(nil).ServeHTTP(w, newRequest("GET", "/"))
	require.Equal(t, 500, w.Code, "no handler")
}

func TestHandlersOfOnesOwn(t *testing.T) {
	var got httplimit.Decision
	result := denied(5, 5*time.Second, 0, 1500*time.Millisecond, 5*time.Second)
	w := serve(t, &limitertest.Stub{Result: result}, newRequest("GET", "/"), httplimit.WithPolicy("api"),
		httplimit.WithDenialHandler(func(w http.ResponseWriter, _ *http.Request, d httplimit.Decision) {
			got = d
			w.WriteHeader(http.StatusTeapot)
		}))
	require.Equal(t, http.StatusTeapot, w.Code)
	require.Equal(t, http.Header{"Cache-Control": {"no-store"}, "Ratelimit-Policy": {`"api";q=5;w=5`}, "Ratelimit": {`"api";r=0;t=2`}, "Retry-After": {"2"}}, w.Header())
	require.Equal(t, httplimit.Decision{Policy: "api", Result: result}, got)
	require.Equal(t, 2, got.RetryAfter())
	require.Equal(t, 2, got.EffectiveWindow())

	failure := errors.New("down")
	w = serve(t, &limitertest.Stub{Err: failure}, newRequest("GET", "/"),
		httplimit.WithErrorHandler(func(w http.ResponseWriter, r *http.Request, err error, next http.Handler) {
			require.Equal(t, failure, err)
			w.Header().Set("Unlimited", "1")
			next.ServeHTTP(w, r)
		}))
	require.Equal(t, 204, w.Code)
	require.Equal(t, http.Header{"Unlimited": {"1"}}, w.Header())
}

func TestCostAndSkip(t *testing.T) {
	limiter := limitertest.Allowing()
	for cost, want := range map[int][]string{0: nil, 1: {"ip:192.0.2.1 1"}, 7: {"ip:192.0.2.1 7"}, -1: {"ip:192.0.2.1 -1"}} {
		w := serve(t, limiter, newRequest("GET", "/"), httplimit.WithCost(func(*http.Request) int { return cost }))
		require.Equal(t, 204, w.Code)
		require.Equal(t, want, limiter.Asked())
		require.Equal(t, cost != 0, w.Header().Get("RateLimit") != "")
	}
	w := serve(t, ratelimit.AllowAll(), newRequest("GET", "/"), httplimit.WithCost(func(*http.Request) int { return -1 }))
	require.Equal(t, 500, w.Code)

	skip := httplimit.WithSkip(func(r *http.Request) bool { return r.URL.Path == "/healthz" })
	w = serve(t, limiter, newRequest("GET", "/healthz"), skip)
	require.Equal(t, 204, w.Code)
	require.Empty(t, w.Header())
	require.Empty(t, limiter.Asked())
	serve(t, limiter, newRequest("GET", "/healthz/"), skip)
	require.Equal(t, []string{"ip:192.0.2.1 1"}, limiter.Asked())
}

// TestPreflightsAreLimited: a CORS preflight takes a permit like every other request, because any
// client can dress its request as one, and a pattern without a method serves OPTIONS too.
func TestPreflightsAreLimited(t *testing.T) {
	server := limitertest.OnMiniredis(t)
	bucket := ratelimit.Must(ratelimit.NewTokenBucket(server.Client, ratelimit.Per(1, time.Hour), 1, ratelimit.WithName("api")))
	body := strings.Repeat("a", 1<<10)
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
	limited := limit(t, bucket)(mux)
	ran := 0
	for range 100 {
		if w := do(limited, newPreflight()); w.Code == 200 {
			ran++
			require.Equal(t, body, w.Body.String())
		} else {
			require.Equal(t, 429, w.Code)
			require.Equal(t, quotaExceeded, w.Body.String())
			require.Equal(t, "3600", w.Header().Get("Retry-After"))
		}
	}
	require.Equal(t, 1, ran)
	require.Equal(t, 0, peek(t, bucket, "ip:192.0.2.1").Remaining)
}

// TestPreflightsAreFreeWhereCORSIsOutside: the CORS handler answers them itself, so that neither the
// limit nor the handler's work is reached.
func TestPreflightsAreFreeWhereCORSIsOutside(t *testing.T) {
	limiter := limitertest.Denying(5, time.Second, time.Second)
	h := cors(limit(t, limiter, httplimit.WithPolicy("api"))(served))
	w := do(h, newPreflight())
	require.Equal(t, 204, w.Code)
	require.Equal(t, http.Header{
		"Access-Control-Allow-Origin": {"https://example.com"}, "Access-Control-Allow-Methods": {"GET, POST"},
		"Access-Control-Max-Age": {"600"}, "Vary": {"Origin"},
	}, w.Header())
	require.Empty(t, limiter.Asked())

	r := newRequest("POST", "/")
	r.Header.Set("Origin", "https://example.com")
	w = do(h, r)
	require.Equal(t, 429, w.Code)
	require.Equal(t, []string{"ip:192.0.2.1 1"}, limiter.Asked())
	require.Equal(t, "https://example.com", w.Header().Get("Access-Control-Allow-Origin"))
	require.Equal(t, "Ratelimit, Ratelimit-Policy, Retry-After", w.Header().Get("Access-Control-Expose-Headers"))
}

// newPreflight is what a browser sends on its own before a POST to another origin.
func newPreflight() *http.Request {
	r := newRequest("OPTIONS", "/")
	r.Header.Set("Origin", "https://example.com")
	r.Header.Set("Access-Control-Request-Method", "POST")
	return r
}

// cors is a CORS handler as docs/http.md describes it.
func cors(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Add("Vary", "Origin")
		if r.Header.Get("Origin") == "https://example.com" {
			h.Set("Access-Control-Allow-Origin", "https://example.com")
		}
		if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
			h.Set("Access-Control-Allow-Methods", "GET, POST")
			h.Set("Access-Control-Max-Age", "600")
			w.WriteHeader(http.StatusNoContent) // answered here: no permit, and no work
			return
		}
		next.ServeHTTP(w, r)
	})
}

// TestNestedLimits: each adds its policy, and the body names the one that denied.
func TestNestedLimits(t *testing.T) {
	outer := limit(t, &limitertest.Stub{Result: allowed(100, time.Hour, 99, time.Hour)}, httplimit.WithPolicy("hour"))
	inner := limit(t, &limitertest.Stub{Result: denied(5, time.Second, 0, time.Second, time.Second)}, httplimit.WithPolicy("api"))
	w := httptest.NewRecorder()
	outer(inner(served)).ServeHTTP(w, newRequest("GET", "/"))
	require.Equal(t, 429, w.Code)
	require.Equal(t, quotaExceeded, w.Body.String())
	require.Equal(t, []string{`"hour";q=100;w=3600`, `"api";q=5;w=1`}, w.Header().Values("RateLimit-Policy"))
	require.Equal(t, []string{`"hour";r=99;t=3600`, `"api";r=0;t=1`}, w.Header().Values("RateLimit"))
	for _, field := range []string{"RateLimit", "RateLimit-Policy"} {
		items, err := parseStructured(strings.Join(w.Header().Values(field), ", "))
		require.NoError(t, err)
		require.Len(t, items, 2)
	}
}

func TestADenialKeepsNoHeaderOfTheAnswerThatIsNot(t *testing.T) {
	denying, failing := &limitertest.Stub{Result: denied(5, time.Second, 0, 1, 1)}, &limitertest.Stub{Err: errors.New("down")}
	answer := func(stub *limitertest.Stub, opts ...httplimit.Option) http.Header {
		w := httptest.NewRecorder()
		for _, name := range []string{
			"Content-Length", "ETag", "Last-Modified", "Expires", "X-Accel-Expires", "Edge-Control", "Surrogate-Control",
			"CDN-Cache-Control", "Cloudflare-CDN-Cache-Control", "Cache-Control", "X-Request-Id",
		} {
			w.Header()[textproto.CanonicalMIMEHeaderKey(name)] = []string{"max-age=60", "1"}
		}
		limit(t, stub, append(opts, httplimit.WithFields())...)(served).ServeHTTP(w, newRequest("GET", "/"))
		return w.Header()
	}
	want := func(more ...string) http.Header {
		h := http.Header{"Cache-Control": {"no-store"}, "X-Request-Id": {"max-age=60", "1"}}
		for i := 0; i < len(more); i += 2 {
			h.Set(more[i], more[i+1])
		}
		return h
	}
	ours := []string{"Content-Type", "application/problem+json", "X-Content-Type-Options", "nosniff"}
	require.Equal(t, want(append(ours, "Retry-After", "1")...), answer(denying))
	require.Equal(t, want(ours...), answer(failing))
	own := httplimit.WithDenialHandler(func(w http.ResponseWriter, _ *http.Request, _ httplimit.Decision) { w.WriteHeader(503) })
	require.Equal(t, want("Retry-After", "1"), answer(denying, own))
	require.Len(t, answer(&limitertest.Stub{Result: allowed(5, time.Second, 4, 1)}), 11, "the handler's answer keeps all")
	require.Len(t, answer(failing, httplimit.WithErrorHandler(httplimit.ServeInOutages)), 11)
}

// TestADenialInsideCompression: a middleware that sets Content-Encoding before it knows the answer
// compresses what the limit writes too, so the header must stay.
func TestADenialInsideCompression(t *testing.T) {
	denying := limit(t, &limitertest.Stub{Result: denied(5, time.Second, 0, time.Second, time.Second)}, httplimit.WithPolicy("api"))
	failing := limit(t, &limitertest.Stub{Err: errors.New("down")})
	mux := http.NewServeMux()
	mux.Handle("/denied", compress(denying(served)))
	mux.Handle("/failed", compress(failing(served)))
	server := startServer(t, mux, false)
	for path, want := range map[string]struct {
		status int
		body   string
	}{
		"/denied": {429, quotaExceeded},
		"/failed": {503, `{"title":"Service Unavailable","status":503}`},
	} {
		response, text := request(t, server, "GET", path, nil) // the transport asks for gzip, and undoes it
		require.Equal(t, want.status, response.StatusCode)
		require.True(t, response.Uncompressed, path)
		require.Equal(t, want.body, text)
		require.Equal(t, "application/problem+json", response.Header.Get("Content-Type"))
		require.Equal(t, "no-store", response.Header.Get("Cache-Control"))
	}
}

// compress sets the header first, as many middlewares do.
func compress(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Vary", "Accept-Encoding")
		z := gzip.NewWriter(w)
		defer z.Close()
		next.ServeHTTP(compressed{w, z}, r)
	})
}

type compressed struct {
	http.ResponseWriter
	z *gzip.Writer
}

func (c compressed) Write(b []byte) (int, error) { return c.z.Write(b) }

func TestTheResponseWriterIsNotWrapped(t *testing.T) {
	w := httptest.NewRecorder()
	same := false
	handler := http.HandlerFunc(func(got http.ResponseWriter, _ *http.Request) { same = got == http.ResponseWriter(w) })
	limit(t, &limitertest.Stub{Result: allowed(5, time.Second, 4, 1)})(handler).ServeHTTP(w, newRequest("GET", "/"))
	require.True(t, same)
}

// TestOnARealServer: HEAD, flushing, hijacking, deadlines, a body that nobody waits for, and
// HTTP/2.
func TestOnARealServer(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/flush", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "first\n")
		if err := http.NewResponseController(w).Flush(); err != nil {
			panic(err)
		}
		_, _ = io.WriteString(w, "second\n")
	})
	mux.HandleFunc("/deadline", func(w http.ResponseWriter, _ *http.Request) {
		if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
			panic(err)
		}
	})
	mux.HandleFunc("/hijack", echoes)
	closed := limit(t, &limitertest.Stub{Result: denied(5, time.Second, 0, time.Second, time.Second)}, httplimit.WithPolicy("api"))
	outer := http.NewServeMux()
	outer.Handle("/", limit(t, &limitertest.Stub{Result: allowed(5, time.Second, 4, time.Second)})(mux))
	outer.Handle("/denied", closed(served))

	for _, http2 := range []bool{false, true} {
		server := startServer(t, outer, http2)
		do := func(method, path string, body io.Reader) (*http.Response, string) {
			return request(t, server, method, path, body)
		}
		response, text := do("GET", "/flush", nil)
		require.Equal(t, 200, response.StatusCode)
		require.Equal(t, "first\nsecond\n", text)
		require.Equal(t, `"default";r=4;t=1`, response.Header.Get("RateLimit"))
		response, _ = do("GET", "/deadline", nil)
		require.Equal(t, 200, response.StatusCode)
		response, text = do("HEAD", "/denied", nil)
		require.Equal(t, 429, response.StatusCode)
		require.Equal(t, int64(len(quotaExceeded)), response.ContentLength)
		require.Empty(t, text)
		body := strings.NewReader(strings.Repeat("a", 1<<20))
		response, text = do("POST", "/denied", body)
		require.Equal(t, 429, response.StatusCode)
		require.Equal(t, quotaExceeded, text)
		require.Equal(t, 1<<20, body.Len(), "nobody has asked for the body")
	}

	server := httptest.NewServer(outer)
	t.Cleanup(server.Close)
	require.Equal(t, "echo hello\n", upgrade(t, server, "/hijack"))
}

// startServer starts a server whose client sends a body only when it is asked to. One that sends it
// all the same can find the connection closed before it has read the answer.
func startServer(t testing.TB, h http.Handler, http2 bool) *httptest.Server {
	server := httptest.NewUnstartedServer(h)
	server.EnableHTTP2 = http2
	server.Config.ErrorLog = log.New(t.Output(), "", 0) // some handlers make mistakes
	server.StartTLS()
	t.Cleanup(server.Close)
	server.Client().Transport.(*http.Transport).ExpectContinueTimeout = time.Hour
	return server
}

// request asks a server, and returns its answer and the text of it.
func request(t testing.TB, server *httptest.Server, method, path string, body io.Reader) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, body)
	require.NoError(t, err)
	if body != nil {
		r.Header.Set("Expect", "100-continue")
	}
	response, err := server.Client().Do(r)
	require.NoError(t, err)
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, server.EnableHTTP2, response.ProtoMajor == 2)
	return response, string(text)
}

// echoes takes over the connection, and speaks another protocol: it says what it hears.
func echoes(w http.ResponseWriter, _ *http.Request) {
	conn, rw, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	_ = rw.Flush()
	line, _ := rw.ReadString('\n')
	_, _ = rw.WriteString("echo " + line)
	_ = rw.Flush()
}

// upgrade asks for another protocol, says hello in it, and returns what the server says.
func upgrade(t testing.TB, server *httptest.Server, path string) string {
	t.Helper()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	if server.TLS != nil {
		conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
	}
	defer conn.Close()
	_, err = io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	require.NoError(t, err)
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	require.NoError(t, err)
	require.Equal(t, 101, response.StatusCode)
	_, err = io.WriteString(conn, "hello\n")
	require.NoError(t, err)
	line, err := reader.ReadString('\n')
	require.NoError(t, err)
	return line
}

// TestConcurrentRequests: one middleware serves many requests at once, and exactly the limit of
// them.
func TestConcurrentRequests(t *testing.T) {
	stage := limitertest.OnMiniredis(t)
	window, err := ratelimit.NewFixedWindow(stage.Client, 20, time.Minute, ratelimit.WithName("api"))
	require.NoError(t, err)
	handler := limit(t, window, httplimit.WithFields(httplimit.Draft11(), httplimit.XRateLimit()))(served)
	var group sync.WaitGroup
	var through, stopped atomic.Int32
	for range 50 {
		group.Add(1)
		go func() {
			defer group.Done()
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, newRequest("GET", "/"))
			switch w.Code {
			case 204:
				through.Add(1)
			case 429:
				stopped.Add(1)
			}
		}()
	}
	group.Wait()
	require.Equal(t, int32(20), through.Load())
	require.Equal(t, int32(30), stopped.Load())
}

func TestPatternInsideTheMux(t *testing.T) {
	limiter := limitertest.Allowing()
	wrap, err := httplimit.New(limiter, httplimit.Pattern())
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.Handle("GET /users/{id}", wrap(served))
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, newRequest("GET", "/users/42"))
	require.Equal(t, 204, w.Code)
	require.Equal(t, []string{"route:GET /users/%7Bid%7D 1"}, limiter.Asked())

	w = httptest.NewRecorder()
	wrap(mux).ServeHTTP(w, newRequest("GET", "/users/42"))
	require.Equal(t, 500, w.Code, "outside of the mux there is no pattern")
}

func TestNewKnowsBuckets(t *testing.T) {
	client := limitertest.OnMiniredis(t).Client
	for want, limiter := range map[string]ratelimit.Limiter{
		`"default";r=9;t=54`: ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerMinute(10), 10)),
		`"default";r=9;t=45`: ratelimit.Must(ratelimit.NewLeakyBucket(client, ratelimit.PerMinute(12), 10)),
		`"default";r=9;t=27`: ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerMinute(20), 10)),
		`"default";r=9;t=60`: ratelimit.Must(ratelimit.NewFixedWindow(client, 10, time.Minute)),
	} {
		require.Equal(t, want, serve(t, limiter, newRequest("GET", "/")).Header().Get("RateLimit"))
	}
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	key := clientIP(t, nil)
	one := ratelimit.AllowAll()
	for message, build := range map[string]func() (func(http.Handler) http.Handler, error){
		"the limiter is nil":      func() (func(http.Handler) http.Handler, error) { return httplimit.New(nil, key) },
		"the key function is nil": func() (func(http.Handler) http.Handler, error) { return httplimit.New(one, nil) },
		"option 1 is empty":       func() (func(http.Handler) http.Handler, error) { return httplimit.New(one, key, httplimit.Option{}) },
		"WithBucket is given twice": func() (func(http.Handler) http.Handler, error) {
			return httplimit.New(one, key, httplimit.WithBucket(), httplimit.WithBucket())
		},
	} {
		wrap, err := build()
		require.Nil(t, wrap)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, message)
	}
	for message, option := range map[string]httplimit.Option{
		"WithPolicy: a name of 0 bytes":          httplimit.WithPolicy(""),
		"WithPolicy: a name of 129 bytes":        httplimit.WithPolicy(strings.Repeat("a", 129)),
		`WithPolicy: "é" holds`:                  httplimit.WithPolicy("é"),
		`WithPolicy: "a\n" holds`:                httplimit.WithPolicy("a\n"),
		`WithPolicy: "\u007f" holds`:             httplimit.WithPolicy("\x7f"),
		"WithFields: fields 2 are empty":         httplimit.WithFields(httplimit.Draft11(), httplimit.Fields{}),
		"WithCost: the function is nil":          httplimit.WithCost(nil),
		"WithSkip: the function is nil":          httplimit.WithSkip(nil),
		"WithDenialHandler: the function is nil": httplimit.WithDenialHandler(nil),
		"WithErrorHandler: the function is nil":  httplimit.WithErrorHandler(nil),
		"WithOutageRetryAfter: 0s is not":        httplimit.WithOutageRetryAfter(0),
		"WithRetrySpread: 0s is not":             httplimit.WithRetrySpread(0),
	} {
		_, err := httplimit.New(one, key, option)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, strings.ReplaceAll(message, `\u007f`, `\x7f`))
	}
	limit(t, one, httplimit.WithPolicy(strings.Repeat("a", 128)))
	limit(t, one, httplimit.WithPolicy(" ~"))
}

// TestRetrySpread: the Retry-After of denials is spread, by one limit and by several.
func TestRetrySpread(t *testing.T) {
	denied := &limitertest.Stub{Result: ratelimit.Result{Limit: 1, Window: time.Second, RetryAfter: 10 * time.Second, ResetAfter: 10 * time.Second}}
	s := limitertest.OnMiniredis(t) // whose clock stands still
	usedUp := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.Per(1, 10*time.Second), 1))
	for name, handler := range map[string]http.Handler{
		"one":     limit(t, denied, httplimit.WithRetrySpread(5*time.Second))(served),
		"several": ratelimit.Must(httplimit.NewAll(httplimit.Limit(usedUp, clientIP(t, nil)), httplimit.WithRetrySpread(5*time.Second)))(served),
	} {
		t.Run(name, func(t *testing.T) {
			handler.ServeHTTP(httptest.NewRecorder(), newRequest("GET", "/")) // takes the one permit
			seen := map[int]bool{}
			for range 200 {
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, newRequest("GET", "/"))
				require.Equal(t, http.StatusTooManyRequests, w.Code)
				seconds, err := strconv.Atoi(w.Header().Get("Retry-After"))
				require.NoError(t, err)
				require.True(t, 10 <= seconds && seconds <= 15, seconds)
				require.Contains(t, w.Header().Get("RateLimit"), fmt.Sprintf(";t=%d", seconds))
				seen[seconds] = true
			}
			require.GreaterOrEqual(t, len(seen), 5)
		})
	}
}
