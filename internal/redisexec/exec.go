// Package redisexec runs the scripts of one limiter on Redis: it builds the
// command, sends it at most once, and checks the reply.
package redisexec

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit/internal/script"
)

// An Executor runs the scripts of one limiter. Its fields do not change once it is
// in use.
type Executor struct {
	Client          Client
	One, Peek, Many *script.Script // for one request; to look; for many requests
	Args            []any          // the algorithm's ARGV
	Words           int            // of the reply to a run of equal requests

	// Unpack makes words of the reply of One and Peek where that is one integer.
	// Where it is nil, the reply is an array of the words.
	Unpack func(reply int64, words []int64)

	// Now reads the caller's clock, in microseconds; nil: the server's clock decides.
	Now func() (int64, error)

	// Pooled reports that the client does not use a command once Process has
	// returned, so that the command's arguments can be used again.
	Pooled bool
}

// A Reply is what a script answered to a run of equal requests, and the place of
// one request in that run.
type Reply struct {
	Words []int64
	Index int64 // of the request, from 0

	command *Command // holds Words; nil: nothing to give back
}

// Done gives the reply's memory back. Words must not be used after it.
func (r Reply) Done() {
	if r.command != nil {
		r.command.release()
	}
}

// Keep gives the reply's memory back and returns the words, which are then the
// caller's to keep.
func (r Reply) Keep() []int64 {
	words := r.Words
	if r.command != nil {
		if r.command.exec.Unpack != nil { // they are in the command
			words = slices.Clone(words)
		}
		r.command.release()
	}
	return words
}

// Call runs One or Peek for n permits of the key, by its name in Redis. It returns
// the context's error as soon as ctx ends; Redis may then execute the script all the
// same, once. The caller calls Done on the reply.
func (e *Executor) Call(ctx context.Context, s *script.Script, key string, n int) (Reply, error) {
	if ctx.Done() == nil {
		return e.Do(ctx, s, key, n)
	}
	return await(ctx, func() (Reply, error) { return e.Do(ctx, s, key, n) })
}

// Do is Call, but takes as long as the client does.
func (e *Executor) Do(ctx context.Context, s *script.Script, key string, n int) (Reply, error) {
	c := e.newCommand()
	err := c.one(s, key, n)
	if err == nil {
		err = c.run(ctx)
	}
	if err != nil {
		c.release()
		return Reply{}, err
	}
	return Reply{Words: c.words, command: c}, nil
}

// DoMany runs Many for the requests of so many keys, and takes as long as the client
// does. request returns the name of key i in Redis and the requests for it, as
// many.lua reads them. The words are the caller's to keep.
func (e *Executor) DoMany(ctx context.Context, keys int, request func(i int) (name *string, requests any)) ([]int64, error) {
	c := e.newCommand()
	defer c.release()
	if err := c.many(keys, request); err != nil {
		return nil, err
	}
	if err := c.run(ctx); err != nil {
		return nil, err
	}
	return c.words, nil
}

// Delete deletes the key. It returns the context's error as soon as ctx ends.
func (e *Executor) Delete(ctx context.Context, key string) error {
	_, err := await(ctx, func() (struct{}, error) {
		unlink := Once{redis.NewIntCmd(ctx, "unlink", key)}
		return struct{}{}, unlink.Send(ctx, e.Client)
	})
	return err
}

// Load loads the scripts, on every master of a cluster and every shard of a ring. It
// returns the context's error as soon as ctx ends.
func (e *Executor) Load(ctx context.Context) error {
	_, err := await(ctx, func() (struct{}, error) {
		each := func(ctx context.Context, node *redis.Client) error { return e.load(ctx, node) }
		switch client := e.Client.(type) {
		case *redis.ClusterClient:
			return struct{}{}, client.ForEachMaster(ctx, each)
		case *redis.Ring:
			return struct{}{}, client.ForEachShard(ctx, each)
		}
		return struct{}{}, e.load(ctx, e.Client)
	})
	return err
}

func (e *Executor) load(ctx context.Context, client Client) error {
	for _, s := range []*script.Script{e.One, e.Peek, e.Many} {
		load := Once{redis.NewStringCmd(ctx, "script", "load", s.Source)}
		if err := load.Send(ctx, client); err != nil {
			return err
		}
	}
	return nil
}
