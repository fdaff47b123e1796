package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/ratelimittest"
)

// behind runs test with this upstream in place of the parrot.
func behind(t *testing.T, upstream http.HandlerFunc, test func(t *testing.T, s *site)) {
	inBubble(t, func(t *testing.T, s *site, _ *ratelimittest.Env) {
		server := ratelimittest.Serve(t, upstream)
		s.upstream.client, s.upstream.url = server.Client(), server.URL
		test(t, s)
	})
}

// answering is an upstream that answers with this text.
func answering(status int, header, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if name, value, ok := strings.Cut(header, ": "); ok {
			w.Header().Set(name, value)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}
}

// TestUsagesAsUpstreamsReportThem: a call costs what was counted if there is no usage, and never less than nothing. The prompt
// is 17 tokens of half a dollar, until the upstream reports another number.
func TestUsagesAsUpstreamsReportThem(t *testing.T) {
	words := func(n int, usage string) (text string) {
		for i := range n {
			text += `data: {"choices":[{"delta":{"content":"word "}}]` + strings.ReplaceAll(usage, "#", fmt.Sprint(i+1)) + "}\n\n"
		}
		return text
	}
	const done = "data: [DONE]\n\n"
	for name, c := range map[string]struct {
		stream bool
		text   string
		want   string
	}{
		"none":               {false, `{"choices":[{"message":{"content":"` + strings.Repeat("a", 43) + `"}}]}`, "complete 28.500000"},  // 80 bytes are 20 tokens
		"none, long":         {false, `{"choices":[{"message":{"content":"` + strings.Repeat("a", 999) + `"}}]}`, "complete 68.500000"}, // max_tokens
		"null":               {false, `{"usage":null, "n": 1}`, "complete 13.500000"},
		"none that is JSON":  {false, `{"choices":[{"message":{"content":"`, "failed 16.500000"},
		"negative":           {false, `{"usage":{"prompt_tokens":4,"completion_tokens":-100}}`, "complete 2.000000"},
		"negative prompt":    {false, `{"usage":{"prompt_tokens":-4,"completion_tokens":1}}`, "complete 1.000000"},
		"more was cached":    {false, `{"usage":{"prompt_tokens":4,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":100}}}`, "complete 1.400000"},
		"stream, none":       {true, words(3, "") + done, "complete 11.500000"},
		"stream, broken off": {true, words(3, ""), "failed 11.500000"},
		"without a space":    {true, strings.ReplaceAll(words(3, ""), "data: ", "data:") + done, "complete 11.500000"},
		"reasoning, a tool": {true, `data: {"choices":[{"delta":{"role":"assistant","content":null,"tool_calls":[],"refusal":""}}]}` + "\n\n" +
			`data: {"choices":[{"delta":{"content":null,"reasoning_content":"hm"}}]}` + "\n\n" +
			`data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}}]}` + "\n\n" + done, "complete 10.500000"},
		"many tokens at once": {true, `data: {"choices":[{"delta":{"content":"` + strings.Repeat("a", 40) + `"}}]}` + "\n\n" + done, "complete 18.500000"},
		// With each word: 100 dollars are cut as without it, see TestAStreamIsCut. Here the prompt is four tokens.
		"so far":           {true, words(200, `,"usage":{"prompt_tokens":4,"completion_tokens":#}`) + done, "cut 89.000000"},
		"so far, complete": {true, words(60, `,"usage":{"prompt_tokens":4,"completion_tokens":#}`) + done, "complete 62.000000"},
		// It is above what is reserved, but the answer is there.
		"more than counted": {true, words(3, "") + `data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":4,"completion_tokens":90}}` + "\n\n" + done, "complete 92.000000"},
	} {
		t.Run(name, func(t *testing.T) {
			behind(t, answering(http.StatusOK, "", c.text), func(t *testing.T, s *site) {
				s.read(s.send(t.Context(), ask{secret: "sk-ann", wish: "x", stream: c.stream, most: 60}))
				require.Equal(t, []string{c.want}, s.journal.ends(t))
				require.Equal(t, c.want, strings.Fields(c.want)[0]+" "+dollars(s.spent()[1]))
			})
		})
	}
}

// TestTheClientLeavesBeforeTheAnswer: the upstream goes on, and bills it.
func TestTheClientLeavesBeforeTheAnswer(t *testing.T) {
	for stream, want := range map[bool]string{false: "complete 11.700000", true: "cancelled 10.000000"} {
		t.Run(fmt.Sprint(stream), func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *site, env *ratelimittest.Env) {
				ctx, leave := context.WithCancel(t.Context())
				time.AfterFunc(time.Second/2, leave)
				body := fmt.Sprintf(`{"model":"parrot","stream":%t,"max_tokens":30,"messages":[{"role":"system","content":"a b"},{"role":"user","content":"say 10 words"}]}`, stream)
				r := httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(body)).WithContext(ctx)
				r.Header.Set("Authorization", "Bearer sk-ann")
				go s.handler().ServeHTTP(httptest.NewRecorder(), r)
				env.Advance(11 * time.Second)
				synctest.Wait()
				require.Equal(t, []string{want}, s.journal.ends(t))
				require.Zero(t, s.spent()[3], "the place is free")
			})
		})
	}
}

// TestPausesAsUpstreamsAskForThem: a 429 that asks for no wait is followed by the shortest pause.
func TestPausesAsUpstreamsAskForThem(t *testing.T) {
	for after, want := range map[string]string{
		"": "1", "0": "1", "-5": "1", "1.5": "1", "99999999999999999999": "1", "Sat, 01 Jan 2000 00:00:00 GMT": "1",
		"7": "7", "Sat, 01 Jan 2000 00:00:30 GMT": "30", "86400": "3600",
	} {
		t.Run(after, func(t *testing.T) {
			behind(t, answering(http.StatusTooManyRequests, "Retry-After: "+after, ""), func(t *testing.T, s *site) {
				for range 2 { // the second one is not sent
					resp := s.send(t.Context(), ask{secret: "sk-ann", wish: "x", most: 60})
					require.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
					require.Equal(t, want, resp.Header.Get("Retry-After"))
					require.Contains(t, s.read(resp), "retry after "+want+" s")
				}
				require.Equal(t, [5]int{}, s.spent())
			})
		})
	}
}

// TestErrorsOfUpstreams: what is wrong with the client's request is passed on; what is wrong with the gateway's own key, which
// the upstream may quote, is not.
func TestErrorsOfUpstreams(t *testing.T) {
	const quoted = `{"error":{"message":"Incorrect API key provided: sk-up***1234."}}`
	for status, want := range map[int]int{302: 502, 401: 502, 403: 502, 400: 400, 404: 404, 500: 500} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			behind(t, answering(status, "", quoted), func(t *testing.T, s *site) {
				resp := s.send(t.Context(), ask{secret: "sk-ann", wish: "x", most: 60})
				require.Equal(t, want, resp.StatusCode)
				if want == 502 {
					require.JSONEq(t, `{"error":{"message":"the model has failed","type":"server_error","param":null,"code":"upstream_failed"}}`, s.read(resp))
				} else {
					require.Equal(t, quoted, s.read(resp))
				}
				require.Equal(t, [5]int{}, s.spent())
			})
		})
	}
}

// TestTheRequestCounts: tools and schemas are tokens of the prompt, as messages are.
func TestTheRequestCounts(t *testing.T) {
	r, err := readRequest(strings.NewReader(`{"model":"parrot","messages":[1234],"tools":[123456],"functions":[12],"response_format":{"a":1},"prediction":{},"user":"xxxxxxxxx"}`),
		map[string]price{"parrot": {MostOutput: 5}})
	require.NoError(t, err)
	require.Equal(t, (6+8+4+7+2)/bytesOfToken+1, r.input)
	require.Equal(t, 5, r.most)
}
