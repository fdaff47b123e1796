package ratelimit

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit/internal/script"
)

// execute flies f and brings everybody an answer, whatever happens: a panic of
// the client's hooks or of the caller's clock is an error, for it would end the
// process here.
func (m *merger) execute(f *flight) {
	defer func() {
		if r := recover(); r != nil {
			for i := range f.groups {
				m.answer(&f.groups[i], nil, panicked(r))
			}
		}
	}()
	switch {
	case f.seats == 1:
		m.flyAlone(f)
	case m.apart.Load():
		m.flyApart(f)
	default:
		m.flyTogether(f)
	}
}

func panicked(r any) error {
	return fmt.Errorf("the client or the clock panicked: %v", r)
}

// flyAlone sends a single call by itself.
func (m *merger) flyAlone(f *flight) {
	g := &f.groups[0]
	words, err := m.askOne(g.first.ctx, g)
	m.answer(g, words, err)
}

// askOne asks for the first call of g by itself.
func (m *merger) askOne(ctx context.Context, g *group) ([]int64, error) {
	r := calls.Get().(*call)
	defer calls.Put(r)
	if err := m.c.ask(ctx, m.c.one, g.first.key, g.first.n, r); err != nil {
		return nil, err
	}
	return slices.Clone(r.words), nil
}

// flyTogether runs all of f in one execution.
func (m *merger) flyTogether(f *flight) {
	ctx := f.context()
	args, err := m.c.manyArgs(f.args[:0], f.groups)
	f.args = args
	var reply []int64
	if err == nil {
		reply, err = m.c.askMany(ctx, args)
	}
	if redis.HasErrorPrefix(err, "CROSSSLOT") {
		// The server is one of a cluster, and has executed nothing.
		m.apart.Store(true)
		m.flyApart(f)
		return
	}
	var failed []*group
	for i := range f.groups {
		g := &f.groups[i]
		if err == nil && len(reply) > 0 && reply[0] < 0 {
			failed = append(failed, g)
			reply = reply[1:]
			continue
		}
		reply = m.answer(g, reply, err)
	}
	m.askAgain(ctx, failed)
}

// askAgain asks for keys that an execution could not read or write and left as
// they were: alone, one call of each learns the reason. It holds for the others
// of the key, and unless it is about what the key holds, for those of all keys.
func (m *merger) askAgain(ctx context.Context, groups []*group) {
	var general error
	for _, g := range groups {
		for g.first != nil {
			if general != nil {
				m.answer(g, nil, general)
				continue
			}
			words, err := m.askOne(ctx, g)
			if err != nil {
				if !redis.HasErrorPrefix(err, "WRONGTYPE") && !redis.HasErrorPrefix(err, "CORRUPT") {
					general = err
				}
				m.answer(g, nil, err)
				continue
			}
			first := *g // it has been mended meanwhile
			g.first = g.first.next
			first.first.next = nil
			m.answer(&first, words, nil)
			m.askRest(ctx, g)
		}
	}
}

// askRest asks for the calls of g in one execution, and leaves them be if the key
// fails again.
func (m *merger) askRest(ctx context.Context, g *group) {
	if g.first == nil {
		return
	}
	var reply []int64
	args, err := m.c.manyArgs(nil, []group{*g})
	if err == nil {
		reply, err = m.c.askMany(ctx, args)
	}
	if err != nil || len(reply) == 0 || reply[0] >= 0 {
		m.answer(g, reply, err)
	}
}

// answer brings the calls of g their part of the reply, or the error, and
// returns the rest of the reply.
func (m *merger) answer(g *group, reply []int64, err error) []int64 {
	m.learn(err)
	for g.first != nil {
		if err == nil && len(reply) < m.c.words {
			err = replyError("a reply that ends too soon")
		}
		var words []int64
		if err == nil {
			words, reply = reply[:m.c.words], reply[m.c.words:]
		}
		n := g.first.n
		for index := int64(0); g.first != nil && g.first.n == n; index++ {
			p := g.first
			g.first = p.next // before p is somebody else's
			p.words, p.index = words, index
			p.arrive(err)
		}
	}
	return reply
}

// manyArgs appends the command that runs the groups' calls in one execution.
func (c *core) manyArgs(args []any, groups []group) ([]any, error) {
	args = append(append(args, c.many.BySHA...), strconv.Itoa(len(groups)))
	for i := range groups {
		args = append(args, &groups[i].name)
	}
	args = append(args, "")
	args = append(args, c.args...)
	for _, g := range groups {
		args = append(args, g.requests())
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

// askMany sends what manyArgs made.
func (c *core) askMany(ctx context.Context, args []any) ([]int64, error) {
	cmd := redis.NewIntSliceCmd(ctx, args...)
	err := (&script.Once{Cmder: cmd}).Send(ctx, c.client)
	if script.IsUnknown(err) { // see ask
		copy(args, c.many.Whole)
		cmd = redis.NewIntSliceCmd(ctx, args...)
		err = (&script.Once{Cmder: cmd}).Send(ctx, c.client)
	}
	return cmd.Val(), err
}
