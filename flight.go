package ratelimit

import (
	"context"
	"strconv"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit/internal/script"
)

// A flight is the calls that go together, by key.
type flight struct {
	seats  int // taken
	groups []group
	index  map[string]int // into groups
	args   []any
}

// A group is the calls for one key, in their order.
type group struct {
	key         string // in Redis
	first, last *passenger
}

var flights = sync.Pool{New: func() any {
	return &flight{index: map[string]int{}}
}}

// board adds p, unless its key is one too many.
func (f *flight) board(p *passenger, prefix string) bool {
	if i, ok := f.index[p.key]; ok {
		g := &f.groups[i]
		g.last.next = p
		g.last = p
	} else {
		if len(f.groups) == maxKeys {
			return false
		}
		f.index[p.key] = len(f.groups)
		f.groups = append(f.groups, group{prefix + p.key, p, p})
	}
	f.seats++
	return true
}

// clear makes f fit for another flight.
func (f *flight) clear() {
	clear(f.groups)
	clear(f.index)
	clear(f.args)
	f.seats, f.groups, f.args = 0, f.groups[:0], f.args[:0]
	flights.Put(f)
}

// manyArgs appends the command that runs the groups' calls in one execution.
func (c *core) manyArgs(args []any, groups []group) ([]any, error) {
	args = append(append(args, c.many.BySHA...), strconv.Itoa(len(groups)))
	for i := range groups {
		args = append(args, &groups[i].key)
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

// requests tells the calls' permits as runs of equal ones.
func (g group) requests() any {
	if g.first.next == nil && g.first.n == 1 {
		return "1"
	}
	var runs []byte
	for p := g.first; p != nil; {
		n, times := p.n, 0
		for p != nil && p.n == n {
			times++
			p = p.next
		}
		if runs != nil {
			runs = append(runs, ',')
		}
		runs = strconv.AppendInt(runs, int64(n), 10)
		runs = append(runs, 'x')
		runs = strconv.AppendInt(runs, int64(times), 10)
	}
	return runs
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
