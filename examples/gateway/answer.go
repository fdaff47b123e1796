package main

import (
	"errors"
	"fmt"
	"net/http"
)

var errLeft = errors.New("the client has left")

// An answer is what a client gets: one body, or a stream of events.
type answer struct {
	w         http.ResponseWriter
	streaming bool
}

// event sends an event of a stream.
func (a *answer) event(data []byte) error {
	if !a.streaming {
		a.streaming = true
		a.w.Header().Set("Content-Type", "text/event-stream")
		a.w.Header().Set("Cache-Control", "no-store")
	}
	_, err := a.w.Write(append(append([]byte("data: "), data...), "\n\n"...))
	if err := errors.Join(err, http.NewResponseController(a.w).Flush()); err != nil {
		return fmt.Errorf("%w: %w", errLeft, err)
	}
	return nil
}

// body sends a whole answer.
func (a *answer) body(status int, kind string, body []byte) error {
	a.w.Header().Set("Content-Type", kind)
	a.w.WriteHeader(status)
	_, err := a.w.Write(body)
	return err
}

// fail tells the client of an error. In a stream it is the last event, without the "[DONE]" behind it.
func (a *answer) fail(err error) {
	var f *failure
	if !errors.As(err, &f) {
		f = &failure{Status: http.StatusBadGateway, Type: "server_error", Code: "upstream_failed", Message: "the model has failed"}
	}
	if a.streaming {
		_ = a.event(f.body())
		return
	}
	f.write(a.w)
}
