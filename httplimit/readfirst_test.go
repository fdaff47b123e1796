package httplimit_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

// TestAPostWhoseClientLeaves while it waits, over HTTP/1.1: net/http notices that only when the body
// has been read. Then the handler does not run, and the permits go back.
func TestAPostWhoseClientLeaves(t *testing.T) {
	for name, c := range map[string]struct {
		body    io.Reader
		opts    []httplimit.Option
		noticed bool
	}{
		"no body":                       {body: nil, noticed: true},
		"a body":                        {body: strings.NewReader("12345"), noticed: false},
		"a body that was read":          {body: strings.NewReader("12345"), opts: []httplimit.Option{httplimit.WithReadFirst(5)}, noticed: true},
		"a chunked body that was read":  {body: io.MultiReader(strings.NewReader("12345")), opts: []httplimit.Option{httplimit.WithReadFirst(5)}, noticed: true},
		"a longer body":                 {body: strings.NewReader("123456"), opts: []httplimit.Option{httplimit.WithReadFirst(5)}, noticed: false},
		"a longer body that is chunked": {body: io.MultiReader(strings.NewReader(strings.Repeat("123456", 100))), opts: []httplimit.Option{httplimit.WithReadFirst(5)}, noticed: false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bucket := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.Per(1, time.Minute), 1))
				ran, failed := 0, []error{}
				opts := append(c.opts, httplimit.WithMaxWait(2*time.Minute), httplimit.WithErrorHandler(func(_ http.ResponseWriter, _ *http.Request, err error, _ http.Handler) {
					failed = append(failed, err)
				}))
				h := ratelimit.Must(httplimit.New(bucket, httplimit.Everyone(), opts...))
				server := ratelimittest.Serve(t, h(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran++ })))
				response, err := server.Client().Get(server.URL)
				require.NoError(t, err)
				require.NoError(t, response.Body.Close())

				ctx, leave := context.WithCancel(t.Context())
				time.AfterFunc(time.Second, leave)
				r, err := http.NewRequestWithContext(ctx, "POST", server.URL, c.body)
				require.NoError(t, err)
				_, err = server.Client().Do(r)
				require.ErrorIs(t, err, context.Canceled)
				time.Sleep(3 * time.Minute)
				synctest.Wait() // for the handler
				if !c.noticed {
					require.Equal(t, 2, ran, "for nobody")
					require.Empty(t, failed)
					return
				}
				require.Equal(t, 1, ran)
				require.Len(t, failed, 1)
				require.ErrorIs(t, failed[0], context.Canceled)
				require.Equal(t, 1, peek(t, bucket, "all").Remaining)
			})
		})
	}
}

// TestTheHandlerReadsTheWholeBody, whatever of it was read before the wait. A request that need not
// wait is not read.
func TestTheHandlerReadsTheWholeBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, body := range []string{"", "1234", "12345", "123456", strings.Repeat("123456", 10_000)} {
			for _, chunked := range []bool{false, true} {
				bucket := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 1))
				h := limit(t, bucket, httplimit.WithMaxWait(time.Minute), httplimit.WithReadFirst(5))
				var got []string
				server := ratelimittest.Serve(t, h(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					b, err := io.ReadAll(r.Body)
					got = append(got, string(b)+" "+r.Trailer.Get("Checksum"))
					if err != nil {
						panic(err)
					}
				})))
				want, trailer := body+" ", http.Header(nil)
				var source io.Reader = strings.NewReader(body)
				if chunked {
					source, trailer, want = io.MultiReader(source), http.Header{"Checksum": {"7"}}, body+" 7"
				}
				for range 2 {
					r, err := http.NewRequestWithContext(t.Context(), "POST", server.URL, source)
					require.NoError(t, err)
					r.Trailer = trailer
					response, err := server.Client().Do(r)
					require.NoError(t, err)
					require.NoError(t, response.Body.Close())
					require.Equal(t, 200, response.StatusCode)
					if source = strings.NewReader(body); chunked {
						source = io.MultiReader(source)
					}
				}
				require.Equal(t, []string{want, want}, got)
			}
		}
	})
}

// TestABodyThatCannotBeRead: nobody waits for a request that is not whole. Its denial stands, and
// nothing was taken.
func TestABodyThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1), 1))
		h := limit(t, bucket, httplimit.WithPolicy("api"), httplimit.WithMaxWait(time.Minute), httplimit.WithReadFirst(5))(served)
		for _, want := range []int{204, 429} {
			r := newRequest("POST", "/")
			r.Body, r.ContentLength = io.NopCloser(iotest.ErrReader(errors.New("reset"))), -1
			w := do(h, r)
			require.Equal(t, want, w.Code)
			if want == 429 {
				require.Equal(t, quotaExceeded, w.Body.String())
				require.Equal(t, "1", w.Header().Get("Retry-After"))
			}
		}
		time.Sleep(time.Second)
		require.Equal(t, 1, peek(t, bucket, "ip:192.0.2.1").Remaining)
	})
}

// TestTheTimeOfTheBodyCounts towards the longest wait.
func TestTheTimeOfTheBodyCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.Per(1, 10*time.Second), 1))
		h := limit(t, bucket, httplimit.WithPolicy("api"), httplimit.WithMaxWait(11*time.Second), httplimit.WithReadFirst(5))(served)
		require.Equal(t, 204, do(h, newRequest("GET", "/")).Code)
		r := newRequest("POST", "/")
		r.Body, r.ContentLength = io.NopCloser(slowly{12 * time.Second}), -1
		began := time.Now()
		w := do(h, r)
		require.Equal(t, 12*time.Second, time.Since(began))
		require.Equal(t, 429, w.Code)
		require.Equal(t, quotaExceeded, w.Body.String())
	})
}

// slowly is an empty body that takes its time.
type slowly struct{ d time.Duration }

func (s slowly) Read([]byte) (int, error) { time.Sleep(s.d); return 0, io.EOF }

func TestWithReadFirstRefusesWhatCannotWork(t *testing.T) {
	key, one := clientIP(t, nil), ratelimit.AllowAll()
	for message, opts := range map[string][]httplimit.Option{
		"WithReadFirst: 0 bytes; give 1 or more":                              {httplimit.WithMaxWait(time.Second), httplimit.WithReadFirst(0)},
		"WithReadFirst: no request waits without WithMaxWait; give it to New": {httplimit.WithReadFirst(1)},
	} {
		_, err := httplimit.New(one, key, opts...)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, message)
	}
	window := ratelimit.Must(ratelimit.NewFixedWindow(redisForExamples(), 1, time.Second))
	_, err := httplimit.NewAll(httplimit.Limit(window, key), httplimit.WithReadFirst(1))
	require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
	require.ErrorContains(t, err, "WithReadFirst: no request waits without WithMaxWait")
}
