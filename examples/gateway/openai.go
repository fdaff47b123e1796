package main

import (
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
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
	for _, name := range []string{"messages", "tools", "functions", "response_format", "prediction"} {
		r.input += len(r.fields[name])
	}
	r.input = r.input/bytesOfToken + 1
	return r, nil
}

// bytesOfToken is about what a tokenizer makes a token of.
const bytesOfToken = 4

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

// checked has no number that would make a call cost less than nothing, whatever the upstream reports.
func (u usage) checked() usage {
	u.Input, u.Output = max(u.Input, 0), max(u.Output, 0)
	u.Details.Cached = min(max(u.Details.Cached, 0), u.Input)
	return u
}

// A chunk is a part of an answer that streams. The last one has the usage; of some upstreams, each has that so far.
type chunk struct {
	Choices []struct {
		Delta map[string]json.RawMessage `json:"delta"`
	} `json:"choices"`
	Usage *usage `json:"usage"`
}

// size is how many pieces of answers the chunk has, and the bytes of their texts: whatever a delta has beside its role is a
// piece, such as content, reasoning or the call of a tool.
func (c chunk) size() (pieces, length int) {
	for _, choice := range c.Choices {
		piece := 0
		for name, value := range choice.Delta {
			switch text := string(value); {
			case name == "role" || text == "null" || text == `""` || text == "[]":
			case value[0] == '"':
				piece, length = 1, length+len(strings.Trim(text, `" `))
			default:
				piece = 1
			}
		}
		pieces += piece
	}
	return pieces, length
}
