package merge

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/redisclient"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/script"
)

// Operations of all kinds.
func upTo(n int) redisexec.Operation {
	return redisexec.Operation{Op: redisexec.Take, N: 1, Times: n}
}

func estimate(n int) redisexec.Operation {
	return redisexec.Operation{Op: redisexec.Estimate, N: n, Times: 1}
}

func charge(n int) redisexec.Operation {
	return redisexec.Operation{Op: redisexec.Charge, N: n, Times: 1}
}

func giveBack(n int, where int64) redisexec.Operation {
	return redisexec.Operation{Op: redisexec.GiveBack, N: n, Times: 1, Detail: &redisexec.Detail{Where: where}}
}

// An answer is what came of a call of Operate.
type answer struct {
	words []int64
	index int64
	err   error
}

// A request is a call of Operate that leaves, if gone, before it is sent.
type request struct {
	key  string
	o    redisexec.Operation
	gone bool
}

// operateAll makes calls that wait for few others and are sent together, in their order. Each
// of the batch's commands is let through. It returns the answers, the commands, and the
// sources of their scripts.
func operateAll(t *testing.T, s *server, m *Merger, requests ...request) (answers []answer, sent, scripts []string) {
	t.Helper()
	few(t, s, m)
	answers = make([]answer, len(requests))
	leave := make([]context.CancelFunc, len(requests))
	for i, r := range requests {
		within, cancel := context.WithCancel(ctx)
		defer cancel()
		leave[i] = cancel
		go func() {
			reply, err := m.Operate(within, r.key, r.o)
			answers[i] = answer{slices.Clone(reply.Words), reply.Index, err}
			reply.Done()
		}()
		synctest.Wait()
	}
	for i, r := range requests {
		if r.gone {
			leave[i]()
		}
	}
	synctest.Wait()
	s.answerFew()
	for len(s.sent) > len(sent) {
		sent = slices.Clone(s.sent)
		s.answerNext(nil)
	}
	return answers, sent, s.scripts[FewCalls:]
}

// TestOperationsAreSentTogether, in the order of their calls, by the script for operations; takes
// only by that for takes.
func TestOperationsAreSentTogether(t *testing.T) {
	for _, test := range []struct {
		name     string
		requests []request
		want     []answer
		sent     string
		script   string
	}{
		{
			"takes only",
			[]request{{"k", take(2), false}, {"l", upTo(3), false}, {"m", take(1), false}},
			[]answer{{words: []int64{1, 10}}, {words: []int64{3, 10}}, {words: []int64{1, 10}}},
			"k 2x1, l 1x3, m 1", "many",
		},
		{
			"takes and others",
			[]request{
				{"k", take(1), false},
				{"l", take(1), false}, {"k", estimate(2), false}, {"k", charge(9), false}, {"k", charge(9), false},
				{"k", giveBack(1, 3), false}, {"k", upTo(2), false}, {"l", charge(10), false},
			},
			[]answer{
				{words: []int64{1, 10}},
				{words: []int64{1, 10}}, {words: []int64{1, 9, 3, 0}}, {words: []int64{1, 7}}, {words: []int64{1, 7}, index: 1},
				{words: []int64{1}}, {words: []int64{0, -1}}, {words: []int64{1, 9}},
			},
			"k 1x1,2e1,9c2,1g3/0,1x2, l 1x1,10c1", "operations",
		},
		{
			"an estimate beside takes",
			[]request{{"k", take(1), false}, {"l", estimate(1), false}},
			[]answer{{words: []int64{1, 10}}, {words: []int64{1, 10, 1, 0}}},
			"k 1x1, l 1e1", "operations",
		},
		{
			"equal estimates",
			[]request{{"k", estimate(4), false}, {"k", estimate(4), false}, {"k", estimate(4), false}},
			[]answer{{words: []int64{2, 10, 8, 0}}, {words: []int64{2, 10, 8, 0}, index: 1}, {words: []int64{2, 10, 8, 0}, index: 2}},
			"k 4e3", "operations",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			held(t, 10, func(t *testing.T, s *server, m *Merger) {
				answers, sent, scripts := operateAll(t, s, m, test.requests...)
				require.Equal(t, []string{test.sent}, sent)
				require.Equal(t, []string{test.script}, scripts)
				require.Equal(t, test.want, answers)
			})
		})
	}
}

// TestALoneOperationRunsOnItsOwn, whether few calls are in flight or it is alone in its batch.
func TestALoneOperationRunsOnItsOwn(t *testing.T) {
	for want, o := range map[string]redisexec.Operation{
		"one: k 3": take(3), "many: k 1x3": upTo(3), "operations: k 3e1": estimate(3), "operations: k 3c1": charge(3), "operations: k 3g1/0": giveBack(3, 1),
	} {
		held(t, 10, func(t *testing.T, s *server, m *Merger) {
			answers, sent, scripts := operateAll(t, s, m, request{"k", o, false})
			require.Equal(t, []string{want}, []string{scripts[0] + ": " + sent[0]})
			require.Len(t, sent, 1)
			require.NoError(t, answers[0].err)
			require.Len(t, answers[0].words, s.WordsOf(o.Op, nil))
			s.take()
			go func() { _, _ = m.Operate(ctx, "k", o) }()
			synctest.Wait()
			require.Equal(t, sent, s.take())
		})
	}
}

// TestACallForSeveralRequestsHasTheirPlaces in its run: those of calls that leave are not asked
// for, and the ones behind them move up.
func TestACallForSeveralRequestsHasTheirPlaces(t *testing.T) {
	requests := []request{{"k", take(1), false}, {"k", upTo(3), false}, {"k", take(1), false}, {"k", upTo(4), false}, {"k", upTo(2), false}}
	for _, test := range []struct {
		gone    []int
		indices []int64 // of those that stay
		sent    string
	}{
		{nil, []int64{0, 1, 4, 5, 9}, "k 1x11"},
		{[]int{1}, []int64{0, 1, 2, 6}, "k 1x8"},
		{[]int{0, 3}, []int64{0, 3, 4}, "k 1x6"},
		{[]int{4}, []int64{0, 1, 4, 5}, "k 1x9"},
		{[]int{3, 2, 0}, []int64{0, 3}, "k 1x5"},
		{[]int{0, 1, 2, 3}, []int64{0}, "k 1x2"},
	} {
		held(t, 10, func(t *testing.T, s *server, m *Merger) {
			calls := slices.Clone(requests)
			for _, i := range test.gone {
				calls[i].gone = true
			}
			answers, sent, _ := operateAll(t, s, m, calls...)
			require.Equal(t, []string{test.sent}, sent)
			var indices []int64
			for i, a := range answers {
				if calls[i].gone {
					require.ErrorIs(t, a.err, context.Canceled)
					continue
				}
				require.NoError(t, a.err)
				indices = append(indices, a.index)
			}
			require.Equal(t, test.indices, indices)
		})
	}
}

// TestEachTicketHasARunOfItsOwn: equal ones would otherwise be given back once.
func TestEachTicketHasARunOfItsOwn(t *testing.T) {
	held(t, 10, func(t *testing.T, s *server, m *Merger) {
		answers, sent, _ := operateAll(t, s, m, request{"k", giveBack(2, 7), false}, request{"k", giveBack(2, 7), false}, request{"k", giveBack(2, 9), true}, request{"k", giveBack(2, 8), false})
		require.Equal(t, []string{"k 2g7/0,2g7/0,2g8/0"}, sent)
		done := answer{words: []int64{2}}
		require.Equal(t, []answer{done, done, {err: context.Canceled}, done}, answers)
		require.Equal(t, -6, s.used["k"])
	})
}

// TestOnlyOperationsOfOneKindJoin a run.
func TestOnlyOperationsOfOneKindJoin(t *testing.T) {
	all := []redisexec.Operation{take(3), estimate(3), charge(3), giveBack(3, 0)}
	for _, first := range all {
		for _, second := range all {
			b, last := newBatch(), map[lastKey]int{}
			b.add(ctx, given, "k", first, 0, last)
			joins := first.Op == second.Op && first.Op != redisexec.GiveBack
			_, ok := b.join(given, "k", second, 0)
			require.Equal(t, joins, ok, "%c, %c", first.Op, second.Op)
			b.add(ctx, given, "k", second, 0, last)
			require.Equal(t, !joins, len(b.runs) == 2, "%c, %c", first.Op, second.Op)
		}
	}
}

// TestARunDoesNotOverflow its counter: what is beyond goes into another.
func TestARunDoesNotOverflow(t *testing.T) {
	b, last := newBatch(), map[lastKey]int{}
	add := func(times int) slot {
		s, ok := b.join(given, "k", upTo(times), 0)
		if !ok {
			s, ok = b.add(ctx, given, "k", upTo(times), 0, last)
			require.True(t, ok)
		}
		return s
	}
	const most = maxTimes/2 - 100
	rest := maxTimes - 2*most
	require.Equal(t, slot{b, 0, place{0, most}}, add(most))
	require.Equal(t, slot{b, 0, place{most, most}}, add(most))
	require.Equal(t, slot{b, 1, place{0, most}}, add(most))
	require.Equal(t, slot{b, 1, place{most, most}}, add(most))
	require.Equal(t, slot{b, 1, place{2 * most, rest}}, add(rest))
	require.Equal(t, slot{b, 2, place{0, 1}}, add(1))
	require.Equal(t, fmt.Sprintf("1x%d,1x%d,1x1", 2*most, maxTimes), string(b.requests(0).([]byte)))
}

// TestAKeyThatFailsInTheMiddle of its list: what was done has its words, and the rest is asked
// for again, in its order.
func TestAKeyThatFailsInTheMiddle(t *testing.T) {
	calls := []request{
		{"k", take(1), false},
		{"k", giveBack(1, 0), false}, {"l", charge(4), false}, {"k", estimate(2), false}, {"k", estimate(2), false}, {"k", charge(3), false},
		{"k", take(2), false},
	}
	whole := "k 1x1,1g0/0,2e2,3c1,2x1, l 4c1"
	corrupt := serverError("WRONGTYPE")
	full := []answer{
		{words: []int64{1, 10}},
		{words: []int64{1}}, {words: []int64{1, 10}}, {words: []int64{2, 10, 4, 0}}, {words: []int64{2, 10, 4, 0}, index: 1}, {words: []int64{1, 6}},
		{words: []int64{1, 3}},
	}
	for _, test := range []struct {
		broken []int
		err    error
		sent   []string
		done   int // calls before the one that fails
	}{
		{[]int{0}, nil, []string{whole, "k 1", "k 1g0/0,2e2,3c1,2x1"}, 7},
		{[]int{1}, nil, []string{whole, "k 1g0/0", "k 2e2,3c1,2x1"}, 7},
		{[]int{2}, nil, []string{whole, "k 2e2", "k 3c1,2x1"}, 7},
		{[]int{4}, nil, []string{whole, "k 2"}, 7},
		{[]int{2, 0}, nil, []string{whole, "k 2e2", "k 3c1,2x1", "k 3c1", "k 2x1"}, 7},
		{[]int{1, 1}, nil, []string{whole, "k 1g0/0", "k 2e2,3c1,2x1", "k 3c1", "k 2x1"}, 7},
		{[]int{2}, corrupt, []string{whole, "k 2e2"}, 2},
		{[]int{3}, corrupt, []string{whole, "k 3c1"}, 5},
	} {
		t.Run(fmt.Sprint(test.broken, test.err), func(t *testing.T) {
			held(t, 10, func(t *testing.T, s *server, m *Merger) {
				s.broken["k"], s.errs["k"] = test.broken, test.err
				answers, sent, _ := operateAll(t, s, m, calls...)
				require.Equal(t, test.sent, sent)
				want := slices.Clone(full)
				for i := range want {
					if i >= test.done && calls[i].key == "k" {
						want[i] = answer{err: corrupt}
					}
				}
				require.Equal(t, want, answers)
			})
		})
	}
}

// listing returns an executor whose scripts note each operation in the list of its key. The
// words of each are 1 and how many came before; an estimate's ticket is 8 and 9. A key for which
// ":<n>" exists fails once, before operation n of an execution for several.
func listing(client redisclient.Client) *redisexec.Executor {
	const decide = `
		local done = redis.call('RPUSH', KEYS[1], operation) - 1
		if string.find(operation, 'g') then
			out[#out + 1] = 1
		else
			out[#out + 1] = string.match(operation, '%d+$') + 0
			out[#out + 1] = done
		end
		if string.find(operation, 'e') then
			out[#out + 1] = 8
			out[#out + 1] = 9
		end`
	list := script.New(`
		local out, n = {}, 0
		for operation in string.gmatch(ARGV[2], '[^,]+') do
			if string.find(ARGV[2], ',') and redis.call('DEL', KEYS[1] .. ':' .. n) == 1 then
				out[#out + 1] = -1
				return out
			end
			n = n + 1` + decide + `
		end
		return out`)
	return &redisexec.Executor{
		Client: client, Words: 2, Pooled: true, Peek: script.New("return 0"), Many: script.New(`if string.find(ARGV[2], '[ecg]') then return {err = 'ERR not takes'} end` + list.Source()), Operations: list, Alone: list,
		One: script.New("local out, operation = {}, ARGV[1] .. 'x1'" + decide + " return out"),
	}
}

// TestAKeyThatFailsInTheMiddleInAPipeline is asked for again from there, and nothing twice.
func TestAKeyThatFailsInTheMiddleInAPipeline(t *testing.T) {
	for _, takesOnly := range []bool{false, true} {
		for fails := range 6 {
			server := miniredis.RunT(t)
			ring := ringOn(t, server)
			client := redis.NewClient(&redis.Options{Addr: server.Addr()})
			t.Cleanup(func() { _ = client.Close() })
			require.NoError(t, client.Set(ctx, fmt.Sprint("k:", fails), 1, 0).Err())
			m := New(listing(ring), asGiven)
			require.True(t, m.sender.pipelined.Load())
			ops := []redisexec.Operation{take(1), giveBack(1, 3), estimate(2), estimate(2), charge(3), take(2)}
			want := []string{"1x1", "1g3/0", "2e2", "3c1", "2x1"}
			answers := []answer{
				{words: []int64{1, 0}}, {words: []int64{1}}, {words: []int64{2, 2, 8, 9}}, {words: []int64{2, 2, 8, 9}, index: 1},
				{words: []int64{1, 3}}, {words: []int64{1, 4}},
			}
			if takesOnly {
				ops = []redisexec.Operation{take(1), take(2), upTo(3), take(2), take(3), take(2)}
				want = []string{"1x1", "2x1", "1x3", "2x1", "3x1", "2x1"}
				answers = nil
				for i, o := range ops {
					answers = append(answers, answer{words: []int64{int64(o.Times), int64(i)}})
				}
			}
			b, last := newBatch(), map[lastKey]int{}
			var slots []slot
			for _, key := range []string{"k", "l"} {
				for _, o := range ops {
					s, ok := b.add(ctx, m.limit, key, o, noDeadline, last)
					require.True(t, ok)
					slots = append(slots, s)
				}
			}
			m.sender.send(b)
			var got []answer
			for _, s := range slots {
				reply, err := s.outcome()
				got = append(got, answer{reply.Words, reply.Index, err})
			}
			require.Equal(t, append(slices.Clone(answers), answers...), got, "failed at %d", fails)
			for _, key := range []string{"k", "l"} {
				require.Equal(t, want, client.LRange(ctx, key, 0, -1).Val(), "failed at %d", fails)
			}
		}
	}
}
