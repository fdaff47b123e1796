package main

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"slices"
	"time"

	"github.com/tryacquire/ratelimit"
)

const (
	mostTries  = 3
	mostPause  = time.Minute // for a longer pause, the caller gets the denial
	usualPause = time.Second // after a denial that does not say for how long
	probeTime  = time.Second // for which the others wait for the request that goes first
	noteTime   = time.Second // that it may take to tell the others

	longestPause = 24 * time.Hour

	mostDrain = 64 << 10 // bytes of an answer that are read, so that its connection is used again
)

// A transport is an http.RoundTripper that waits until a limiter allows the request, with the host as the key, and
// until the pause that the host has asked for is over, whichever process it has told. Then one request goes first, and
// the others follow its success. A request that the host denies (429, or 503 with Retry-After) is sent again, unless its
// body cannot be read again. If the wait does not end before the request's context, the caller gets the denial, or a
// *ratelimit.WaitError if nothing was sent. If the limiter makes no decision, nothing is sent; to change that, put a
// ratelimit.Fallback around the limiter. While Redis is down, a process keeps the pauses that it knows.
type transport struct {
	base    http.RoundTripper
	limiter ratelimit.Limiter
	pause   *ratelimit.DenyCache
	lower   func(ctx context.Context, host string, left int) error // if not nil, what a host says is left lowers the limiter
}

func newTransport(base http.RoundTripper, limiter ratelimit.Limiter, client ratelimit.Client) (*transport, error) {
	pause, err := ratelimit.NewPause(client, ratelimit.WithName("upstream"), ratelimit.WithProbe(probeTime))
	if err != nil {
		return nil, err
	}
	outage, err := ratelimit.NewFallback(pause, ratelimit.AllowAll())
	if err != nil {
		return nil, err
	}
	cache, err := ratelimit.NewDenyCache(outage)
	return &transport{base: base, limiter: limiter, pause: cache}, err
}

// lowering returns a function that takes from a token bucket what is more than left. It never gives any back: a host does
// not count yet what is on its way. opts are those of the bucket.
func lowering(client ratelimit.Client, rate ratelimit.Rate, burst int, opts ...ratelimit.Option) func(ctx context.Context, host string, left int) error {
	return func(ctx context.Context, host string, left int) error {
		if left >= burst {
			return nil
		}
		rest, err := ratelimit.NewTokenBucket(client, rate, burst, append(slices.Clip(opts), ratelimit.WithHeadroom(left))...)
		if err != nil {
			return err
		}
		_, _, err = rest.TryAcquireUpTo(ctx, host, burst) // all but the headroom
		return err
	}
}

// RoundTrip sends r when its host and the limiter allow it.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, host := r.Context(), r.URL.Host
	for try := 1; ; try++ {
		turn, err := t.turn(ctx, host)
		if err != nil {
			closeBody(r.Body)
			return nil, err
		}
		resp, err := t.base.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		pause := t.note(ctx, host, resp, turn)
		again := denied(resp) && try < mostTries && pause <= mostPause && endsBefore(ctx, pause)
		if !again {
			return resp, nil
		}
		next, ok := replay(r)
		if !ok {
			return resp, nil
		}
		_, _ = io.CopyN(io.Discard, resp.Body, mostDrain)
		resp.Body.Close()
		r = next
	}
}

// turn waits until host and the limiter allow a request. It returns the answer of the pause.
func (t *transport) turn(ctx context.Context, host string) (ratelimit.Result, error) {
	if err := t.wait(ctx, host, t.pause.Peek); err != nil { // before a permit is taken
		return ratelimit.Result{}, err
	}
	if _, err := ratelimit.Wait(ctx, t.limiter, host); err != nil {
		return ratelimit.Result{}, err
	}
	var turn ratelimit.Result
	err := t.wait(ctx, host, func(ctx context.Context, host string) (r ratelimit.Result, err error) {
		turn, err = t.pause.TryAcquire(ctx, host) // while this request waited, another may have been denied
		return turn, err
	})
	return turn, err
}

// wait asks until host is not paused.
func (t *transport) wait(ctx context.Context, host string, ask func(context.Context, string) (ratelimit.Result, error)) error {
	for {
		r, err := ask(ctx, host)
		if err != nil || r.Allowed {
			return err
		}
		if r.RetryAfter > mostPause || !endsBefore(ctx, r.RetryAfter) {
			return &ratelimit.WaitError{Key: host, Wait: r.RetryAfter}
		}
		timer := time.NewTimer(r.RetryAfter)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// note tells all processes for how long host wants no requests, and returns it. If the request went first after a
// pause, and has succeeded, the others may follow.
func (t *transport) note(ctx context.Context, host string, resp *http.Response, turn ratelimit.Result) time.Duration {
	pause := announced(resp, time.Now())
	if pause == 0 && denied(resp) {
		pause = usualPause
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTime)
	defer cancel()
	var err error
	switch {
	case pause > 0:
		_, err = t.pause.Pause(ctx, host, min(pause, longestPause))
	case !turn.Unlimited():
		err = t.pause.Resume(ctx, host)
	}
	if n, ok := left(resp); ok && t.lower != nil {
		err = errors.Join(err, t.lower(ctx, host, n))
	}
	if err != nil { // this process knows, and the others learn it from their own requests
		log.Print(err)
	}
	return pause
}

// endsBefore reports whether a pause ends before ctx does.
func endsBefore(ctx context.Context, pause time.Duration) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() == nil && (!ok || time.Until(deadline) > pause)
}

// denied reports whether resp asks to try again later.
func denied(resp *http.Response) bool {
	return resp.StatusCode == http.StatusTooManyRequests ||
		resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") != ""
}

// replay returns r with a new body, if the body can be read again.
func replay(r *http.Request) (*http.Request, bool) {
	next := r.Clone(r.Context())
	if r.Body == nil || r.Body == http.NoBody {
		return next, true
	}
	if r.GetBody == nil {
		return nil, false
	}
	body, err := r.GetBody()
	next.Body = body
	return next, err == nil
}

func closeBody(body io.ReadCloser) {
	if body != nil {
		body.Close()
	}
}
