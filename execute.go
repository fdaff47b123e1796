package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit/internal/script"
)

// execute flies f and brings everybody an outcome, whatever happens: a panic of
// the client's hooks or of the caller's clock is an error, for it would end the
// process here, and so is the end of the goroutine.
func (m *merger) execute(f *flight) {
	defer close(f.landed)
	defer func() {
		err := errEnded
		if r := recover(); r != nil {
			err = panicked(r)
		}
		f.fail(err)
	}()
	ctx, cancel := f.context()
	defer cancel()
	keys := f.waiting()
	switch {
	case len(keys) == 1 && f.single(keys[0]):
		words, err := m.askOne(ctx, f, keys[0])
		m.answer(f, keys[0], words, err)
	case m.apart.Load():
		m.flyApart(ctx, f, keys)
	default:
		m.flyTogether(ctx, f, keys)
	}
}

var errEnded = errors.New("the client ended the goroutine (runtime.Goexit)")

func panicked(r any) error {
	return fmt.Errorf("the client or the clock panicked: %v", r)
}

// flyTogether runs all of f in one execution.
func (m *merger) flyTogether(ctx context.Context, f *flight, keys []int) {
	reply, err := m.askMany(ctx, f, keys)
	if redis.HasErrorPrefix(err, "CROSSSLOT") {
		// The server is one of a cluster, and has executed nothing.
		m.apart.Store(true)
		m.flyApart(ctx, f, keys)
		return
	}
	if err != nil {
		f.fail(err)
		return
	}
	var failed []int
	for _, key := range keys {
		if keyFailed(reply) {
			failed = append(failed, key)
			reply = reply[1:]
			continue
		}
		reply = m.answer(f, key, reply, nil)
	}
	m.askAgain(ctx, f, failed)
}

// keyFailed reports whether the script for many says so of its next key.
func keyFailed(reply []int64) bool { return len(reply) > 0 && reply[0] < 0 }

// askAgain asks for keys that an execution could not read or write and left as
// they were: alone, one call of each learns the reason. It holds for the others
// of the key, and unless it is about what the key holds, for those of all keys.
func (m *merger) askAgain(ctx context.Context, f *flight, keys []int) {
	for _, key := range keys {
		for r := f.pending(key); r != nil; r = f.pending(key) {
			words, err := m.askOne(ctx, f, key)
			if err != nil {
				m.answer(f, key, nil, err)
				if !isCorrupt(err) {
					f.fail(err)
				}
				break
			}
			odd := r.oddity() // the key has been mended meanwhile
			odd.alone = append(odd.alone, words)
			m.askRest(ctx, f, key)
		}
	}
}

// askRest asks for the calls for a key in one execution, and leaves them be if the
// key fails again.
func (m *merger) askRest(ctx context.Context, f *flight, key int) {
	if f.pending(key) == nil {
		return
	}
	reply, err := m.askMany(ctx, f, []int{key})
	if err != nil || !keyFailed(reply) {
		m.answer(f, key, reply, err)
	}
}

// answer brings the calls for a key their part of the reply, or the error, and
// returns the rest of the reply.
func (m *merger) answer(f *flight, key int, reply []int64, err error) []int64 {
	m.learn(err)
	for r := range f.of(key) {
		switch {
		case err != nil:
			r.oddity().err = err
		case len(reply) < m.c.words:
			r.oddity().err = replyError("a reply that ends too soon")
		default:
			r.words, reply = reply[:m.c.words], reply[m.c.words:]
		}
	}
	return reply
}

// askOne asks for the first call for a key by itself.
func (m *merger) askOne(ctx context.Context, f *flight, key int) ([]int64, error) {
	r := calls.Get().(*call)
	defer calls.Put(r)
	if err := m.c.ask(ctx, m.c.one, f.runs[key].key, int(f.pending(key).n), r); err != nil {
		return nil, err
	}
	return slices.Clone(r.words), nil
}

// commands holds the arguments of commands for use again.
var commands = sync.Pool{New: func() any { return new([]any) }}

// askMany asks for all calls for the keys in one execution.
func (m *merger) askMany(ctx context.Context, f *flight, keys []int) ([]int64, error) {
	args := commands.Get().(*[]any)
	defer func() {
		clear(*args)
		commands.Put(args)
	}()
	var err error
	if *args, err = m.c.manyArgs((*args)[:0], f, keys); err != nil {
		return nil, err
	}
	cmd := redis.NewIntSliceCmd(ctx, *args...)
	err = (&script.Once{Cmder: cmd}).Send(ctx, m.c.client)
	if script.IsUnknown(err) { // see ask
		copy(*args, m.c.many.Whole)
		cmd = redis.NewIntSliceCmd(ctx, *args...)
		err = (&script.Once{Cmder: cmd}).Send(ctx, m.c.client)
	}
	return cmd.Val(), err
}

// manyArgs appends the command that runs all calls for the keys in one execution.
func (c *core) manyArgs(args []any, f *flight, keys []int) ([]any, error) {
	args = append(append(args, c.many.BySHA...), strconv.Itoa(len(keys)))
	for _, key := range keys {
		args = append(args, &f.runs[key].key)
	}
	args = append(args, "")
	args = append(args, c.args...)
	for _, key := range keys {
		args = append(args, f.requests(key))
	}
	if c.clock != nil {
		now, err := c.now()
		if err != nil {
			return args, err
		}
		args = append(args, now)
	}
	return args, nil
}
