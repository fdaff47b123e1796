// Package redisclient is the one place that asks which Redis client there is.
package redisclient

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit/internal/identity"
)

// A Client sends one command, and waits for its reply. ratelimit.Client is the same interface. It sends
// a command whose NoRetry method returns true at most once.
type Client interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// Merging is what a client has to do beside that, so that waiting calls are sent together. It does not
// use a command after a method has returned.
type Merging interface {
	Client

	// ProcessAll sends all commands together, each at most once too. Each has its own reply or error.
	ProcessAll(ctx context.Context, cmds []redis.Cmder) error

	// Several reports whether keys with different tags may be on different servers.
	Several() bool

	// Server is that of a key, by the key's name in Redis: values are equal if the servers are one. It is
	// for a client of several servers. Before the first reply it may be slow.
	Server(ctx context.Context, key string) (any, error)

	// ProcessOnEach sends a command of its own to each server that has keys.
	ProcessOnEach(ctx context.Context, cmd func() redis.Cmder) error
}

// Of is c with what it can do, or nil if calls of c cannot be sent together.
func Of(c Client) Merging {
	switch c := c.(type) {
	case *redis.Client:
		return single{c}
	case *redis.ClusterClient:
		return cluster{c}
	case *redis.Ring:
		return ring{c}
	case Merging: // of another library, see package otherclient
		return c
	}
	return nil
}

// Check returns an error for a client that cannot run a script: none, a nil pointer, or a pipeline.
func Check(c Client) error {
	if identity.IsNil(c) {
		return errors.New("the client is nil")
	}
	if _, queues := c.(redis.Pipeliner); queues {
		return errors.New("the client is a pipeline, which only queues commands; give the client itself")
	}
	return nil
}

type single struct{ *redis.Client }

func (c single) Several() bool                               { return false }
func (c single) Server(context.Context, string) (any, error) { return c.Client, nil }

func (c single) ProcessAll(ctx context.Context, cmds []redis.Cmder) error {
	return processAll(ctx, c.Pipeline(), cmds)
}

func (c single) ProcessOnEach(ctx context.Context, cmd func() redis.Cmder) error {
	return c.Process(ctx, cmd())
}

type cluster struct{ *redis.ClusterClient }

func (c cluster) Several() bool { return true }

func (c cluster) Server(ctx context.Context, key string) (any, error) {
	return c.MasterForKey(ctx, key)
}

func (c cluster) ProcessAll(ctx context.Context, cmds []redis.Cmder) error {
	return processAll(ctx, c.Pipeline(), cmds)
}

func (c cluster) ProcessOnEach(ctx context.Context, cmd func() redis.Cmder) error {
	return c.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error { return master.Process(ctx, cmd()) })
}

type ring struct{ *redis.Ring }

func (c ring) Several() bool                                     { return true }
func (c ring) Server(_ context.Context, key string) (any, error) { return c.GetShardClientForKey(key) }

func (c ring) ProcessAll(ctx context.Context, cmds []redis.Cmder) error {
	return processAll(ctx, c.Pipeline(), cmds)
}

func (c ring) ProcessOnEach(ctx context.Context, cmd func() redis.Cmder) error {
	return c.ForEachShard(ctx, func(ctx context.Context, shard *redis.Client) error { return shard.Process(ctx, cmd()) })
}

func processAll(ctx context.Context, pipe redis.Pipeliner, cmds []redis.Cmder) error {
	for _, cmd := range cmds {
		_ = pipe.Process(ctx, cmd) // which only queues it
	}
	_, err := pipe.Exec(ctx)
	return err
}
