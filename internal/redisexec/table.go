package redisexec

import (
	"context"

	"github.com/tryacquire/ratelimit/internal/script"
)

// DoTable is [Executor.DoMany] for keys of so many limiters of one algorithm: s is ManyOfSeveral or
// OperationsOfSeveral. request returns also which limiter a key is of, and the Args of its executor.
// They stand once in ARGV. Behind them is for each key how many arguments are in front of those
// of its limiter, and then its requests.
func (e *Executor) DoTable(ctx context.Context, s *script.Script, limiters, keys int, request func(i int) (name *string, requests any, limiter int, args []any)) ([]int64, error) {
	c := e.newCommand()
	defer c.release()
	c.script = s
	c.args = append(append(c.args, s.BySHA...), count(keys))
	names := len(c.args)
	c.args = append(c.args, make([]any, keys)...)
	c.args = append(c.args, "")
	first := len(c.args) // which is ARGV[2]
	lists, begins := make([]any, keys), make([]int, limiters)
	c.begins = c.begins[:0]
	for i := range keys {
		name, requests, limiter, args := request(i)
		c.args[names+i] = name
		if begins[limiter] == 0 {
			begins[limiter] = len(c.args)
			c.args = append(c.args, args...)
		}
		c.begins = append(c.begins, int64(begins[limiter]-first))
		lists[i] = requests
	}
	for i := range c.begins {
		c.args = append(c.args, &c.begins[i])
	}
	c.args = append(c.args, lists...)
	if err := c.addClock(); err != nil {
		return nil, err
	}
	if err := c.run(ctx); err != nil {
		return nil, err
	}
	return c.words, nil
}
