package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"sync"
	"time"
)

// A journal has a line with the usage of each call before it is settled, and one afterwards. If its process dies in between,
// that call is in doubt: it may have been settled in each of its budgets or not. Lines are not synced, and so outlive the
// process but not the machine.
type journal struct {
	mu sync.Mutex // guards to
	to io.Writer
}

// An entry is a line of the journal.
type entry struct {
	At      time.Time `json:"at"`
	Call    string    `json:"call"`
	Team    string    `json:"team,omitempty"`
	Key     string    `json:"key,omitempty"`
	Model   string    `json:"model,omitempty"`
	Usage   *usage    `json:"usage,omitempty"`
	Micros  int       `json:"micros"`
	End     string    `json:"end,omitempty"` // complete, cut, cancelled or failed
	Settled bool      `json:"settled,omitempty"`
	Error   string    `json:"error,omitempty"`
}

// settling writes what c has used, and how it ended.
func (j *journal) settling(c *call, failed error) {
	e := entry{Call: c.id, Team: c.team, Key: c.key, Model: c.model, Usage: &c.used, Micros: c.price.of(c.used), End: "complete"}
	switch {
	case failed == nil:
	case errors.Is(failed, context.Canceled), errors.Is(failed, errLeft):
		e.End = "cancelled"
	case c.short != nil && errors.Is(failed, c.short):
		e.End = "cut"
	default:
		e.End, e.Error = "failed", failed.Error()
	}
	j.write(e)
}

// settled says that c was settled, unless the error of Do is another one than that of the call.
func (j *journal) settled(c *call, err, failed error) {
	e := entry{Call: c.id, Micros: c.price.of(c.used), Settled: err == failed}
	if !e.Settled {
		e.Error = err.Error()
	}
	j.write(e)
}

// write writes the whole line at once.
func (j *journal) write(e entry) {
	e.At = time.Now()
	line, err := json.Marshal(e)
	j.mu.Lock()
	defer j.mu.Unlock()
	if err == nil {
		_, err = j.to.Write(append(line, '\n'))
	}
	if err != nil {
		log.Print(err)
	}
}
