package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A parrot is an upstream for trying, and for tests. Each word is a token. It says as many words as the last message asks for
// ("say 40 words"), and has all messages before that in its cache. Of "be busy for 3 seconds" it makes a 429.
type parrot struct {
	pace time.Duration // of a word
}

var wish = regexp.MustCompile(`(say|busy for) (\d+)`)

func (p *parrot) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Model    string `json:"model"`
		Stream   bool   `json:"stream"`
		Most     int    `json:"max_completion_tokens"`
		Messages []struct {
			Content string `json:"content"`
		} `json:"messages"`
	}
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil || len(req.Messages) == 0 {
		badRequest("the parrot understands nothing").write(w)
		return
	}
	var used usage
	words, last := 40, ""
	for _, m := range req.Messages {
		used.Details.Cached = used.Input
		used.Input += len(strings.Fields(m.Content))
		last = m.Content
	}
	if found := wish.FindStringSubmatch(last); found != nil {
		if found[1] == "busy for" {
			w.Header().Set("Retry-After", found[2])
			(&failure{Status: http.StatusTooManyRequests, Type: "requests", Code: "rate_limit_exceeded", Message: "the parrot is busy"}).write(w)
			return
		}
		words, _ = strconv.Atoi(found[2])
	}
	if req.Most > 0 {
		words = min(words, req.Most)
	}
	to := &answer{w: w}
	for used.Output < words {
		select {
		case <-time.After(p.pace):
		case <-r.Context().Done():
			return
		}
		used.Output++
		if req.Stream && to.event([]byte(`{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"word "}}]}`)) != nil {
			return
		}
	}
	usage, _ := json.Marshal(used) // numbers
	if req.Stream {
		_ = to.event(fmt.Appendf(nil, `{"object":"chat.completion.chunk","choices":[],"usage":%s}`, usage))
		_ = to.event([]byte("[DONE]"))
		return
	}
	text := strings.TrimSpace(strings.Repeat("word ", words))
	_ = to.body(http.StatusOK, "application/json", fmt.Appendf(nil,
		`{"object":"chat.completion","model":%q,"choices":[{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":"stop"}],"usage":%s}`+"\n",
		req.Model, text, usage))
}
