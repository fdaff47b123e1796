package redisexec

import (
	"context"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit/internal/script"
)

// Run executes a script for one key, at most once, and returns the integers of its reply.
// It is for scripts that are not a limiter's decision; those have an [Executor]. It waits
// for the client even after ctx has ended.
func Run(ctx context.Context, client Client, s *script.Script, words int, key string, args ...any) ([]int64, error) {
	all := append(append(append(make([]any, 0, 4+len(args)), s.BySHA...), "1", key), args...)
	reply, err := runOnce(ctx, client, all)
	if IsUnknown(err) { // nothing was executed
		copy(all, s.Whole)
		reply, err = runOnce(ctx, client, all)
	}
	if err == nil && len(reply) != words {
		err = ReplyError("a reply of " + strconv.Itoa(len(reply)) + " integers, not " + strconv.Itoa(words))
	}
	return reply, err
}

func runOnce(ctx context.Context, client Client, args []any) ([]int64, error) {
	cmd := redis.NewIntSliceCmd(ctx, args...)
	once := Once{cmd}
	if err := once.Send(ctx, client); err != nil {
		return nil, err
	}
	if cmd.Val() == nil {
		return nil, errNoReply
	}
	return cmd.Val(), nil
}
