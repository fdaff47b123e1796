package fakes

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
)

// A Processor is a client, as limiters use one.
type Processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// A Client is a function in place of a client. Limiters share what they have by their client, so it is a pointer.
type Client struct {
	process func(ctx context.Context, cmd redis.Cmder) error
	count   atomic.Int32
}

// NewClient returns a client whose commands the function processes.
func NewClient(process func(ctx context.Context, cmd redis.Cmder) error) *Client {
	return &Client{process: process}
}

// Process calls the function.
func (c *Client) Process(ctx context.Context, cmd redis.Cmder) error {
	c.count.Add(1)
	return c.process(ctx, cmd)
}

// Count returns how many commands the client was given.
func (c *Client) Count() int { return int(c.count.Load()) }

// Failing returns a client whose commands all fail.
func Failing(err error) *Client {
	return NewClient(func(_ context.Context, cmd redis.Cmder) error {
		cmd.SetErr(err)
		return err
	})
}

// Offline returns a client that must not be asked: the test fails if it is.
func Offline(t testing.TB) *Client {
	return NewClient(func(context.Context, redis.Cmder) error {
		t.Error("Redis was asked")
		return errors.New("offline")
	})
}

// Before returns a client that calls do before each command, which is not sent if do returns an error.
func Before(client Processor, do func(ctx context.Context, cmd redis.Cmder) error) *Client {
	return NewClient(func(ctx context.Context, cmd redis.Cmder) error {
		if err := do(ctx, cmd); err != nil {
			cmd.SetErr(err)
			return err
		}
		return client.Process(ctx, cmd)
	})
}

// Losing returns a client that executes each command, and then loses its reply if lose returns an error.
func Losing(client Processor, lose func(cmd redis.Cmder) error) *Client {
	return NewClient(func(ctx context.Context, cmd redis.Cmder) error {
		err := client.Process(ctx, cmd)
		if err == nil {
			_ = cmd.Err() // waits for the reply, also on a deferred AutoPipeliner
			if err = lose(cmd); err != nil {
				cmd.SetErr(err)
			}
		}
		return err
	})
}

// Gate returns a client whose first commands wait until open is called, and then fail. The others pass at once.
func Gate(client Processor, first int32) (gated *Client, open func()) {
	var commands atomic.Int32
	opened := make(chan struct{})
	return Before(client, func(context.Context, redis.Cmder) error {
		if commands.Add(1) > first {
			return nil
		}
		<-opened
		return redis.ErrPoolTimeout // which says that Redis has seen nothing of it
	}), func() { close(opened) }
}

// IsScript says whether a command runs a script.
func IsScript(cmd redis.Cmder) bool { return cmd.Name() == "evalsha" || cmd.Name() == "eval" }

// A Hook is what a client of go-redis does with each command, and with each pipeline; nil: as it would.
type Hook struct {
	Command  func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error
	Pipeline func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error
}

// DialHook changes nothing.
func (Hook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook calls Command.
func (h Hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	if h.Command == nil {
		return next
	}
	return func(ctx context.Context, cmd redis.Cmder) error { return h.Command(ctx, cmd, next) }
}

// ProcessPipelineHook calls Pipeline.
func (h Hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	if h.Pipeline == nil {
		return next
	}
	return func(ctx context.Context, cmds []redis.Cmder) error { return h.Pipeline(ctx, cmds, next) }
}

// Counting returns a hook that reports each command and each pipeline before it is sent.
func Counting(count func(cmds ...redis.Cmder)) Hook {
	return Hook{
		Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			count(cmd)
			return next(ctx, cmd)
		},
		Pipeline: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
			count(cmds...)
			return next(ctx, cmds)
		},
	}
}

// A Relay is a client that can be used in a synctest bubble, though its commands go over a network: another goroutine
// sends them, one at a time.
type Relay struct {
	mu   sync.Mutex // guards both channels
	cmds chan redis.Cmder
	errs chan error
}

// NewRelay returns a relay to a client. Stop it.
func NewRelay(client Processor) *Relay {
	r := &Relay{cmds: make(chan redis.Cmder), errs: make(chan error)}
	go func() {
		for cmd := range r.cmds {
			r.errs <- client.Process(context.Background(), cmd)
		}
	}()
	return r
}

// Process has the command sent.
func (r *Relay) Process(_ context.Context, cmd redis.Cmder) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cmds <- cmd
	return <-r.errs
}

// Stop ends the goroutine.
func (r *Relay) Stop() { close(r.cmds) }
