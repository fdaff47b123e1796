package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"strings"
	"time"

	"github.com/tryacquire/ratelimit"
)

// A gateway stands between API keys and an upstream that speaks OpenAI's protocol.
type gateway struct {
	models   map[string]price
	accounts accounts
	ledger   ledger
	upstream *upstream
	journal  *journal
	slice    int // tokens that an answer reserves at once
}

const (
	mostTime = 10 * time.Minute // of a call
	mostBody = 10 << 20         // bytes of a request
)

func newGateway(client ratelimit.Client, c config, lease time.Duration, slice int, up *upstream, j *journal) (*gateway, error) {
	accounts, err := newAccounts(client, c, lease)
	if err != nil {
		return nil, err
	}
	for _, a := range accounts {
		up.pause = a.upstream
		if err := ratelimit.CheckClaims(a.claims(1, 1)...); err != nil {
			return nil, err
		}
	}
	ledger, err := newLedger(client, lease)
	return &gateway{c.Models, accounts, ledger, up, j, slice}, err
}

// preload connects to Redis and loads the scripts, so that the first call takes no longer than the others. All accounts share
// their scripts.
func (g *gateway) preload(ctx context.Context) error {
	for _, a := range g.accounts {
		return ratelimit.Preload(ctx, a.claims(1, 1)...)
	}
	return nil
}

func (g *gateway) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		to := &answer{w: w}
		if err := g.complete(to, r); err != nil {
			to.fail(err)
		}
	})
	mux.HandleFunc("GET /{$}", g.page)
	return http.MaxBytesHandler(mux, mostBody)
}

// complete answers a request. One decision takes its place, and estimates of its tokens and its price, or nothing. Do
// extends their leases while the answer comes, and then settles them and frees the place, whatever has happened.
func (g *gateway) complete(to *answer, r *http.Request) error {
	secret, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	a := g.accounts[sha256.Sum256([]byte(secret))]
	if a == nil {
		return &failure{Status: http.StatusUnauthorized, Type: "invalid_request_error", Code: "invalid_api_key", Message: "there is no such API key"}
	}
	req, err := readRequest(r.Body, g.models)
	if err != nil {
		return err
	}
	ctx := r.Context()
	if !req.stream { // the upstream goes on, and bills it, when the client has left
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, mostTime)
	defer cancel()
	c, tokens, money := g.newCall(a, req)
	all, err := ratelimit.TryAcquireAll(context.WithoutCancel(ctx), a.claims(tokens, money)...)
	if err != nil {
		return noDecision(err)
	}
	setFields(to.w.Header(), all.Parts)
	if !all.Allowed {
		return denied(all.Parts)
	}
	c.parts = all.Parts
	var failed error
	err = all.Do(ctx, func(ctx context.Context) error {
		defer func() { g.journal.settling(c, failed) }()
		failed = g.upstream.ask(ctx, to, req, c)
		return failed
	}, c.cost)
	g.journal.settled(c, err, failed)
	return failed
}

// newCall returns a call, and its estimates. Tokens a minute may fall short: the settlement charges the rest, and the key
// waits until this is repaid. So their estimate is what an answer has often. Money must not fall short: a stream begins with
// as little, because it can take more or be cut; any other answer reserves the most that it can cost.
func (g *gateway) newCall(a *account, req *request) (c *call, tokens, money int) {
	c = &call{account: a, id: rand.Text(), model: req.model, price: g.models[req.model]}
	usual := usage{Input: req.input, Output: min(req.most, g.slice)}
	c.slice = max(c.price.of(usage{Output: g.slice}), 1)
	reserve := usual
	if !req.stream {
		reserve.Output = req.most
	}
	money = max(c.price.of(reserve), 1)
	for i := range c.reserved {
		c.reserved[i] = money
	}
	return c, min(usual.total(), a.burst), money
}
