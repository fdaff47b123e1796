package redisexec

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestOperationsAreAppendedAsScriptsReadThem(t *testing.T) {
	for want, o := range map[string]Operation{
		"list,5x3":                    {Op: Take, N: 5, Times: 3},
		"list,5e1":                    {Op: Estimate, N: 5, Times: 1},
		"list,3s86400000000":          {Op: Reserve, N: 3, Times: 1, Detail: &Detail{Longest: 86_400_000_000}},
		"list,100d3/200000/250000/77": {Op: Lease, N: 100, Times: 1, Detail: &Detail{Waiting: 3, Shortest: 200_000, Longest: 250_000, Epoch: 77}},
		"list,1z0/5/1/1!7|":           {Op: Cancel, N: 1, Times: 1, Detail: &Detail{Wrote: "0/5/1/1!7"}},
		"list,1z0/5/1/1|0/4/1/1":      {Op: Cancel, N: 1, Times: 1, Detail: &Detail{Wrote: "0/5/1/1", Before: "0/4/1/1"}},
		"list,1000000000c1":           {Op: Charge, N: 1_000_000_000, Times: 1},
		"list,7g1763670000000/42":     {Op: GiveBack, N: 7, Times: 1, Detail: &Detail{Where: 1_763_670_000_000, Which: 42}},
		"list,7g0/0":                  {Op: GiveBack, N: 7, Times: 1, Detail: &Detail{}},
		"list,7g9007199254740991/0":   {Op: GiveBack, N: 7, Times: 1, Detail: &Detail{Where: 1<<53 - 1}},
	} {
		require.Equal(t, want, string(o.Append([]byte("list,"))))
	}
}

func TestWordsOfAnOperation(t *testing.T) {
	e := executor(nil, false)
	for op, want := range map[Op]int{Take: 2, Charge: 2, Estimate: 4, Lease: 5, GiveBack: 1} {
		require.Equal(t, want, e.WordsOf(op, nil), "%c", op)
	}
}

// TestOperationsOnTheirOwn: what is sent, and how long the reply must be.
func TestOperationsOnTheirOwn(t *testing.T) {
	for _, packed := range []bool{true, false} {
		for _, pooled := range []bool{true, false} {
			var got [][]any
			var reply []int64
			e := executor(client(func(cmd redis.Cmder) error {
				got = append(got, values(cmd))
				answer(cmd, reply...)
				return nil
			}), packed)
			e.Pooled = pooled
			one, operations := e.One.BySHA()[1], e.Alone.BySHA()[1]
			for _, test := range []struct {
				o    Operation
				sent []any
				want []int64
			}{
				{Operation{Op: Take, N: 3, Times: 2}, []any{"evalsha", operations, "1", "k", "", "10", "60", "3x2"}, []int64{2, 7}},
				{Operation{Op: Charge, N: 3, Times: 1}, []any{"evalsha", operations, "1", "k", "", "10", "60", "3c1"}, []int64{1, 7}},
				{Operation{Op: Estimate, N: 3, Times: 1}, []any{"evalsha", operations, "1", "k", "", "10", "60", "3e1"}, []int64{1, 7, 8, 9}},
				{Operation{Op: Reserve, N: 3, Times: 1, Detail: &Detail{Longest: 60}}, []any{"evalsha", operations, "1", "k", "", "10", "60", "3s60"}, []int64{9, 0, 7, 0}},
				{Operation{Op: Reserve, N: 3, Times: 1, Detail: &Detail{Longest: 60}}, []any{"evalsha", operations, "1", "k", "", "10", "60", "3s60"}, []int64{9, 1, 7, 4, 1, 2, 3, 4}},
				{Operation{Op: Lease, N: 9, Times: 1, Detail: &Detail{Waiting: 1, Shortest: 4, Longest: 5, Epoch: 2}}, []any{"evalsha", operations, "1", "k", "", "10", "60", "9d1/4/5/2"}, []int64{5, 9, 7, 0, 2}},
				{Operation{Op: Cancel, N: 1, Times: 1, Detail: &Detail{Wrote: "w"}}, []any{"evalsha", operations, "1", "k", "", "10", "60", "1zw|"}, []int64{1}},
				{Operation{Op: GiveBack, N: 3, Times: 1, Detail: &Detail{Where: 8, Which: 9}}, []any{"evalsha", operations, "1", "k", "", "10", "60", "3g8/9"}, []int64{3}},
			} {
				e.Now, e.Spare, got, reply = nil, nil, nil, test.want
				first, err := e.Operate(ctx, "k", test.o)
				require.NoError(t, err)
				require.Equal(t, test.want, first.Words)
				kept := first.Keep()
				ending, cancel := context.WithCancel(ctx)
				second, err := e.Operate(ending, "k", test.o)
				cancel()
				require.NoError(t, err)
				require.Equal(t, test.want, second.Words)
				second.Done()
				require.Equal(t, test.want, kept, "the caller may keep them")
				require.Equal(t, [][]any{test.sent, test.sent}, got)

				for _, wrong := range [][]int64{test.want[1:], append([]int64{1}, test.want...)} {
					reply = wrong
					_, err = e.Operate(ctx, "k", test.o)
					require.EqualError(t, err, fmt.Sprintf("a reply of %d integers, not %d", len(wrong), e.WordsOf(test.o.Op, wrong)))
				}
				reply = []int64{3, 7}
				call, err := e.Ask(ctx, "k", take(1))
				require.NoError(t, err, "the next command expects what it always does")
				call.Done()

				reply, got = test.want, nil
				e.Now, e.Spare = func() (int64, error) { return 42, nil }, "7"
				byClock, err := e.Operate(ctx, "k", test.o)
				require.NoError(t, err)
				byClock.Done()
				require.Equal(t, [][]any{append(test.sent[:8:8], "7", int64(42))}, got)
				wrong := errors.New("1969")
				e.Now, got = func() (int64, error) { return 0, wrong }, nil
				_, err = e.Operate(ctx, "k", test.o)
				require.ErrorIs(t, err, wrong)
				require.Empty(t, got)
			}

			e.Now, e.Spare, got, reply = nil, nil, nil, []int64{307}
			want := []int64{3, 7}
			if !packed {
				reply = want
			}
			lone, err := e.Operate(ctx, "k", Operation{Op: Take, N: 3, Times: 1})
			require.NoError(t, err)
			require.Equal(t, want, lone.Words)
			lone.Done()
			require.Equal(t, [][]any{{"evalsha", one, "1", "k", 3, "10", "60"}}, got, "a lone request runs the short script")
		}
	}
}

// TestACommandOfAnOperation for a pipeline is the one that is sent without.
func TestACommandOfAnOperation(t *testing.T) {
	var sent []any
	e := executor(client(func(cmd redis.Cmder) error { sent = values(cmd); answer(cmd, 5); return nil }), true)
	for _, o := range []Operation{{Op: Take, N: 1, Times: 1}, {Op: GiveBack, N: 3, Times: 1, Detail: &Detail{Where: 8, Which: 9}}} {
		reply, err := e.Operate(ctx, "k", o)
		require.NoError(t, err)
		reply.Done()
		c, err := e.Command("k", o)
		require.NoError(t, err)
		require.Equal(t, sent, values(c.newCmd(ctx)))
	}
}
