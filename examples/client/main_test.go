package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

// A remote is a server with a limit, and a client of it.
type remote struct {
	t      *testing.T
	env    *ratelimittest.Env
	own    *ratelimittest.Script // the client's own limiter
	client *http.Client
	url    string
	start  time.Time

	mu     sync.Mutex // guards what follows
	served []string   // bodies of the requests that were served, and when
	asked  int        // requests, those that were denied included
	open   int        // bodies of answers that are not closed
}

// inBubble runs test with a server that allows two requests at once and then one every ten seconds.
func inBubble(t *testing.T, test func(t *testing.T, s *remote), opts ...httplimit.Option) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &remote{t: t, env: ratelimittest.New(t), own: ratelimittest.NewScript(t), start: time.Now()}
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(s.env.Client(), ratelimit.Per(1, 10*time.Second), 2))
		limit := ratelimit.Must(httplimit.New(bucket, ratelimit.Must(httplimit.ClientIP(nil)), opts...))
		s.serve(limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.served = append(s.served, string(body)+" "+time.Since(s.start).String())
		})))
		test(t, s)
		require.Zero(t, s.unclosed(), "bodies that are not closed")
	})
}

func (s *remote) serve(h http.Handler) {
	server := ratelimittest.Serve(s.t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.asked++
		s.mu.Unlock()
		h.ServeHTTP(w, r)
	}))
	base := server.Client().Transport
	s.url = server.URL
	s.client = &http.Client{Transport: ratelimit.Must(newTransport(roundTripper(func(r *http.Request) (*http.Response, error) {
		resp, err := base.RoundTrip(r)
		if err == nil {
			s.mu.Lock()
			s.open++
			s.mu.Unlock()
			resp.Body = &closing{resp.Body, func() { s.mu.Lock(); s.open--; s.mu.Unlock() }}
		}
		return resp, err
	}), s.own, s.env.Client()))}
}

func (s *remote) bodies() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.served)
}

func (s *remote) requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

func (s *remote) unclosed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A closing calls closed when it is closed first.
type closing struct {
	io.ReadCloser
	closed func()
}

func (c *closing) Close() error {
	if c.closed != nil {
		c.closed()
		c.closed = nil
	}
	return c.ReadCloser.Close()
}

// post posts body and returns the status.
func (s *remote) post(ctx context.Context, body io.Reader) (int, error) {
	r, err := http.NewRequestWithContext(ctx, "POST", s.url, body)
	require.NoError(s.t, err)
	resp, err := s.client.Do(r)
	if err != nil {
		return 0, err
	}
	resp.Body.Close()
	return resp.StatusCode, nil
}

func (s *remote) mustPost(body string) {
	s.t.Helper()
	status, err := s.post(s.t.Context(), strings.NewReader(body))
	require.NoError(s.t, err)
	require.Equal(s.t, http.StatusOK, status)
}

// A server that says that nothing is left is not asked before there is. So none of these
// requests is denied.
func TestRateLimitFieldsAreObeyed(t *testing.T) {
	for name, fields := range map[string]httplimit.Fields{"draft 11": httplimit.Draft11(), "X-RateLimit": httplimit.XRateLimit()} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *remote) {
				s.own.Allow(ratelimittest.AnyKey)
				s.mustPost("a")
				s.mustPost("b")
				s.mustPost("c")
				require.Equal(t, "a 0s", s.bodies()[0])
				require.Equal(t, "b 0s", s.bodies()[1])
				require.Len(t, s.bodies(), 3)
				require.GreaterOrEqual(t, time.Since(s.start), 10*time.Second)
				require.LessOrEqual(t, time.Since(s.start), 20*time.Second)
			}, httplimit.WithFields(fields))
		})
	}
}

// Without the fields the client learns from a denial, and sends the body again.
func TestRetryAfterIsObeyed(t *testing.T) {
	inBubble(t, func(t *testing.T, s *remote) {
		for _, body := range []string{"a", "b", "c", "d"} {
			s.mustPost(body)
		}
		require.Equal(t, []string{"a 0s", "b 0s", "c 10s", "d 20s"}, s.bodies())
		require.Equal(t, 6, s.requests(), "two were denied once")
	}, httplimit.WithFields())
}

// A body that cannot be had again is not sent again: the caller gets the denial, to close.
func TestABodyOfOneUse(t *testing.T) {
	inBubble(t, func(t *testing.T, s *remote) {
		s.mustPost("a")
		s.mustPost("b")
		status, err := s.post(t.Context(), io.MultiReader(strings.NewReader("c")))
		require.NoError(t, err)
		require.Equal(t, http.StatusTooManyRequests, status)
		require.Equal(t, s.start, time.Now())
		require.Equal(t, []string{"a 0s", "b 0s"}, s.bodies())
	}, httplimit.WithFields())
}

// If the context ends before the pause does, the caller gets the denial at once; the next
// request is not even sent.
func TestADeadlineBeforeThePauseEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, s *remote) {
		s.mustPost("a")
		s.mustPost("b")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		status, err := s.post(ctx, strings.NewReader("c"))
		require.NoError(t, err)
		require.Equal(t, http.StatusTooManyRequests, status)
		_, err = s.post(ctx, strings.NewReader("c"))
		var late *ratelimit.WaitError
		require.ErrorAs(t, err, &late)
		require.Equal(t, 10*time.Second, late.Wait)
		require.Equal(t, s.start, time.Now())
		require.Equal(t, 3, s.requests())
	}, httplimit.WithFields())
}

func TestAContextThatEndsDuringThePause(t *testing.T) {
	inBubble(t, func(t *testing.T, s *remote) {
		s.mustPost("a")
		s.mustPost("b")
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(5*time.Second, cancel)
		closed := false
		r, err := http.NewRequestWithContext(ctx, "POST", s.url, &closing{io.NopCloser(strings.NewReader("c")), func() { closed = true }})
		require.NoError(t, err)
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("c")), nil }
		_, err = s.client.Do(r)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 5*time.Second, time.Since(s.start))
		require.True(t, closed)
	}, httplimit.WithFields())
}

// What the client's own limiter denies is not sent before it allows it.
func TestTheOwnLimit(t *testing.T) {
	inBubble(t, func(t *testing.T, s *remote) {
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(s.env.Client(), ratelimit.Per(1, 30*time.Second), 1, ratelimit.WithName("outgoing")))
		s.client.Transport.(*transport).limiter = bucket
		s.mustPost("a")
		s.mustPost("b")
		require.Equal(t, []string{"a 0s", "b 30s"}, s.bodies())

		s.env.Down()
		closed := false
		_, err := s.post(t.Context(), &closing{io.NopCloser(strings.NewReader("c")), func() { closed = true }})
		require.ErrorContains(t, err, "connection re")
		require.True(t, closed)
		require.Equal(t, 2, s.requests())
		s.env.Up()
	})
}

// While many requests wait for the client's own limit, one of them is denied: the others wait
// for as long as the server has asked for.
func TestADenialHoldsForAllRequests(t *testing.T) {
	inBubble(t, func(t *testing.T, s *remote) {
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(s.env.Client(), ratelimit.PerSecond(1), 1, ratelimit.WithName("outgoing")))
		s.client.Transport.(*transport).limiter = bucket
		var posts sync.WaitGroup
		for range 6 {
			posts.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, _ = s.post(ctx, strings.NewReader("a"))
			})
		}
		s.env.Advance(10*time.Second - time.Microsecond)
		require.Equal(t, []string{"a 0s", "a 1s"}, s.bodies())
		require.Equal(t, 3, s.requests(), "one was denied, after two seconds; its Retry-After is 8 s")
		s.env.Advance(time.Microsecond)
		require.Equal(t, []string{"a 0s", "a 1s", "a 10s"}, s.bodies())
		posts.Wait()
	}, httplimit.WithFields())
}

// A server that denies for ever is asked three times, and one that asks for more than a minute
// once.
func TestAServerThatDeniesForEver(t *testing.T) {
	for retryAfter, want := range map[string]struct {
		asked int
		took  time.Duration
	}{
		"":                              {3, 2 * time.Second},
		"0":                             {3, 2 * time.Second},
		"60":                            {3, 2 * time.Minute},
		"61":                            {1, 0},
		"soon":                          {3, 2 * time.Second},
		"99999999999999999999":          {1, 0},
		"Sat, 01 Jan 2000 00:00:10 GMT": {3, 11 * time.Second}, // the second time it has passed
	} {
		t.Run(retryAfter, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *remote) {
				s.serve(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Retry-After", retryAfter)
					w.WriteHeader(http.StatusTooManyRequests)
					_, _ = io.WriteString(w, "too many")
				}))
				resp, err := s.client.Get(s.url)
				require.NoError(t, err)
				body, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				resp.Body.Close()
				require.Equal(t, "too many", string(body))
				require.Equal(t, want.asked, s.requests())
				require.Equal(t, want.took, time.Since(s.start))
			})
		})
	}
}

// TestThreeProcesses: a 429 to one of them stops all. Nobody asks before the instant; then one goes first, and the
// others follow its success.
func TestThreeProcesses(t *testing.T) {
	inBubble(t, func(t *testing.T, s *remote) {
		var mu sync.Mutex // guards arrived
		var arrived []time.Duration
		s.serve(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			mu.Lock()
			arrived = append(arrived, time.Since(s.start))
			first := len(arrived) == 1
			mu.Unlock()
			time.Sleep(300 * time.Millisecond)
			if first {
				w.Header().Set("Retry-After", "10")
				w.WriteHeader(http.StatusTooManyRequests)
			}
		}))
		times := func() []time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(arrived)
		}
		s.own.Allow(ratelimittest.AnyKey)
		told := s.client
		processes := []*http.Client{told}
		for range 2 {
			store := redis.NewClient(s.env.Options())
			defer store.Close()
			base := told.Transport.(*transport).base
			processes = append(processes, &http.Client{Transport: ratelimit.Must(newTransport(base, s.own, store))})
		}
		var requests sync.WaitGroup
		ask := func(c *http.Client) {
			requests.Go(func() {
				resp, err := c.Get(s.url)
				if err != nil {
					t.Error(err)
					return
				}
				resp.Body.Close()
			})
		}
		ask(told)
		s.env.Advance(time.Second)
		for i := range 9 {
			ask(processes[i%3])
		}
		s.env.Advance(9*time.Second + 300*time.Millisecond - time.Microsecond)
		require.Equal(t, []time.Duration{0}, times())
		s.env.Advance(300 * time.Millisecond)
		require.Equal(t, []time.Duration{0, 10300 * time.Millisecond}, times(), "one goes first")
		requests.Wait()
		require.Len(t, times(), 11)
		require.LessOrEqual(t, times()[10], 10300*time.Millisecond+2*probeTime)
	})
}

// TestWhatIsLeftLowersTheOwnLimit, of all processes, and never raises it.
func TestWhatIsLeftLowersTheOwnLimit(t *testing.T) {
	inBubble(t, func(t *testing.T, s *remote) {
		var fields http.Header
		s.serve(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for name, values := range fields {
				w.Header()[name] = values
			}
		}))
		rate, name := ratelimit.Per(1, time.Hour), ratelimit.WithName("outgoing")
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(s.env.Client(), rate, 50, name))
		polite := s.client.Transport.(*transport)
		polite.limiter, polite.lower = bucket, lowering(s.env.Client(), rate, 50, name)
		host := strings.TrimPrefix(s.url, "http://")
		for _, answer := range []struct {
			fields http.Header
			want   int
		}{
			{nil, 49},
			{http.Header{"X-Ratelimit-Remaining": {"48"}}, 48},
			{http.Header{"X-Ratelimit-Remaining": {"60"}}, 47},
			{http.Header{"X-Ratelimit-Remaining": {"20"}}, 20},
			{http.Header{"X-Ratelimit-Remaining": {"30"}}, 19},
			{http.Header{"X-Ratelimit-Remaining": {"-5"}}, 18},
			{http.Header{"Ratelimit": {`"minute";r=17;t=9, "day";r=3;t=99`}}, 3},
			{http.Header{"Ratelimit": {`"minute";r=17;t=9`}, "X-Ratelimit-Remaining": {"1"}}, 1},
		} {
			fields = answer.fields
			s.mustPost("a")
			require.Equal(t, answer.want, ratelimit.Must(bucket.Peek(t.Context(), host)).Remaining, "%v", answer.fields)
		}
		require.Equal(t, s.start, time.Now())
		s.env.Down() // it lowers nothing, and the answer is the caller's all the same
		require.Zero(t, polite.note(t.Context(), host, &http.Response{StatusCode: http.StatusOK, Header: fields}, ratelimit.Result{Allowed: true}))
		s.env.Up()
	})
}

func TestAnnounced(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_763_670_000, 0)
	for _, test := range []struct {
		header http.Header
		want   time.Duration
	}{
		{nil, 0},
		{http.Header{"Retry-After": {"7"}}, 7 * time.Second},
		{http.Header{"Retry-After": {"-7"}}, 0},
		{http.Header{"Retry-After": {now.Add(time.Minute).UTC().Format(http.TimeFormat)}}, time.Minute},
		{http.Header{"Retry-After": {now.Add(-time.Minute).UTC().Format(http.TimeFormat)}}, 0},
		{http.Header{"Ratelimit": {`"api";r=0;t=9`}}, 9 * time.Second},
		{http.Header{"Ratelimit": {`"api";r=1;t=9`}}, 0},
		{http.Header{"Ratelimit": {`"api";r=0`}}, 0},
		{http.Header{"Ratelimit": {`"minute";r=3;t=9, "day" ; r=0 ; t=3600`, `"hour";t=60;r=0`}}, time.Hour},
		{http.Header{"Ratelimit": {`"a\";r=0;t=5,b";r=1;t=9`}}, 0},
		{http.Header{"Ratelimit": {`"a,b";r=0;t=9;pk=:YSxi:`}}, 9 * time.Second},
		{http.Header{"Ratelimit": {`"`}}, 0},
		{http.Header{"Ratelimit": {`"\`}}, 0},
		{http.Header{"X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {"30"}}, 30 * time.Second},
		{http.Header{"X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {"1763670030"}}, 30 * time.Second},
		{http.Header{"X-Ratelimit-Remaining": {"1"}, "X-Ratelimit-Reset": {"30"}}, 0},
		{http.Header{"X-Ratelimit-Remaining": {"0"}}, 0},
		{http.Header{"Retry-After": {"7"}, "Ratelimit": {`"api";r=0;t=5`}}, 7 * time.Second},
	} {
		require.Equal(t, test.want, announced(&http.Response{Header: test.header}, now), "%v", test.header)
	}
}

var errBody = errors.New("the body is gone")

func TestReplay(t *testing.T) {
	t.Parallel()
	r, err := http.NewRequest("POST", "http://example.com", strings.NewReader("a"))
	require.NoError(t, err)
	next, ok := replay(r)
	require.True(t, ok)
	require.NotSame(t, r, next)
	body, err := io.ReadAll(next.Body)
	require.NoError(t, err)
	require.Equal(t, "a", string(body))
	r.GetBody = func() (io.ReadCloser, error) { return nil, errBody }
	_, ok = replay(r)
	require.False(t, ok)
	r.GetBody = nil
	_, ok = replay(r)
	require.False(t, ok)
	for _, none := range []io.ReadCloser{nil, http.NoBody} {
		r.Body = none
		_, ok = replay(r)
		require.True(t, ok)
	}
}
