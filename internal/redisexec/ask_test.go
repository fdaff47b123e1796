package redisexec

import (
	"context"
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/script"
)

func TestAsk(t *testing.T) {
	s := script.New("return {1, 2, 3}")
	for _, packed := range []bool{true, false} {
		var got [][]any
		reply := []int64{1, 2, 3}
		e := executor(client(func(cmd redis.Cmder) error {
			got = append(got, values(cmd))
			answer(cmd, reply...)
			return nil
		}), packed)
		ask := func(ctx context.Context) ([]int64, error) { return e.Ask(ctx, s, "k", "5/6/7", 3) }

		words, err := ask(ctx)
		require.NoError(t, err)
		require.Equal(t, []int64{1, 2, 3}, words)
		require.Equal(t, [][]any{{"evalsha", s.BySHA[1], "1", "k", "5/6/7", "10", "60"}}, got)
		ending, cancel := context.WithCancel(ctx)
		defer cancel()
		another, err := ask(ending)
		require.NoError(t, err)
		require.Equal(t, []int64{1, 2, 3}, another)
		require.Equal(t, []int64{1, 2, 3}, words, "the caller may keep them")

		reply = []int64{1, 2}
		_, err = ask(ctx)
		require.Equal(t, ReplyError("a reply of 2 integers, not 3"), err)
		call, err := e.Call(ctx, e.One, "k", 1)
		require.NoError(t, err, "the next command expects what it always does")
		call.Done()

		e.Now, e.Spare = func() (int64, error) { return 42, nil }, "7"
		reply, got = []int64{1, 2, 3}, nil
		_, err = ask(ctx)
		require.NoError(t, err)
		require.Equal(t, [][]any{{"evalsha", s.BySHA[1], "1", "k", "5/6/7", "10", "60", "7", int64(42)}}, got)
		wrong := errors.New("1969")
		e.Now = func() (int64, error) { return 0, wrong }
		got = nil
		_, err = ask(ctx)
		require.ErrorIs(t, err, wrong)
		require.Empty(t, got)
	}
}
