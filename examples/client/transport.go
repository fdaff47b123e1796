package main

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/tryacquire/ratelimit"
)

const (
	mostTries  = 3
	mostPause  = time.Minute // for a longer pause, the caller gets the denial
	usualPause = time.Second // after a denial that does not say for how long
	mostDrain  = 64 << 10    // bytes of an answer that are read, so that its connection is used again
)

// A transport is an http.RoundTripper that waits until a limiter allows the request, with the
// host as the key, and until the pause that the host has asked for is over. A request that the
// host denies (429, or 503 with Retry-After) is sent again, unless its body cannot be read
// again. If the wait does not end before the request's context, the caller gets the denial, or a
// *ratelimit.WaitError if nothing was sent. If the limiter makes no decision, nothing is sent;
// to change that, put a ratelimit.Fallback around the limiter.
type transport struct {
	base    http.RoundTripper
	limiter ratelimit.Limiter

	mu    sync.Mutex           // guards until
	until map[string]time.Time // by host: nothing is sent before
}

func newTransport(base http.RoundTripper, limiter ratelimit.Limiter) *transport {
	return &transport{base: base, limiter: limiter, until: map[string]time.Time{}}
}

// RoundTrip sends r when its host and the limiter allow it.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, host := r.Context(), r.URL.Host
	for try := 1; ; try++ {
		if err := t.turn(ctx, host); err != nil {
			closeBody(r.Body)
			return nil, err
		}
		resp, err := t.base.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		pause := t.note(host, resp)
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

// turn waits until host and the limiter allow a request.
func (t *transport) turn(ctx context.Context, host string) error {
	for {
		for left := t.left(host); left > 0; left = t.left(host) {
			if left > mostPause || !endsBefore(ctx, left) {
				return &ratelimit.WaitError{Key: host, Wait: left}
			}
			timer := time.NewTimer(left)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return ctx.Err()
			}
		}
		if _, err := ratelimit.Wait(ctx, t.limiter, host); err != nil {
			return err
		}
		if t.left(host) == 0 { // while this request waited, another may have been denied
			return nil
		}
	}
}

// left is how long host still wants no requests.
func (t *transport) left(host string) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	left := max(time.Until(t.until[host]), 0)
	if left == 0 {
		delete(t.until, host)
	}
	return left
}

// note remembers for how long host wants no requests, and returns it.
func (t *transport) note(host string, resp *http.Response) time.Duration {
	now := time.Now()
	pause := announced(resp, now)
	if pause == 0 && denied(resp) {
		pause = usualPause
	}
	if pause > 0 {
		t.mu.Lock()
		defer t.mu.Unlock()
		if until := now.Add(pause); until.After(t.until[host]) {
			t.until[host] = until
		}
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
