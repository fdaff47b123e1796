package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit/internal/script"
)

// Integers in Lua are exact below 2^53. The bounds keep every sum there.
const (
	exact     = 1 << 53
	maxCount  = 1_000_000_000 // permits of a limit
	maxMicros = 1 << 51       // a window, 71 years; and the caller's clock is below twice that
)

// An explainer tells what the words of a script's reply mean.
type explainer interface {
	// unpack makes words of a reply that is one integer.
	unpack(reply int64, words []int64)
	// explain is the result of request i, from 0, of a run of equal requests
	// for n permits.
	explain(words []int64, n, i int64) Result
}

// core is what the limiters share: everything but the algorithm.
type core struct {
	title  string // the algorithm and the limiter's name, in errors
	prefix string // of the keys in Redis
	client Client
	clock  func() time.Time // nil: the server's
	most   int              // permits that one call can get
	args   []any            // the algorithm's ARGV
	words  int              // of a run's reply
	packed bool             // a single request's reply is one integer
	explainer

	one, peek, many *script.Script
	merger          *merger // nil: every call goes by itself
	pooled          bool    // the client is done with a command when Process returns
}

// An algorithm is what a constructor knows of one.
type algorithm struct {
	title, id string
	scripts   *scripts
	most      int
	args      []string
	words     int
	packed    bool
	explainer
}

func newCore(client Client, s settings, a algorithm) (*core, error) {
	if isNil(client) {
		return nil, invalidConfig("the client is nil")
	}
	if _, ok := client.(redis.Pipeliner); ok {
		return nil, invalidConfig("the client is a pipeline, which only queues commands; give the client itself")
	}
	c := &core{
		title:     fmt.Sprintf("%s %q", a.title, s.name),
		prefix:    keyPrefix(s.prefix, s.name, a.id),
		client:    client,
		clock:     s.clock,
		most:      a.most,
		words:     a.words,
		packed:    a.packed,
		explainer: a.explainer,
	}
	for _, arg := range a.args {
		c.args = append(c.args, arg)
	}
	scripts := a.scripts.get(s.clock != nil)
	c.one, c.peek, c.many = scripts.one, scripts.peek, scripts.many
	switch client.(type) {
	case *redis.Client, *redis.ClusterClient, *redis.Ring:
		c.pooled = true
		if !s.unmerged {
			c.merger = newMerger(c)
		}
	}
	return c, nil
}

// TryAcquire takes one permit from key, if it can be had now: it is
// TryAcquireN(ctx, key, 1).
func (c *core) TryAcquire(ctx context.Context, key string) (Result, error) {
	return c.TryAcquireN(ctx, key, 1)
}

// TryAcquireN takes n permits from key, all or none. Its errors are those of
// [Limiter]; after any that Redis or the way to it is the reason of, the permits may
// have been taken, once.
func (c *core) TryAcquireN(ctx context.Context, key string, n int) (Result, error) {
	if err := c.check(ctx, key, n); err != nil {
		return Result{}, err
	}
	if c.merger != nil {
		return c.merger.acquire(ctx, key, n)
	}
	return c.alone(ctx, c.one, key, n)
}

// Peek tells what TryAcquire would answer now, and changes nothing.
func (c *core) Peek(ctx context.Context, key string) (Result, error) {
	if err := c.check(ctx, key, 1); err != nil {
		return Result{}, err
	}
	return c.alone(ctx, c.peek, key, 1)
}

// Reset forgets key: it is as new. After an error it may be so, too.
func (c *core) Reset(ctx context.Context, key string) error {
	if err := c.check(ctx, key, 1); err != nil {
		return err
	}
	_, err := await(ctx, func() (struct{}, error) {
		unlink := script.Once{Cmder: redis.NewIntCmd(ctx, "unlink", c.prefix+key)}
		return struct{}{}, unlink.Send(ctx, c.client)
	})
	if err != nil {
		return c.failed(ctx, key, err)
	}
	return nil
}

// Preload loads the limiter's scripts, on every master of a ClusterClient and
// every shard of a Ring, so that the first request finds them there. It is never
// needed: a call whose script Redis does not know sends it along.
func (c *core) Preload(ctx context.Context) error {
	if err := c.check(ctx, "preload", 1); err != nil {
		return err
	}
	_, err := await(ctx, func() (struct{}, error) {
		return struct{}{}, c.preload(ctx)
	})
	if err != nil {
		return fmt.Errorf("ratelimit: %s: preload: %w", c.title, ended(ctx, err))
	}
	return nil
}

func (c *core) preload(ctx context.Context) error {
	load := func(ctx context.Context, client Client) error {
		for _, s := range []*script.Script{c.one, c.peek, c.many} {
			load := script.Once{Cmder: redis.NewStringCmd(ctx, "script", "load", s.Source)}
			if err := load.Send(ctx, client); err != nil {
				return err
			}
		}
		return nil
	}
	each := func(ctx context.Context, node *redis.Client) error { return load(ctx, node) }
	switch client := c.client.(type) {
	case *redis.ClusterClient:
		return client.ForEachMaster(ctx, each)
	case *redis.Ring:
		return client.ForEachShard(ctx, each)
	}
	return load(ctx, c.client)
}

// check refuses the mistakes of a caller, and one who is no longer waiting.
func (c *core) check(ctx context.Context, key string, n int) error {
	switch {
	case c == nil:
		return errUnmade
	case key == "":
		return ErrInvalidKey
	case n < 1:
		return fmt.Errorf("%w: %d; ask for at least 1", ErrInvalidPermits, n)
	case n > c.most:
		return fmt.Errorf("%w: %d permits of %s, which allows %d at most", ErrExceedsLimit, n, c.title, c.most)
	}
	if err := ctx.Err(); err != nil {
		return c.failed(ctx, key, err)
	}
	return nil
}

// failed wraps the reason why key got no decision.
func (c *core) failed(ctx context.Context, key string, err error) error {
	if isCorrupt(err) {
		err = errors.Join(ErrCorruptState, err)
	}
	return fmt.Errorf("ratelimit: %s, key %s: %w", c.title, shortKey(key), ended(ctx, err))
}

// isCorrupt reports whether err is about what a key holds. CORRUPT is the scripts'
// own; the last is what INCRBY says of a number that is not written as it would.
func isCorrupt(err error) bool {
	return redis.HasErrorPrefix(err, "CORRUPT") || redis.HasErrorPrefix(err, "WRONGTYPE") ||
		redis.HasErrorPrefix(err, "value is not an integer")
}

// ended joins err with the context's error, if that has ended.
func ended(ctx context.Context, err error) error {
	if end := ctx.Err(); end != nil && !errors.Is(err, end) {
		return errors.Join(err, end)
	}
	return err
}

// now is the caller's clock in microseconds.
func (c *core) now() (int64, error) {
	t := c.clock()
	if now := t.UnixMicro(); now >= 0 && now < 2*maxMicros {
		return now, nil
	}
	return 0, fmt.Errorf("%w: WithClock: the clock reads %v, outside 1970 to 2112", ErrInvalidConfig, t)
}
