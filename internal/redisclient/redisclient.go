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
// use a command after Process or Exec has returned.
type Merging interface {
	Client

	// Begin begins a pipeline. Its commands are sent at most once too.
	Begin() Pipeline

	// Several reports whether keys with different tags may be on different servers.
	Several() bool

	// Server is that of a key, by the key's name in Redis: values are equal if the servers are one. It is
	// for a client of several servers. Before the first reply it may be slow.
	Server(ctx context.Context, key string) (any, error)

	// Each has do called for each server that has keys.
	Each(ctx context.Context, do func(ctx context.Context, server Client) error) error
}

// A Pipeline is commands that are sent together: Process adds one, Exec sends all.
type Pipeline interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Exec(ctx context.Context) ([]redis.Cmder, error)
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

func (c single) Begin() Pipeline                             { return c.Pipeline() }
func (c single) Several() bool                               { return false }
func (c single) Server(context.Context, string) (any, error) { return c.Client, nil }

func (c single) Each(ctx context.Context, do func(ctx context.Context, server Client) error) error {
	return do(ctx, c.Client)
}

type cluster struct{ *redis.ClusterClient }

func (c cluster) Begin() Pipeline { return c.Pipeline() }
func (c cluster) Several() bool   { return true }

func (c cluster) Server(ctx context.Context, key string) (any, error) {
	return c.MasterForKey(ctx, key)
}

func (c cluster) Each(ctx context.Context, do func(ctx context.Context, server Client) error) error {
	return c.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error { return do(ctx, master) })
}

type ring struct{ *redis.Ring }

func (c ring) Begin() Pipeline                                   { return c.Pipeline() }
func (c ring) Several() bool                                     { return true }
func (c ring) Server(_ context.Context, key string) (any, error) { return c.GetShardClientForKey(key) }

func (c ring) Each(ctx context.Context, do func(ctx context.Context, server Client) error) error {
	return c.ForEachShard(ctx, func(ctx context.Context, shard *redis.Client) error { return do(ctx, shard) })
}
