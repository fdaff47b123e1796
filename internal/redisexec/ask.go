package redisexec

import (
	"context"

	"github.com/tryacquire/ratelimit/internal/script"
)

// Ask runs a script of the algorithm for one key, whose name in Redis is key. request is
// the script's first argument, and words is how many integers it replies. Ask returns the
// context's error as soon as ctx ends; Redis may then execute the script all the same,
// once.
func (e *Executor) Ask(ctx context.Context, s *script.Script, key, request string, words int) ([]int64, error) {
	reply, err := Await(ctx, func() (Reply, error) {
		c := e.newCommand()
		defer c.release()
		c.script, c.key, c.expect = s, key, words
		c.args = append(append(c.args, s.BySHA...), "1", &c.key, request)
		c.addConfig()
		if err := c.addClock(); err != nil {
			return Reply{}, err
		}
		if err := c.run(ctx); err != nil {
			return Reply{}, err
		}
		return Reply{Words: c.words}, nil
	})
	return reply.Words, err
}

// Run runs a script for one key with these arguments only, and returns its integers, which
// are so many. It is for scripts that do not have the algorithm's arguments. It waits for the
// client even after ctx has ended.
func (e *Executor) Run(ctx context.Context, s *script.Script, words int, key string, args ...any) ([]int64, error) {
	c := e.newCommand()
	defer c.release()
	c.script, c.key, c.expect = s, key, words
	c.args = append(append(append(c.args, s.BySHA...), "1", &c.key), args...)
	if err := c.run(ctx); err != nil {
		return nil, err
	}
	return c.words, nil
}
