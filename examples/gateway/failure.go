package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
)

// A failure is an error as OpenAI's clients expect it.
type failure struct {
	Status     int           `json:"-"`
	RetryAfter time.Duration `json:"-"`
	Message    string        `json:"message"`
	Type       string        `json:"type"`
	Param      *string       `json:"param"`
	Code       string        `json:"code"`
	Limits     []string      `json:"limits,omitempty"` // whose limits denied
}

func (f *failure) Error() string { return f.Message }

// body is the failure as JSON.
func (f *failure) body() []byte {
	text, _ := json.Marshal(map[string]*failure{"error": f}) // strings only
	return text
}

func badRequest(message string) *failure {
	return &failure{Status: http.StatusBadRequest, Type: "invalid_request_error", Code: "invalid_request", Message: message}
}

// noDecision is the failure of a call about which no limit could decide: money is not spent without a limit.
func noDecision(err error) *failure {
	if errors.Is(err, ratelimit.ErrExceedsLimit) {
		return &failure{Status: http.StatusBadRequest, Type: "invalid_request_error", Code: "request_too_large",
			Message: "the request can cost more than its limits ever allow; give a smaller max_completion_tokens"}
	}
	log.Print(err)
	return &failure{Status: http.StatusServiceUnavailable, RetryAfter: time.Second, Type: "server_error", Code: "limits_unavailable",
		Message: "no limit can be asked; try again later"}
}

// denied is the failure of a call that limits have denied.
func denied(parts []ratelimit.PartResult) *failure {
	f := &failure{Status: http.StatusTooManyRequests, Type: "requests", Code: "rate_limit_exceeded"}
	var why []string
	for _, p := range parts {
		if p.Result.Allowed {
			continue
		}
		f.Limits = append(f.Limits, p.Name)
		why = append(why, reasons[p.Name])
		if p.Name == "team" || p.Name == "key" {
			f.Type, f.Code = "insufficient_quota", "insufficient_quota"
		}
		f.RetryAfter = max(f.RetryAfter, retryAfter(p))
	}
	f.Message = fmt.Sprintf("%s; retry after %d s", strings.Join(why, ", and "), wholeSeconds(f.RetryAfter))
	return f
}

var reasons = map[string]string{
	"upstream": "the model's provider asks everybody to wait",
	"team":     "the team's budget of this month is used up or reserved",
	"key":      "the API key's budget of this month is used up or reserved",
	"tokens":   "the API key's tokens of a minute are used up",
	"running":  "the API key has too many calls at the same time",
}

// retryAfter is when the part will be allowed. Nobody knows when a place will be free: the RetryAfter of an InFlight says
// when the leases of crashed processes end.
func retryAfter(p ratelimit.PartResult) time.Duration {
	if p.Name == "running" {
		return time.Second
	}
	return p.Result.RetryAfter
}

// setFields tells clients about the limits of their call, in RateLimit and RateLimit-Policy.
func setFields(h http.Header, parts []ratelimit.PartResult) {
	units := map[string]string{"team": "micro-dollars", "key": "micro-dollars", "tokens": "tokens", "running": "concurrent-requests"}
	d := httplimit.Decision{Parts: []httplimit.Decision{}}
	for _, p := range parts[teamPart:] {
		p.Result.RetryAfter = retryAfter(p)
		d.Parts = append(d.Parts, httplimit.Decision{
			Policy: p.Name, Unit: units[p.Name], Bucket: p.Name == "tokens", InFlight: p.Name == "running", Result: p.Result,
		})
	}
	httplimit.Draft11().Set(h, d)
}

// write answers with the failure.
func (f *failure) write(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	if f.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(wholeSeconds(f.RetryAfter)))
	}
	w.WriteHeader(f.Status)
	_, _ = w.Write(f.body())
}

// wholeSeconds rounds up, so that nobody comes back too early.
func wholeSeconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }
