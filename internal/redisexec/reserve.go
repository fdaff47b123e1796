package redisexec

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit/internal/script"
)

// A Reserver runs the scripts of reservations: those of an Executor with the arguments of
// one algorithm, which need not be the Executor's.
type Reserver struct {
	*Executor
	Script, CancelScript *script.Script
	Args                 []any // the algorithm's ARGV
	Words                int   // of the reply to a run of equal requests
}

// A Receipt says what a reservation has changed, so that it can be cancelled.
type Receipt struct {
	given, kept   int64 // TTLs, milliseconds
	before, wrote string
}

// Wrote is what the key holds since.
func (r *Receipt) Wrote() string { return r.wrote }

// A Reserved is the reply to a reservation.
type Reserved struct {
	Due     int64   // microseconds from now until the permits are due, or would have been
	Words   []int64 // of a run of one request
	Receipt *Receipt
}

// Reserve takes n permits of a key that are due within so many microseconds. key is its
// name in Redis. It returns the context's error as soon as ctx ends; undo then gets the
// receipt of a reservation that was made all the same, once the reply is there.
func (r *Reserver) Reserve(ctx context.Context, key string, n int, longest int64, undo func(*Receipt)) (Reserved, error) {
	var reserved Reserved
	var over atomic.Bool // set by the reply, and by a caller who leaves: the second of them has it
	_, err := Await(ctx, func() (Reply, error) {
		late, err := r.reserve(ctx, key, n, longest)
		if err != nil {
			return Reply{}, err
		}
		reserved = late
		if err = ctx.Err(); err != nil || over.Swap(true) { // the caller has left, or may have
			if late.Receipt != nil {
				undo(late.Receipt)
			}
		}
		return Reply{}, err
	})
	if err != nil && !over.Swap(true) {
		return Reserved{}, err
	}
	return reserved, nil
}

func (r *Reserver) reserve(ctx context.Context, key string, n int, longest int64) (Reserved, error) {
	args := append([]any{"1", key, strconv.Itoa(n)}, r.Args...)
	args = append(args, strconv.FormatInt(longest, 10))
	if r.Now != nil {
		now, err := r.Now()
		if err != nil {
			return Reserved{}, err
		}
		args = append(args, r.Spare, now)
	}
	reply, err := evaluate(ctx, r.Executor, r.Script, args, redis.NewSliceCmd)
	if err != nil {
		return Reserved{}, err
	}
	return r.read(reply.Val())
}

// read checks a reply of reserve.lua.
func (r *Reserver) read(reply []any) (Reserved, error) {
	whole := len(reply) == 1+r.Words+4
	if !whole && len(reply) != 1+r.Words {
		return Reserved{}, ReplyError(fmt.Sprintf("a reply of %d elements to a reservation, not %d or %d", len(reply), 1+r.Words, 1+r.Words+4))
	}
	numbers := 1 + r.Words
	if whole {
		numbers += 2
	}
	words := make([]int64, numbers)
	for i := range words {
		n, ok := reply[i].(int64)
		if !ok {
			return Reserved{}, ReplyError(fmt.Sprintf("element %d of the reply to a reservation is a %T, not an integer", i+1, reply[i]))
		}
		words[i] = n
	}
	reserved := Reserved{Due: words[0], Words: words[1 : 1+r.Words]}
	if !whole {
		return reserved, nil
	}
	before, ok := reply[numbers].(string)
	wrote, alike := reply[numbers+1].(string)
	if !ok || !alike {
		return Reserved{}, ReplyError("the states in the reply to a reservation are not strings")
	}
	reserved.Receipt = &Receipt{given: words[1+r.Words], kept: words[2+r.Words], before: before, wrote: wrote}
	return reserved, nil
}

// Cancel gives the permits of a reservation back, if nothing was taken from the key since.
// It returns the context's error as soon as ctx ends; Redis may then execute the script all
// the same, once.
func (r *Reserver) Cancel(ctx context.Context, key string, receipt *Receipt) error {
	_, err := Await(ctx, func() (Reply, error) {
		args := []any{"1", key, receipt.given, receipt.kept, receipt.before, receipt.wrote}
		_, err := evaluate(ctx, r.Executor, r.CancelScript, args, newIntCmd)
		return Reply{}, err
	})
	return err
}

// evaluate runs a script for one key, with these arguments behind its name or source. command
// makes the go-redis command, whose reply is then there.
func evaluate[C redis.Cmder](ctx context.Context, e *Executor, s *script.Script, args []any, command func(ctx context.Context, args ...any) C) (C, error) {
	c := &Command{exec: e, script: s}
	c.kind = func(ctx context.Context, args []any) redis.Cmder { return command(ctx, args...) }
	c.args = append(append(make([]any, 0, len(s.BySHA)+len(args)), s.BySHA...), args...)
	err := c.run(ctx)
	cmd, _ := c.once.Cmder.(C)
	return cmd, err
}
