package ratelimit

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit/internal/script"
)

// flyApart runs each key of f in an execution of its own, in one pipeline for
// each server.
func (m *merger) flyApart(ctx context.Context, f *flight, keys []int) {
	legs := make([]leg, len(keys))
	for i, key := range keys {
		if err := legs[i].prepare(m.c, f, key); err != nil { // of the clock
			f.fail(err)
			return
		}
	}
	var failed []int
	for len(legs) > 0 {
		unsent := m.send(ctx, legs)
		var unknown []leg
		for _, l := range legs {
			words, err := l.reply(m.c, unsent)
			switch {
			case script.IsUnknown(err) && l.args[0] == l.script.BySHA[0]:
				unknown = append(unknown, l)
			case err == nil && l.script == m.c.many && keyFailed(words):
				failed = append(failed, l.key)
			default:
				m.answer(f, l.key, words, err)
			}
		}
		legs = unknown
		// Nothing of these was executed. The first takes its script along; those
		// behind it in its server's pipeline find it there.
		if len(legs) > 0 {
			copy(legs[0].args, legs[0].script.Whole)
		}
	}
	m.askAgain(ctx, f, failed)
}

// A leg is the calls for one key of a flight whose keys live on several servers.
type leg struct {
	key    int            // index of its first run
	script *script.Script // for one call, or for many
	args   []any
	cmd    redis.Cmder
}

// prepare makes l that of the key.
func (l *leg) prepare(c *core, f *flight, key int) (err error) {
	l.key = key
	if f.single(key) {
		var r call
		err = c.prepare(&r, c.one, f.runs[key].key, int(f.pending(key).n))
		l.script, l.args = c.one, r.args
		return err
	}
	l.script = c.many
	l.args, err = c.manyArgs(nil, f, []int{key})
	return err
}

// send sends the legs and leaves each its command. The error says why some may not
// know theirs.
func (m *merger) send(ctx context.Context, legs []leg) error {
	pipe := m.fleet.Pipeline()
	for i := range legs {
		l := &legs[i]
		if l.script == m.c.one {
			l.cmd = m.c.command(ctx, l.args)
		} else {
			l.cmd = redis.NewIntSliceCmd(ctx, l.args...)
		}
		_ = pipe.Process(ctx, &script.Once{Cmder: l.cmd})
	}
	_, err := pipe.Exec(ctx)
	return err
}

// reply is what came back from a pipeline that ended with err.
func (l *leg) reply(c *core, err error) ([]int64, error) {
	switch {
	case l.cmd.Err() != nil:
		return nil, l.cmd.Err()
	case unanswered(l.cmd) && (err == nil || errors.As(err, new(redis.Error))): // that is the reply to another
		return nil, errors.New("the client did not send the command")
	case unanswered(l.cmd):
		return nil, err
	}
	if l.script == c.one {
		return c.read(l.cmd, nil)
	}
	return l.cmd.(*redis.IntSliceCmd).Val(), nil
}
