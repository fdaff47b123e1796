package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"strconv"
	"time"

	"github.com/tryacquire/ratelimit"
)

// An upstream serves the models.
type upstream struct {
	client *http.Client
	url    string
	secret string
	pause  *ratelimit.Pause
}

const (
	probeTime  = 5 * time.Second // for which others wait for the call that goes first after a pause
	usualPause = time.Second     // after a 429 that does not say for how long, or says less
	mostPause  = time.Hour
	noteTime   = time.Second // that it may take to tell the other processes
)

// ask sends a request, and passes the answer on. c counts what it uses.
func (u *upstream) ask(ctx context.Context, to *answer, req *request, c *call) error {
	body, err := json.Marshal(req.fields)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, "POST", u.url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	if u.secret != "" {
		r.Header.Set("Authorization", "Bearer "+u.secret)
	}
	resp, err := u.client.Do(r)
	if err != nil {
		if ctx.Err() != nil { // the upstream reads the prompt, and bills it
			c.used.Input = req.input
		}
		return err
	}
	defer resp.Body.Close()
	if err := u.note(ctx, resp, c.parts[upstreamPart].Result); err != nil {
		return err
	}
	switch status := resp.StatusCode; {
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status != http.StatusOK && status < 400:
		return fmt.Errorf("the upstream answers with %s", resp.Status) // this is about its own key or address, and no client's
	case status != http.StatusOK:
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		_ = to.body(status, resp.Header.Get("Content-Type"), text)
		return nil
	}
	c.used.Input = req.input // until the upstream says it
	if req.stream {
		return stream(ctx, to, resp.Body, c)
	}
	return whole(to, resp.Body, req.most, c)
}

// note stops the calls of all processes if the upstream asks for that. The error is then that of the call. After the pause one
// call goes first; if it succeeds, the others may follow.
func (u *upstream) note(ctx context.Context, resp *http.Response, turn ratelimit.Result) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTime)
	defer cancel()
	text := resp.Header.Get("Retry-After")
	if resp.StatusCode != http.StatusTooManyRequests && (resp.StatusCode != http.StatusServiceUnavailable || text == "") {
		if !turn.Unlimited() {
			if err := u.pause.Resume(ctx, tag); err != nil {
				log.Print(err)
			}
		}
		return nil
	}
	d := usualPause
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		d = time.Duration(seconds) * time.Second
	} else if date, err := http.ParseTime(text); err == nil {
		d = time.Until(date)
	}
	d = min(max(d, usualPause), mostPause)
	r, err := u.pause.Pause(ctx, tag, d)
	if err != nil { // others learn it from their own calls
		log.Print(err)
		r.RetryAfter = d
	}
	return denied([]ratelimit.PartResult{{Name: u.pause.Name(), Result: ratelimit.Result{RetryAfter: r.RetryAfter}}})
}

// whole passes on an answer that comes at once, of so many tokens at most. Without a usage, its length says what it has used.
func whole(to *answer, from io.Reader, most int, c *call) error {
	body, err := io.ReadAll(from)
	c.used.Output = min(len(body)/bytesOfToken, most)
	if err != nil {
		return err
	}
	var got chunk
	if err := json.Unmarshal(body, &got); err != nil {
		return fmt.Errorf("the answer is not JSON: %w", err)
	}
	if got.Usage != nil {
		c.used = got.Usage.checked()
	}
	_ = to.body(http.StatusOK, "application/json", body) // a client that has left pays for it
	return nil
}

// stream passes on an answer as it comes. It ends early if the client leaves, or if a budget denies what it needs next.
func stream(ctx context.Context, to *answer, from io.Reader, c *call) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data:"))
		if !ok {
			continue
		}
		data = bytes.TrimPrefix(data, []byte(" "))
		var part chunk
		if done := string(data) == "[DONE]"; done {
			return to.event(data)
		}
		if err := json.Unmarshal(data, &part); err != nil {
			return fmt.Errorf("an event is not JSON: %w", err)
		}
		cut := c.count(ctx, part)
		if err := errors.Join(to.event(data), cut); err != nil {
			return err
		}
	}
	return errors.Join(lines.Err(), io.ErrUnexpectedEOF)
}
