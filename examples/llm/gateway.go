package main

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
)

// A model emits the tokens of an answer, at most as many as it is asked for, and stops when emit
// returns an error or ctx ends.
type model func(ctx context.Context, prompt string, most int, emit func(token string) error) error

type gateway struct {
	running          *ratelimit.InFlight
	requests, tokens *ratelimit.TokenBucket
	model            model
}

func newGateway(client ratelimit.Client, m model) (*gateway, error) {
	running, err1 := ratelimit.NewInFlight(client, 2, 30*time.Second, ratelimit.WithName("running"))
	requests, err2 := ratelimit.NewTokenBucket(client, ratelimit.PerMinute(60), 10, ratelimit.WithName("requests"))
	tokens, err3 := ratelimit.NewTokenBucket(client, ratelimit.PerMinute(6_000), 2_000, ratelimit.WithName("tokens"))
	return &gateway{running, requests, tokens, m}, errors.Join(err1, err2, err3)
}

const settleTime = time.Second

// ServeHTTP streams an answer. X-Tenant is set by the authentication in front of the gateway.
func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	tenant, prompt := r.Header.Get("X-Tenant"), r.FormValue("prompt")
	most, err := strconv.Atoi(r.FormValue("max_tokens"))
	if tenant == "" || prompt == "" || err != nil || most < 1 {
		http.Error(w, "X-Tenant, prompt and max_tokens, please", http.StatusBadRequest)
		return
	}
	used := countTokens(prompt)
	key := "tenant:" + tenant // of all three limits, so that a Cluster has them in one slot
	answer, err := ratelimit.TryAcquireAll(r.Context(),
		ratelimit.ClaimHold(g.running, key, 1), ratelimit.ClaimOf(g.requests, key, 1), ratelimit.ClaimOf(g.tokens, key, used+most).Estimate())
	switch {
	case errors.Is(err, ratelimit.ErrExceedsLimit):
		http.Error(w, "more tokens than any answer may have", http.StatusBadRequest)
		return
	case err != nil: // a model is too expensive to be asked without a limit
		log.Print(err)
		http.Error(w, "try again later", http.StatusServiceUnavailable)
		return
	case !answer.Allowed:
		deny(w, answer)
		return
	}
	ticket := answer.Parts[2].Ticket
	defer func() { // even if the reader has left, or the model panics
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), settleTime)
		defer cancel()
		if err := ticket.Settle(ctx, used); err != nil {
			log.Print(err) // the estimate stays charged
		}
	}()
	stream := http.NewResponseController(w)
	err = answer.Do(r.Context(), func(ctx context.Context) error {
		return g.model(ctx, prompt, most, func(token string) error {
			used++
			_, err := io.WriteString(w, token)
			return errors.Join(err, stream.Flush())
		})
	}, nil)
	if err != nil {
		log.Print(err)
		panic(http.ErrAbortHandler) // so that the reader notices that the answer is not complete
	}
}

// deny says which limits have denied, and when to come back. Nobody knows when a place will
// be free, because that depends on other answers: the RetryAfter of an InFlight says only
// when the leases of crashed processes end.
func deny(w http.ResponseWriter, answer ratelimit.AllResult) {
	retryAfter := time.Second
	var denied []string
	for _, p := range answer.Parts {
		if p.Result.Allowed {
			continue
		}
		denied = append(denied, p.Name)
		if p.Name != "running" {
			retryAfter = max(retryAfter, p.Result.RetryAfter)
		}
	}
	d := httplimit.Decision{Result: ratelimit.Result{RetryAfter: retryAfter}}
	w.Header().Set("Retry-After", strconv.Itoa(d.RetryAfter()))
	http.Error(w, "too many: "+strings.Join(denied, ", "), http.StatusTooManyRequests)
}

// countTokens returns about what a tokenizer would count.
func countTokens(text string) int { return len(text)/4 + 1 }
