package ratelimit

import (
	"context"
	"math"
	"strconv"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit/internal/script"
)

// A call is one execution of a script, with the room for its arguments and its
// reply. Arguments that change are passed as pointers into it, for boxing each
// would allocate.
type call struct {
	once  script.Once
	key   string
	n     int
	now   int64
	args  []any
	words []int64
}

var calls = sync.Pool{New: func() any { return new(call) }}

// alone runs the one or peek script for a single request.
func (c *core) alone(ctx context.Context, s *script.Script, key string, n int) (r Result, err error) {
	if ctx.Done() == nil {
		r, err = c.run(ctx, s, key, n)
	} else {
		r, err = await(ctx, func() (Result, error) { return c.run(ctx, s, key, n) })
	}
	if err != nil {
		return Result{}, c.failed(ctx, key, err)
	}
	return r, nil
}

func (c *core) run(ctx context.Context, s *script.Script, key string, n int) (Result, error) {
	var r *call
	if c.pooled {
		r = calls.Get().(*call)
		defer calls.Put(r)
	} else {
		r = new(call)
	}
	if err := c.ask(ctx, s, c.prefix+key, n, r); err != nil {
		return Result{}, err
	}
	return c.explain(r.words, int64(n), 0), nil
}

// ask runs the one or peek script, for a key by its name in Redis, and leaves its
// words in r.
func (c *core) ask(ctx context.Context, s *script.Script, name string, n int, r *call) error {
	if err := c.prepare(r, s, name, n); err != nil {
		return err
	}
	err := c.receive(ctx, r)
	if script.IsUnknown(err) {
		// Nothing was executed: this is the only error after which a call is
		// sent again, and then with the script.
		copy(r.args, s.Whole)
		err = c.receive(ctx, r)
	}
	return err
}

// prepare fills in the arguments of r, for a key by its name in Redis.
func (c *core) prepare(r *call, s *script.Script, name string, n int) error {
	r.key, r.n = name, n
	r.args = append(append(r.args[:0], s.BySHA...), "1", &r.key)
	if n == 1 {
		r.args = append(r.args, "1")
	} else {
		r.args = append(r.args, &r.n)
	}
	r.args = append(r.args, c.args...)
	if c.clock != nil {
		now, err := c.now()
		if err != nil {
			return err
		}
		r.now = now
		r.args = append(r.args, &r.now)
	}
	return nil
}

func (c *core) receive(ctx context.Context, r *call) error {
	cmd := c.command(ctx, r.args)
	r.once.Cmder = cmd
	err := r.once.Send(ctx, c.client)
	if err == nil {
		r.words, err = c.read(cmd, r.words[:0])
	}
	return err
}

// noReply is what no script replies: a hook of the client may return without an
// error and without having asked, and 0 is how a bucket tells that it is full.
const noReply = math.MinInt64

// unanswered reports whether cmd, which has no error, has no reply either.
func unanswered(cmd redis.Cmder) bool {
	switch cmd := cmd.(type) {
	case *redis.IntCmd:
		return cmd.Val() == noReply
	case *redis.IntSliceCmd:
		return cmd.Val() == nil
	}
	return false
}

// command takes the reply of the one and peek scripts.
func (c *core) command(ctx context.Context, args []any) redis.Cmder {
	if c.packed {
		cmd := redis.NewIntCmd(ctx, args...)
		cmd.SetVal(noReply)
		return cmd
	}
	return redis.NewIntSliceCmd(ctx, args...)
}

// read appends the words of such a reply.
func (c *core) read(cmd redis.Cmder, words []int64) ([]int64, error) {
	if unanswered(cmd) {
		return nil, replyError("the client told of no reply")
	}
	switch cmd := cmd.(type) {
	case *redis.IntCmd:
		words = append(words, make([]int64, c.words)...)
		c.unpack(cmd.Val(), words)
	case *redis.IntSliceCmd:
		if got := len(cmd.Val()); got != c.words {
			return nil, replyError("a reply of " + strconv.Itoa(got) + " integers, not " + strconv.Itoa(c.words))
		}
		words = append(words, cmd.Val()...)
	}
	return words, nil
}

// A replyError is a reply that no script of this package gives.
type replyError string

func (e replyError) Error() string { return string(e) }
