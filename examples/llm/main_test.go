package main

import (
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

func init() { log.SetOutput(io.Discard) }

const key = "tenant:acme"

// A site is a gateway and a client of it.
type site struct {
	*gateway
	t      *testing.T
	env    *ratelimittest.Env
	server *httptest.Server
}

// inBubble runs test with a gateway whose model emits a token a second.
func inBubble(t *testing.T, test func(t *testing.T, s *site)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		env := ratelimittest.New(t)
		g, err := newGateway(env.Client(), func(ctx context.Context, _ string, most int, emit func(string) error) error {
			for range most {
				select {
				case <-ctx.Done():
					return context.Cause(ctx)
				case <-time.After(time.Second):
				}
				if err := emit("word "); err != nil {
					return err
				}
			}
			return nil
		})
		require.NoError(t, err)
		s := &site{gateway: g, t: t, env: env, server: ratelimittest.Serve(t, g)}
		s.server.Config.ErrorLog = log.Default()
		test(t, s)
	})
}

// ask sends a prompt of 10 tokens.
func (s *site) ask(ctx context.Context, most string) *http.Response {
	s.t.Helper()
	form := url.Values{"prompt": {strings.Repeat("ask ", 9)}, "max_tokens": {most}}
	r, err := http.NewRequestWithContext(ctx, "POST", s.server.URL, strings.NewReader(form.Encode()))
	require.NoError(s.t, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("X-Tenant", "acme")
	resp, err := s.server.Client().Do(r)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func (s *site) body(resp *http.Response) string {
	s.t.Helper()
	body, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	return string(body)
}

// left is what the tenant has left of places, requests and tokens.
func (s *site) left() [3]int {
	s.t.Helper()
	var left [3]int
	for i, l := range []interface {
		Peek(context.Context, string) (ratelimit.Result, error)
	}{s.running, s.requests, s.tokens} {
		r, err := l.Peek(s.t.Context(), key)
		require.NoError(s.t, err)
		left[i] = r.Remaining
	}
	return left
}

// An answer that is shorter than it might have been costs what it has used.
func TestAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		s.model = func(_ context.Context, _ string, _ int, emit func(string) error) error { return emit("blue") }
		resp := s.ask(t.Context(), "1000")
		require.Equal(t, http.StatusOK, resp.StatusCode)
		require.Equal(t, "blue", s.body(resp))
		require.Equal(t, [3]int{2, 9, 1989}, s.left())
	})
}

// While an answer is under way its estimate is charged; the bucket's 100 tokens a second come back.
func TestStream(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		began := time.Now()
		resp := s.ask(t.Context(), "3") // returns with the first token
		require.Equal(t, time.Second, time.Since(began))
		require.Equal(t, [3]int{1, 10, 2000}, s.left())
		require.Equal(t, "word word word ", s.body(resp))
		require.Equal(t, 3*time.Second, time.Since(began))
		require.Equal(t, [3]int{2, 10, 2000}, s.left())
	})
}

// A reader who leaves half-way pays for what was said, and frees the place at once.
func TestReaderLeaves(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		s.ask(ctx, "1990") // all that there is
		require.Equal(t, [3]int{1, 10, 100}, s.left())
		s.env.Advance(3500 * time.Millisecond)
		require.Equal(t, [3]int{1, 10, 450}, s.left())
		leave()
		synctest.Wait()
		// 2000 were taken, 450 have come back by now, and 1986 are given back of which the bucket
		// has room for 1550.
		require.Equal(t, [3]int{2, 10, 2000}, s.left())
	})
}

// The same at the instant of the estimate, before anything comes back: exactly what was said is
// charged.
func TestReaderLeavesAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		said := make(chan struct{})
		s.model = func(ctx context.Context, _ string, _ int, emit func(string) error) error {
			for range 3 {
				if err := emit("word "); err != nil {
					return err
				}
			}
			close(said)
			<-ctx.Done()
			return ctx.Err()
		}
		s.ask(ctx, "1990")
		<-said
		require.Equal(t, [3]int{1, 9, 0}, s.left())
		leave()
		synctest.Wait()
		require.Equal(t, [3]int{2, 9, 2000 - 10 - 3}, s.left())
	})
}

// A denial names the limits, and takes nothing from the others.
func TestDenials(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		for range 2 {
			s.ask(ctx, "1000")
		}
		require.Equal(t, [3]int{0, 10, 180}, s.left())
		before := s.left()
		resp := s.ask(t.Context(), "1")
		require.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
		require.Equal(t, "1", resp.Header.Get("Retry-After"))
		require.Equal(t, "too many: running\n", s.body(resp))

		resp = s.ask(t.Context(), "1990")
		require.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
		require.Equal(t, "too many: running, tokens\n", s.body(resp))
		require.Equal(t, "19", resp.Header.Get("Retry-After"), "180 of 2000 are there, 100 come a second")
		require.Equal(t, before, s.left())
	})
}

func TestTooManyRequests(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		s.model = func(context.Context, string, int, func(string) error) error { return nil }
		for range 10 {
			require.Equal(t, http.StatusOK, s.ask(t.Context(), "1").StatusCode)
		}
		resp := s.ask(t.Context(), "1")
		require.Equal(t, "too many: requests\n", s.body(resp))
		s.env.Advance(time.Second)
		require.Equal(t, http.StatusOK, s.ask(t.Context(), "1").StatusCode)
	})
}

// More than there ever is: no wait would help.
func TestMoreThanTheLimit(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		require.Equal(t, http.StatusBadRequest, s.ask(t.Context(), "1991").StatusCode)
		require.Equal(t, http.StatusBadRequest, s.ask(t.Context(), "0").StatusCode)
		require.Equal(t, [3]int{2, 10, 2000}, s.left())
	})
}

// A stream lasts longer than its lease, which is extended.
func TestLongStream(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		resp := s.ask(t.Context(), "120")
		s.env.Advance(100 * time.Second)
		require.Equal(t, 1, s.left()[0])
		require.Len(t, s.body(resp), 120*len("word "))
		require.Equal(t, 2, s.left()[0])
	})
}

// Nothing is asked of the model while Redis is down. A stream that is under way goes on for its
// lease.
func TestOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		began := time.Now()
		resp := s.ask(t.Context(), "1000")
		s.env.Down()
		require.Equal(t, http.StatusServiceUnavailable, s.ask(t.Context(), "1").StatusCode)
		body, err := io.ReadAll(resp.Body)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, "a part is not the whole")
		require.Equal(t, 30*time.Second-30*time.Millisecond, time.Since(began))
		require.Len(t, string(body), 29*len("word "))
		s.env.Up()
		require.Equal(t, 1, s.left()[0], "it ends with the lease")
		s.env.Advance(30 * time.Millisecond)
		require.Equal(t, 2, s.left()[0])
	})
}

func TestParrot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var said strings.Builder
		emit := func(token string) error { said.WriteString(token); return nil }
		require.NoError(t, parrot(t.Context(), "a b", 3, emit))
		require.Equal(t, "a b a ", said.String())
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, parrot(ctx, "a b", 3, emit), context.DeadlineExceeded)
		require.Equal(t, "a b a a ", said.String())
	})
}
