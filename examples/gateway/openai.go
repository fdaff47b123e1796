package main

import (
	"encoding/json"
	"errors"
	"io"
	"strconv"
)

// A request is one for a completion. What the gateway does not know of it reaches the upstream as it came.
type request struct {
	fields map[string]json.RawMessage
	model  string
	stream bool
	input  int // tokens of the messages, about
	most   int // tokens that the answer can have
}

var errRequest = errors.New("the body is no request of chat completions")

// readRequest reads a request to one of these models. It bounds the answer, and asks for the usage at its end.
func readRequest(body io.Reader, models map[string]price) (*request, error) {
	r := &request{}
	if err := json.NewDecoder(body).Decode(&r.fields); err != nil || r.fields == nil {
		return nil, badRequest(errRequest.Error())
	}
	var choices, most int
	for name, to := range map[string]any{"model": &r.model, "stream": &r.stream, "n": &choices, "max_tokens": &most} {
		if text, ok := r.fields[name]; ok && json.Unmarshal(text, to) != nil {
			return nil, badRequest(name + " is not what it has to be")
		}
	}
	if text, ok := r.fields["max_completion_tokens"]; ok && json.Unmarshal(text, &most) != nil {
		return nil, badRequest("max_completion_tokens is not what it has to be")
	}
	price, ok := models[r.model]
	switch {
	case !ok:
		return nil, &failure{Status: 404, Type: "invalid_request_error", Code: "model_not_found", Message: "there is no model " + strconv.Quote(r.model)}
	case len(r.fields["messages"]) == 0:
		return nil, badRequest("there are no messages")
	case choices < 0 || choices > 8 || most < 0:
		return nil, badRequest("n has to be 1 to 8, and max_tokens at least 1")
	}
	if most == 0 || most > price.MostOutput {
		most = price.MostOutput
	}
	r.set("max_completion_tokens", most)
	delete(r.fields, "max_tokens")
	if r.stream {
		r.set("stream_options", map[string]bool{"include_usage": true})
	}
	r.most = most * max(choices, 1)
	r.input = len(r.fields["messages"])/4 + 1 // about what a tokenizer counts
	return r, nil
}

func (r *request) set(name string, value any) {
	r.fields[name], _ = json.Marshal(value) // numbers and booleans
}

// usage is what a call has used, in tokens.
type usage struct {
	Input   int `json:"prompt_tokens"`
	Output  int `json:"completion_tokens"`
	Details struct {
		Cached int `json:"cached_tokens"` // of the input
	} `json:"prompt_tokens_details"`
}

func (u usage) total() int { return u.Input + u.Output }

// A chunk is a part of an answer that streams. The last one has the usage.
type chunk struct {
	Choices []struct {
		Delta struct {
			Content   string            `json:"content"`
			ToolCalls []json.RawMessage `json:"tool_calls"`
		} `json:"delta"`
	} `json:"choices"`
	Usage *usage `json:"usage"`
}

// tokens is how many tokens the chunk has: upstreams send each on its own.
func (c chunk) tokens() (n int) {
	for _, choice := range c.Choices {
		if choice.Delta.Content != "" || len(choice.Delta.ToolCalls) > 0 {
			n++
		}
	}
	return n
}
