package ratelimit

import (
	"context"

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
		m.send(ctx, legs)
		var unknown []leg
		for _, l := range legs {
			words, err := l.reply(m.c)
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
	err    error // its own
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

// send sends the legs and leaves each its command and error.
func (m *merger) send(ctx context.Context, legs []leg) {
	pipe := m.fleet.Pipeline()
	sent := make([]script.Once, len(legs))
	for i := range legs {
		l := &legs[i]
		if l.script == m.c.one {
			l.cmd = m.c.command(ctx, l.args)
		} else {
			l.cmd = redis.NewIntSliceCmd(ctx, l.args...)
		}
		sent[i].Cmder = l.cmd
		_ = pipe.Process(ctx, &sent[i])
	}
	_, err := pipe.Exec(ctx)
	for i := range legs {
		legs[i].err = sent[i].Outcome(err)
	}
}

// reply is what came back.
func (l *leg) reply(c *core) ([]int64, error) {
	if l.err != nil {
		return nil, l.err
	}
	if l.script == c.one {
		return c.read(l.cmd, nil)
	}
	return l.cmd.(*redis.IntSliceCmd).Val(), nil
}
