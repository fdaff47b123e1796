package ratelimit_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// The conformance suite runs through the HTTP middleware too: each call is a request to a server
// that has the limiter in front of a handler.
func init() {
	limitertest.Compositions = append(limitertest.Compositions,
		limitertest.Composition{Name: "an HTTP server", Around: func(t testing.TB, _ *limitertest.Stage, l ratelimit.Limiter) ratelimit.Limiter {
			return newOverHTTP(t, l)
		}})
}

// overHTTP is a Limiter whose calls are requests. What it answers is read from the answer to the
// request, and checked against all of its fields. Four things have another way:
//
//   - The draft's fields are in whole seconds, so the exact Result comes in a field of the test's own,
//     and each of the others must say what it says.
//   - An error has no text in an answer. The test's error handler puts it aside.
//   - A call for 0 permits goes to the limiter: a request of cost 0 is served without asking it.
//   - Peek and Reset go to the limiter: there is no request for them.
type overHTTP struct {
	ratelimit.Limiter
	bucket bool
	url    string
	client *http.Client
	calls  atomic.Int64
	errs   sync.Map // by the number of the call
}

const exactField = "Exact-Result"

func newOverHTTP(t testing.TB, l ratelimit.Limiter) *overHTTP {
	o := &overHTTP{Limiter: l}
	switch l.(type) {
	case *ratelimit.TokenBucket, *ratelimit.LeakyBucket:
		o.bucket = true
	}
	exact := ratelimit.Must(httplimit.NewFields(func(h http.Header, d httplimit.Decision) {
		text, _ := json.Marshal(d.Result)
		h.Set(exactField, string(text))
	}, exactField))
	limit := ratelimit.Must(httplimit.New(l,
		func(r *http.Request) (string, error) {
			key, err := hex.DecodeString(r.Header.Get("Key"))
			return string(key), err
		},
		httplimit.WithCost(func(r *http.Request) int {
			n, _ := strconv.Atoi(r.Header.Get("Permits"))
			return n
		}),
		httplimit.WithPolicy("suite"),
		httplimit.WithFields(httplimit.Draft11(), httplimit.XRateLimit(), exact),
		httplimit.WithErrorHandler(func(w http.ResponseWriter, r *http.Request, err error, next http.Handler) {
			o.errs.Store(r.Header.Get("Call"), err)
			httplimit.DefaultErrorHandler(w, r, err, next)
		}),
	))
	server := httptest.NewServer(limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })))
	transport := &http.Transport{MaxIdleConnsPerHost: 256}
	t.Cleanup(server.Close)
	t.Cleanup(transport.CloseIdleConnections)
	o.url, o.client = server.URL, &http.Client{Transport: transport}
	return o
}

func (o *overHTTP) TryAcquire(ctx context.Context, key string) (ratelimit.Result, error) {
	return o.TryAcquireN(ctx, key, 1)
}

func (o *overHTTP) TryAcquireN(ctx context.Context, key string, n int) (ratelimit.Result, error) {
	if n == 0 {
		return o.Limiter.TryAcquireN(ctx, key, n)
	}
	call := strconv.FormatInt(o.calls.Add(1), 10)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, o.url, nil)
	if err != nil {
		return ratelimit.Result{}, err
	}
	r.Header = http.Header{"Call": {call}, "Key": {hex.EncodeToString([]byte(key))}, "Permits": {strconv.Itoa(n)}}
	response, err := o.client.Do(r)
	if err != nil {
		return ratelimit.Result{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return ratelimit.Result{}, err
	}
	if failure, ok := o.errs.LoadAndDelete(call); ok {
		if response.StatusCode < 400 || response.StatusCode == http.StatusTooManyRequests || response.Header.Get("RateLimit") != "" {
			return ratelimit.Result{}, fmt.Errorf("an error was answered with %d and %v", response.StatusCode, response.Header)
		}
		return ratelimit.Result{}, failure.(error)
	}
	var result ratelimit.Result
	if err := json.Unmarshal([]byte(response.Header.Get(exactField)), &result); err != nil {
		return ratelimit.Result{}, err
	}
	return result, o.check(result, response, string(body))
}

// check returns an error if the answer does not say what result means.
func (o *overHTTP) check(result ratelimit.Result, response *http.Response, body string) error {
	ceil := func(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }
	status, retryAfter, text := http.StatusNoContent, "", ""
	t := ceil(result.ResetAfter)
	switch {
	case !result.Allowed:
		t = max(1, ceil(result.RetryAfter))
		status, retryAfter = http.StatusTooManyRequests, strconv.Itoa(t)
		text = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
			`"title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"violated-policies":["suite"]}`
	case o.bucket: // the numbers of the suite are small
		t = max(1, ceil((time.Duration(result.Remaining)*result.Window+time.Duration(result.Limit)-1)/time.Duration(result.Limit)))
	}
	policy := fmt.Sprintf(`"suite";q=%d`, result.Limit)
	if result.Window >= time.Second {
		policy += fmt.Sprintf(";w=%d", ceil(result.Window))
	}
	for _, field := range [][3]string{
		{"the status", strconv.Itoa(response.StatusCode), strconv.Itoa(status)},
		{"the body", body, text},
		{"Retry-After", response.Header.Get("Retry-After"), retryAfter},
		{"RateLimit-Policy", response.Header.Get("RateLimit-Policy"), policy},
		{"RateLimit", response.Header.Get("RateLimit"), fmt.Sprintf(`"suite";r=%d;t=%d`, result.Remaining, t)},
		{"X-RateLimit-Limit", response.Header.Get("X-RateLimit-Limit"), strconv.Itoa(result.Limit)},
		{"X-RateLimit-Remaining", response.Header.Get("X-RateLimit-Remaining"), strconv.Itoa(result.Remaining)},
		{"X-RateLimit-Reset", response.Header.Get("X-RateLimit-Reset"), strconv.Itoa(t)},
	} {
		if field[1] != field[2] {
			return fmt.Errorf("%s is %q, and %+v means %q", field[0], field[1], result, field[2])
		}
	}
	return nil
}

// TestTheSuiteLooksAtTheFields: an answer that says something else than its Result is found.
func TestTheSuiteLooksAtTheFields(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	o := newOverHTTP(t, ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1), 2)))
	r, err := o.TryAcquire(ctx, "k")
	require.NoError(t, err)
	require.Equal(t, ratelimit.Result{Allowed: true, Limit: 2, Window: 2 * time.Second, Remaining: 1, ResetAfter: time.Second}, r)
	right := &http.Response{StatusCode: 204, Header: http.Header{}}
	for name, value := range map[string]string{
		"RateLimit-Policy": `"suite";q=2;w=2`, "RateLimit": `"suite";r=1;t=1`,
		"X-RateLimit-Limit": "2", "X-RateLimit-Remaining": "1", "X-RateLimit-Reset": "1",
	} {
		right.Header.Set(name, value)
	}
	require.NoError(t, o.check(r, right, ""))
	for name := range right.Header {
		wrong := &http.Response{StatusCode: 204, Header: right.Header.Clone()}
		wrong.Header.Set(name, `"suite";r=1;t=2`)
		require.Error(t, o.check(r, wrong, ""), name)
	}
	require.Error(t, o.check(r, &http.Response{StatusCode: 200, Header: right.Header}, ""))
	require.Error(t, o.check(r, right, "a body"))
}
