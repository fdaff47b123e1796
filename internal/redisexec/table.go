package redisexec

import (
	"context"

	"github.com/tryacquire/ratelimit/internal/script"
)

// A tableRequest returns what the caller asks of key i, or packed request i, which limiter it is of, and
// the Args of the executor of that limiter.
type tableRequest = func(i int) (name *string, requests any, limiter int, args []any)

// DoTable is [Executor.DoMany] for keys of so many limiters of one algorithm: s is ManyOfSeveral or
// OperationsOfSeveral. The Args of their executors stand once in ARGV. Behind them is for each key how
// many arguments are in front of those of its limiter, and then its requests.
//
// For packed requests it is the same: to so many groups of limiters of the same algorithms.
func (e *Executor) DoTable(ctx context.Context, s *script.Script, limiters, keys int, request tableRequest) ([]int64, error) {
	c := e.newCommand()
	defer c.Release()
	c.script = s
	if e.Several != nil {
		c.severalTable(limiters, keys, request)
	} else {
		c.table(limiters, keys, request)
	}
	if err := c.addClock(); err != nil {
		return nil, err
	}
	if err := c.run(ctx); err != nil {
		return nil, err
	}
	return c.words, nil
}

// table makes c run its script for the requests of so many keys.
func (c *Command) table(limiters, keys int, request tableRequest) {
	names, lists := c.addKeys(keys), make([]any, keys)
	c.args = append(c.args, "") // the next is ARGV[2]
	c.addTable(limiters, keys, func(i int) (int, []any) {
		name, requests, limiter, args := request(i)
		c.args[names+i], lists[i] = name, requests
		return limiter, args
	})
	c.addLimits(keys, names)
	for i := range c.begins {
		c.args = append(c.args, &c.begins[i])
	}
	c.args = append(c.args, lists...)
}

// addTable adds the Args of each limiter that a key is of, once, and notes in c.begins for each key how
// many of them are in front of those of its limiter.
func (c *Command) addTable(limiters, keys int, of func(i int) (limiter int, args []any)) {
	first := len(c.args)
	begins := make([]int, limiters) // in c.args; 0: it is not there yet
	c.begins = c.begins[:0]
	for i := range keys {
		limiter, args := of(i)
		if begins[limiter] == 0 {
			begins[limiter] = len(c.args)
			c.args = append(c.args, args...)
		}
		c.begins = append(c.begins, int64(begins[limiter]-first))
	}
}
