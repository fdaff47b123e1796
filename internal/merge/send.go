package merge

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit/internal/await"
	"github.com/tryacquire/ratelimit/internal/errclass"
	"github.com/tryacquire/ratelimit/internal/redisclient"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/script"
)

// A sender executes batches.
type sender struct {
	client    redisclient.Merging
	pipelined atomic.Bool // keys may be on several servers: each key has its own execution, in a pipeline
	answered  atomic.Bool // a server has answered
}

func newSender(client redisclient.Client) *sender { return &sender{client: redisclient.Of(client)} }

// learn notes that a server has answered, if err is nil.
func (s *sender) learn(err error) {
	if err == nil && !s.answered.Load() {
		s.answered.Store(true)
	}
}

// sendOne executes a call on its own.
func (s *sender) sendOne(ctx context.Context, exec *redisexec.Executor, name string, o redisexec.Operation) (redisexec.Reply, error) {
	reply, err := exec.Operate(ctx, name, o)
	s.learn(err)
	return reply, err
}

// send executes b and gives every call an outcome, whatever happens. A panic in the client's
// hooks or in the caller's clock becomes an error, because it would end the process here; so
// does a hook that ends the goroutine.
func (s *sender) send(b *batch) {
	defer close(b.done)
	ctx, cancel := b.context()
	defer cancel()
	defer func() { b.fail(await.Unfinished(recover())) }()
	keys := b.pendingKeys()
	switch {
	case len(keys) == 1 && b.single(keys[0]):
		words, err := s.askRun(ctx, b, keys[0])
		s.answer(b, keys[0], words, err)
	case s.pipelined.Load():
		s.sendPipelined(ctx, b, keys)
	default: // all of b in one execution
		words, err := s.askMany(ctx, b, keys)
		s.settle(ctx, b, keys, words, err)
	}
}

// settle gives the calls of an execution for several keys their outcomes.
func (s *sender) settle(ctx context.Context, b *batch, keys []int, words []int64, err error) {
	if redis.HasErrorPrefix(err, "CROSSSLOT") {
		// The server is a node of a cluster, and has executed nothing.
		s.pipelined.Store(true)
		s.sendPipelined(ctx, b, keys)
		return
	}
	if redisexec.ForbidsAKey(err) {
		// The server has executed nothing because of one key, which may be another caller's.
		s.sendPipelined(ctx, b, keys)
		return
	}
	if err != nil {
		b.fail(err)
		return
	}
	var failed, later []int
	first := b.firstOf(keys[0])
	for _, key := range keys {
		words, err = s.answer(b, key, words, nil)
		switch {
		case err == errLate && b.firstOf(keys[0]) != first: // the execution has done something
			later = append(later, key)
		case err != nil:
			failed = append(failed, key)
		}
	}
	s.askAgain(ctx, b, failed)
	later = slices.DeleteFunc(later, func(key int) bool { return b.firstOf(key) == nil }) // they failed with the others
	if len(later) > 0 {
		words, err := s.askMany(ctx, b, later)
		s.settle(ctx, b, later, words, err)
	}
}

// askAgain handles keys that an execution could not read or write, and left as they
// were. It executes the first pending run of each key on its own, to learn the error. That
// error is the outcome of the other calls for the key too and, unless it is about these alone,
// of the pending calls for all keys.
func (s *sender) askAgain(ctx context.Context, b *batch, keys []int) {
	for _, key := range keys {
		for r := b.firstOf(key); r != nil; r = b.firstOf(key) {
			words, err := s.askRun(ctx, b, key)
			if err != nil {
				_, _ = s.answer(b, key, nil, err)
				if !errclass.IsOfOneCall(err) {
					b.fail(err)
				}
				break
			}
			r.words = words // the key has been repaired since the first execution
			s.askRest(ctx, b, key)
		}
	}
}

// askRest executes the pending calls for a key together, and leaves them pending if the
// key fails again.
func (s *sender) askRest(ctx context.Context, b *batch, key int) {
	if b.firstOf(key) == nil {
		return
	}
	words, err := s.askMany(ctx, b, []int{key})
	_, _ = s.answer(b, key, words, err)
}

// answer gives the pending calls for a key their words of the reply, or the error, and
// returns the rest of the reply. It returns errKey, and leaves calls pending, if the reply
// says that the key failed before they were decided, and errLate if the execution had no time for them.
func (s *sender) answer(b *batch, key int, reply []int64, err error) (rest []int64, failed error) {
	s.learn(err)
	exec := b.limitOf(key).Exec
	for r := range b.runsOf(key) {
		words := exec.WordsOf(r.op, reply)
		switch {
		case err != nil:
			r.except().err = err
		case len(reply) > 0 && reply[0] == late:
			return reply[1:], errLate
		case len(reply) > 0 && reply[0] < 0:
			return reply[1:], errKey
		case len(reply) < words:
			r.except().err = errShortReply
		default:
			r.words, reply = reply[:words], reply[words:]
		}
	}
	return reply, nil
}

// errKey stands for an error that one run on its own replies.
const errKey = redisexec.ReplyError("the key failed")

// late is in place of a key's words if the keys before it took too long.
const late = -2

const errLate = redisexec.ReplyError("no time was left for the key")

const errShortReply = redisexec.ReplyError("a reply that ends too soon")

// askRun executes the first pending run for a key on its own.
func (s *sender) askRun(ctx context.Context, b *batch, key int) ([]int64, error) {
	reply, err := b.limitOf(key).Exec.Operate(ctx, b.runs[key].key, b.firstOf(key).operation())
	if err != nil {
		return nil, err
	}
	return reply.Keep(), nil
}

// askMany executes the pending calls for the keys together.
func (s *sender) askMany(ctx context.Context, b *batch, keys []int) ([]int64, error) {
	first := b.limitOf(keys[0])
	for _, key := range keys {
		if b.limitOf(key) != first {
			return s.askTable(ctx, b, keys)
		}
	}
	return first.Exec.DoMany(ctx, b.scriptOf(first.Exec), len(keys), func(i int) (*string, any) {
		return &b.runs[keys[i]].key, b.requests(keys[i])
	})
}

// askTable is askMany for keys of several limits.
func (s *sender) askTable(ctx context.Context, b *batch, keys []int) ([]int64, error) {
	exec := b.limits[0].Exec
	table := exec.ManyOfSeveral
	if b.mixed {
		table = exec.OperationsOfSeveral
	}
	return exec.DoTable(ctx, table, len(b.limits), len(keys), func(i int) (name *string, requests any, limit int, args []any) {
		limit = int(b.runs[keys[i]].limit)
		return &b.runs[keys[i]].key, b.requests(keys[i]), limit, b.limits[limit].Exec.Args
	})
}

// scriptOf is the script for keys of b of one limit.
func (b *batch) scriptOf(exec *redisexec.Executor) *script.Script {
	if b.mixed {
		return exec.Operations
	}
	return exec.Many
}
