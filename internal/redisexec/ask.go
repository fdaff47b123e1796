package redisexec

import (
	"context"

	"github.com/tryacquire/ratelimit/internal/script"
)

// Run runs a script for one key with these arguments only, and returns its integers, which
// are so many. It is for scripts that do not have the algorithm's arguments. It waits for the
// client even after ctx has ended.
func (e *Executor) Run(ctx context.Context, s *script.Script, words int, key string, args ...any) ([]int64, error) {
	c := e.newCommand()
	defer c.release()
	c.script, c.key = s, key
	c.args = append(append(append(c.args, s.BySHA...), "1", &c.key), args...)
	if err := c.run(ctx); err != nil {
		return nil, err
	}
	if got := len(c.words); got != words {
		return nil, wrongSize(got, words)
	}
	return c.words, nil
}
