package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
	"github.com/tryacquire/ratelimit/ratelimittest"
)

func init() { log.SetOutput(io.Discard) }

// A dollar for each token of an answer, half of that for input, a tenth for cached input: so a budget is counted easily.
const testConfig = `{
	"models": {"parrot": {"input": 500000, "cached": 100000, "output": 1000000, "most_output": 1000}},
	"teams": {%q: {"month": 1000, "keys": {
		"ann": {"secret": "sk-ann", "month": 100, "tokens_per_minute": 600, "running": 2},
		"bob": {"secret": "sk-bob", "month": 950, "tokens_per_minute": 6000, "running": 2}}}}}`

const dollar = 1_000_000

// A site is a gateway between a client and a parrot.
type site struct {
	*gateway
	t       *testing.T
	team    string
	server  *httptest.Server
	journal *syncBuffer
	asked   atomic.Int64 // calls of the parrot
}

type syncBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

// ends says how the calls have ended, and what they have cost, of those that were settled.
func (b *syncBuffer) ends(t *testing.T) (ends []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	settling := map[string]entry{}
	for line := range bytes.Lines(b.Bytes()) {
		var e entry
		require.NoError(t, json.Unmarshal(line, &e))
		if e.Settled {
			ends = append(ends, fmt.Sprintf("%s %s", settling[e.Call].End, dollars(e.Micros)))
		}
		settling[e.Call] = e
	}
	return ends
}

// newSite returns a gateway whose answers reserve slices of 20 tokens.
func newSite(t *testing.T, client ratelimit.Client, serve func(http.Handler) *httptest.Server, team string, pace time.Duration) *site {
	s := &site{t: t, team: team, journal: &syncBuffer{}}
	var c config
	require.NoError(t, json.Unmarshal(fmt.Appendf(nil, testConfig, team), &c))
	says := &parrot{pace}
	fake := serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		says.ServeHTTP(w, r)
	}))
	g, err := newGateway(client, c, 30*time.Second, 20, &upstream{client: fake.Client(), url: fake.URL}, &journal{to: s.journal})
	require.NoError(t, err)
	s.gateway, s.server = g, serve(g.handler())
	return s
}

// inBubble runs test with an embedded Redis, and a parrot that says a word a second.
func inBubble(t *testing.T, test func(t *testing.T, s *site, env *ratelimittest.Env)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		env := ratelimittest.New(t)
		serve := func(h http.Handler) *httptest.Server { return ratelimittest.Serve(t, h) }
		test(t, newSite(t, env.Client(), serve, "red", time.Second), env)
	})
}

// everywhere runs test with an embedded Redis, and with a real one.
func everywhere(t *testing.T, test func(t *testing.T, s *site)) {
	t.Parallel()
	t.Run("miniredis", func(t *testing.T) {
		inBubble(t, func(t *testing.T, s *site, _ *ratelimittest.Env) { test(t, s) })
	})
	t.Run("Redis", func(t *testing.T) {
		t.Parallel()
		serve := func(h http.Handler) *httptest.Server {
			server := httptest.NewServer(h)
			t.Cleanup(server.Close)
			return server
		}
		test(t, newSite(t, redistest.Shared(t).Client(t), serve, rand.Text(), time.Millisecond))
	})
}

// An ask is a request to the gateway, with five words of which two are in the parrot's cache.
type ask struct {
	secret, wish string
	stream       bool
	most         int
}

func (s *site) send(ctx context.Context, a ask) *http.Response {
	s.t.Helper()
	body := fmt.Sprintf(`{"model":"parrot","stream":%t,"messages":[{"role":"system","content":"a b"},{"role":"user","content":%q}]`, a.stream, a.wish)
	if a.most > 0 {
		body += fmt.Sprintf(`,"max_tokens":%d`, a.most)
	}
	r, err := http.NewRequestWithContext(ctx, "POST", s.server.URL+"/v1/chat/completions", strings.NewReader(body+"}"))
	require.NoError(s.t, err)
	r.Header.Set("Authorization", "Bearer "+a.secret)
	resp, err := s.server.Client().Do(r)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func (s *site) read(resp *http.Response) string {
	s.t.Helper()
	body, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	return string(body)
}

// spent is what the team, ann and bob have spent, and how many calls of ann and bob run.
func (s *site) spent() (is [5]int) {
	s.t.Helper()
	var err error
	is[0], err = s.ledger.team(s.t.Context(), s.team)
	require.NoError(s.t, err)
	for _, a := range s.accounts {
		i := 1
		if a.key == "bob" {
			i = 2
		}
		is[i], err = s.ledger.key(s.t.Context(), a.team, a.key)
		require.NoError(s.t, err)
		r, err := a.running.Peek(s.t.Context(), keyID(a.team, a.key))
		require.NoError(s.t, err)
		is[i+2] = r.Limit - r.Remaining
	}
	return is
}

// TestAnswers: what the upstream reports is settled, of a stream and of a whole answer. Two tokens of the input were cached.
func TestAnswers(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		resp := s.send(t.Context(), ask{secret: "sk-ann", wish: "say 3 words", stream: true})
		require.Equal(t, http.StatusOK, resp.StatusCode)
		require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
		word := `data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"word "}}]}` + "\n\n"
		require.Equal(t, strings.Repeat(word, 3)+
			`data: {"object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":2}}}`+
			"\n\ndata: [DONE]\n\n", s.read(resp))
		const first = 3*dollar + 3*dollar/2 + dollar/5
		require.Equal(t, [5]int{first, first}, s.spent())

		resp = s.send(t.Context(), ask{secret: "sk-bob", wish: "say 4 words", most: 9})
		require.Equal(t, http.StatusOK, resp.StatusCode)
		require.Contains(t, s.read(resp), `"content":"word word word word"`)
		const second = first + dollar
		require.Equal(t, [5]int{first + second, first, second}, s.spent())
		require.Equal(t, []string{"complete 4.700000", "complete 5.700000"}, s.journal.ends(t))
	})
}

// TestAStreamIsCut: ann has 100 dollars, and a stream takes 20 more whenever half of that is left. When the budget has no
// more, the answer goes on until its reserve is used up.
func TestAStreamIsCut(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		body := s.read(s.send(t.Context(), ask{secret: "sk-ann", wish: "say 500 words", stream: true}))
		events := strings.Split(strings.TrimSuffix(body, "\n\n"), "\n\n")
		// The prompt counts as 20 tokens of half a dollar. 30 dollars are reserved, and three times 20: 80 answer.
		require.Len(t, events, 81+1)
		var last struct{ Error failure }
		require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(events[81], "data: ")), &last), events[81])
		require.Equal(t, "insufficient_quota", last.Error.Code)
		require.Equal(t, []string{"key"}, last.Error.Limits)
		const spent = 81*dollar + 20*dollar/2
		require.Equal(t, [5]int{spent, spent}, s.spent())
		require.Equal(t, []string{"cut 91.000000"}, s.journal.ends(t))
	})
}

// TestTheTeamCutsAStream: the budget that denies is named. What the other one has taken too much comes back.
func TestTheTeamCutsAStream(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site, _ *ratelimittest.Env) {
		for range 2 {
			s.read(s.send(t.Context(), ask{secret: "sk-bob", wish: "say 450 words", most: 450}))
		}
		body := s.read(s.send(t.Context(), ask{secret: "sk-ann", wish: "say 500 words", stream: true}))
		require.Contains(t, body, `"limits":["team"]`)
		require.Equal(t, []string{"complete 451.700000", "complete 451.700000", "cut 91.000000"}, s.journal.ends(t))
	})
}

// TestTheClientLeaves: what was said until then is settled, and the place is free.
func TestTheClientLeaves(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site, env *ratelimittest.Env) {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		s.send(ctx, ask{secret: "sk-ann", wish: "say 500 words", stream: true})
		env.Advance(6500 * time.Millisecond) // the first word came with the answer
		require.Equal(t, [5]int{30 * dollar, 30 * dollar, 0, 1, 0}, s.spent())
		leave()
		synctest.Wait()
		const spent = 7*dollar + 20*dollar/2
		require.Equal(t, [5]int{spent, spent}, s.spent())
		require.Equal(t, []string{"cancelled 17.000000"}, s.journal.ends(t))
	})
}

// TestDenials: each says whose limit has denied, and nothing is taken from the others.
func TestDenials(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site, _ *ratelimittest.Env) {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		for range 2 {
			s.send(ctx, ask{secret: "sk-ann", wish: "say 500 words", stream: true})
		}
		before := s.spent()
		resp := s.send(t.Context(), ask{secret: "sk-ann", wish: "say 9 words", most: 60})
		require.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
		require.Equal(t, "28", resp.Header.Get("Retry-After"), "when leases end: the first of two has begun two seconds ago")
		require.Equal(t, []string{
			`"team";q=1000000000;qu="micro-dollars";w=2678400`, `"key";q=100000000;qu="micro-dollars";w=2678400`,
			`"tokens";q=600;qu="tokens";w=60`, `"running";q=2;qu="concurrent-requests"`,
		}, resp.Header.Values("RateLimit-Policy"))
		require.Equal(t, []string{
			`"team";r=940000000;t=2678398`, `"key";r=40000000;t=28`, `"tokens";r=540;t=54`, `"running";r=0;t=1`,
		}, resp.Header.Values("RateLimit"))
		require.JSONEq(t, `{"error": {"type": "insufficient_quota", "code": "insufficient_quota", "param": null, "limits": ["key", "running"],
			"message": "the API key's budget of this month is used up or reserved, and the API key has too many calls at the same time; retry after 28 s"}}`,
			s.read(resp))
		require.Equal(t, before, s.spent())
		leave()
		synctest.Wait()
		require.Equal(t, 0, s.spent()[3])
	})
}

// TestTheUpstreamIsBusy: its 429 stops all gateways until the instant, takes nothing and frees the place. Then one call goes
// first, and the others follow its success.
func TestTheUpstreamIsBusy(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site, env *ratelimittest.Env) {
		serve := func(h http.Handler) *httptest.Server { return ratelimittest.Serve(t, h) }
		other := newSite(t, env.Client(), serve, "red", time.Second)
		resp := s.send(t.Context(), ask{secret: "sk-ann", wish: "be busy for 30 seconds", most: 9})
		require.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
		require.Equal(t, "30", resp.Header.Get("Retry-After"))
		require.Contains(t, s.read(resp), `"limits":["upstream"]`)
		require.Equal(t, [5]int{}, s.spent())

		env.Advance(30*time.Second - time.Millisecond)
		for _, of := range []*site{s, other} {
			resp := of.send(t.Context(), ask{secret: "sk-bob", wish: "say 2 words", most: 9})
			require.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
			require.Equal(t, "1", resp.Header.Get("Retry-After"))
			require.Contains(t, of.read(resp), `"limits":["upstream"]`)
		}
		env.Advance(time.Millisecond)
		first := make(chan int)
		go func() {
			resp := other.send(t.Context(), ask{secret: "sk-bob", wish: "say 2 words", most: 9})
			other.read(resp)
			first <- resp.StatusCode
		}()
		synctest.Wait() // the upstream has it
		require.Equal(t, http.StatusTooManyRequests, s.send(t.Context(), ask{secret: "sk-ann", wish: "say 2 words", most: 9}).StatusCode)
		require.Equal(t, http.StatusOK, <-first)
		require.Equal(t, http.StatusOK, s.send(t.Context(), ask{secret: "sk-ann", wish: "say 2 words", most: 9}).StatusCode)
		require.Equal(t, []int64{2, 1}, []int64{s.asked.Load(), other.asked.Load()})
	})
}

// TestRedisIsDown: nothing is asked of the model. A stream goes on until its reserve is used up; the estimates come back.
func TestRedisIsDown(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site, env *ratelimittest.Env) {
		resp := s.send(t.Context(), ask{secret: "sk-ann", wish: "say 500 words", stream: true})
		env.Down()
		denied := s.send(t.Context(), ask{secret: "sk-ann", wish: "say 2 words", most: 9})
		require.Equal(t, http.StatusServiceUnavailable, denied.StatusCode)
		require.Contains(t, s.read(denied), `"limits_unavailable"`)
		events := strings.Count(s.read(resp), "\n\n")
		require.Equal(t, 21+1, events)
		require.Empty(t, s.journal.ends(t), "it is in doubt")
		env.Up()
		env.Advance(30 * time.Second)
		require.Equal(t, [5]int{}, s.spent())
	})
}

func TestMistakesOfClients(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site, _ *ratelimittest.Env) {
		for body, want := range map[string]string{
			`{`:                   "400 invalid_request",
			`null`:                "400 invalid_request",
			`{"model": 1}`:        "400 invalid_request",
			`{"model": "owl"}`:    "404 model_not_found",
			`{"model": "parrot"}`: "400 invalid_request",
			`{"model": "parrot", "messages": [{}], "n": 9}`:                   "400 invalid_request",
			`{"model": "parrot", "messages": [{}], "max_tokens": -1}`:         "400 invalid_request",
			`{"model": "parrot", "messages": [{}]}`:                           "400 request_too_large",
			`{"model": "parrot", "messages": [{}], "n": 2, "max_tokens": 50}`: "400 request_too_large",
		} {
			w := httptest.NewRecorder()
			r := httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(body))
			r.Header.Set("Authorization", "Bearer sk-ann")
			s.handler().ServeHTTP(w, r)
			var got struct{ Error failure }
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
			require.Equal(t, want, fmt.Sprintf("%d %s", w.Code, got.Error.Code), body)
		}
		require.Equal(t, http.StatusUnauthorized, s.send(t.Context(), ask{secret: "sk-eve"}).StatusCode)
		require.Zero(t, s.asked.Load())
		require.Equal(t, [5]int{}, s.spent())
	})
}

// TestAWordThatIsNoFlag would end the flags: those behind it were ignored, such as -redis.
func TestAWordThatIsNoFlag(t *testing.T) {
	t.Parallel()
	err := run(t.Context(), []string{"my.json", "-redis", "localhost:1"}, io.Discard, miniredis.Run)
	require.EqualError(t, err, `"my.json" is no flag; gateway -help has all`)
}

func TestPage(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site, _ *ratelimittest.Env) {
		s.read(s.send(t.Context(), ask{secret: "sk-ann", wish: "say 3 words", most: 9}))
		resp, err := s.server.Client().Get(s.server.URL)
		require.NoError(t, err)
		defer resp.Body.Close()
		page := s.read(resp)
		require.Contains(t, page, "<tr class=\"team\"><td>red<td>4.700000<td>1000.000000")
		require.Contains(t, page, "<tr><td>ann<td>4.700000<td>100.000000<td>600 of 600<td>0 of 2")
	})
}

// TestTheFirstTry is what a newcomer does: the command that the program prints gets a 429 for its third call. Before the
// program says where it listens it has connected and loaded all scripts, also those of a stream and of the page; and its
// first call has time on a slow laptop, where the Redis inside the process takes longer than the client of a real one waits.
func TestTheFirstTry(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	printed, out := io.Pipe()
	ended := make(chan error)
	var listens, decided atomic.Bool
	var late sync.Map // commands that load scripts or begin a connection
	inside := func() (*miniredis.Miniredis, error) {
		s, err := miniredis.Run()
		s.Server().SetPreHook(func(_ *server.Peer, cmd string, _ ...string) bool {
			switch {
			case !listens.Load():
			case cmd == "EVALSHA":
				if decided.CompareAndSwap(false, true) {
					time.Sleep(150 * time.Millisecond)
				}
			case cmd == "HELLO" || cmd == "SCRIPT" || cmd == "EVAL":
				late.Store(cmd, true)
			}
			return false
		})
		return s, err
	}
	go func() {
		ended <- run(ctx, []string{"-listen", "127.0.0.1:0", "-usages", os.DevNull, "-pace", "100us"}, out, inside)
	}()
	var addr string
	_, err := fmt.Fscanf(printed, "who has spent what: http://%s\n", &addr)
	require.NoError(t, err)
	listens.Store(true)
	go func() { _, _ = io.Copy(io.Discard, printed) }()
	command := fmt.Sprintf(tryThis, addr)
	trial := command[strings.Index(command, "-d '\n")+5 : strings.LastIndex(command, "'")]
	call := func(secret, body string) (*http.Response, string) {
		r, err := http.NewRequest("POST", "http://"+addr+"v1/chat/completions", strings.NewReader(body))
		require.NoError(t, err)
		r.Header.Set("Authorization", "Bearer "+secret)
		resp, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp, string(text)
	}
	for range 2 {
		resp, text := call("sk-trial", trial)
		require.Equal(t, http.StatusOK, resp.StatusCode, text)
	}
	resp, text := call("sk-trial", trial)
	require.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
	require.Contains(t, text, `"limits":["tokens"]`)
	require.Contains(t, text, "retry after "+resp.Header.Get("Retry-After")+" s")
	require.Contains(t, resp.Header.Values("RateLimit")[2], ";t="+resp.Header.Get("Retry-After"))
	require.Len(t, resp.Header.Values("RateLimit"), 4)

	_, text = call("sk-ann", strings.Replace(strings.Replace(trial, "{", `{"stream": true, `, 1), "60 words", "200 words", 1))
	require.Contains(t, text, "[DONE]")
	page, err := http.Get("http://" + addr)
	require.NoError(t, err)
	page.Body.Close()
	require.Equal(t, http.StatusOK, page.StatusCode)
	late.Range(func(cmd, _ any) bool {
		t.Errorf("%v came after the program said that it listens", cmd)
		return true
	})
	stop()
	require.NoError(t, <-ended)
}
