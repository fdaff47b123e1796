package merge

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/redisexec"
)

func TestARunTakesACacheLine(t *testing.T) {
	require.EqualValues(t, 64, unsafe.Sizeof(run{}))
}

// TestOnlyEqualRequestsForAKeyJoin the latest run.
func TestOnlyEqualRequestsForAKeyJoin(t *testing.T) {
	b, last := newBatch(), map[lastKey]int{}
	_, ok := b.join(given, "k", take(1), 0)
	require.False(t, ok, "there is no run to join")
	b.add(ctx, given, "k", take(2), 0, last)
	_, ok = b.join(given, "k", take(1), 0)
	require.False(t, ok)
	_, ok = b.join(given, "l", take(2), 0)
	require.False(t, ok)
	s, ok := b.join(given, "k", take(2), 0)
	require.True(t, ok)
	require.Equal(t, slot{b, 0, place{1, 1}}, s)
	s, _ = b.add(ctx, given, "l", take(2), 0, last)
	require.Equal(t, slot{b, 1, place{0, 1}}, s)
	_, ok = b.join(given, "k", take(2), 0)
	require.False(t, ok, "its run is not the latest")
	s, _ = b.add(ctx, given, "k", take(2), 0, last)
	require.Equal(t, slot{b, 0, place{2, 1}}, s)
	s, ok = b.join(given, "k", take(2), 0)
	require.True(t, ok)
	require.Equal(t, slot{b, 0, place{3, 1}}, s)
}

func TestAFullBatchTakesNoCall(t *testing.T) {
	b, last := newBatch(), map[lastKey]int{}
	_, ok := b.add(ctx, given, "k", take(1), 0, last)
	require.True(t, ok)
	for i := 1; i < maxCalls; i++ {
		s, ok := b.join(given, "k", take(1), 0)
		require.True(t, ok)
		require.Equal(t, slot{b, 0, place{i, 1}}, s)
	}
	_, ok = b.join(given, "k", take(1), 0)
	require.False(t, ok)
	_, ok = b.add(ctx, given, "k", take(1), 0, last)
	require.False(t, ok)
}

// TestABatchCostsABoundedTime, but for a first call that costs more.
func TestABatchCostsABoundedTime(t *testing.T) {
	price := redisexec.Cost{Key: 100, Run: 30, Permit: 2, Back: 70}
	for _, test := range []struct {
		name    string
		request func(i int) request
		fits    int
	}{
		{"keys", func(i int) request { return request{fmt.Sprint("k", i), take(1), false} }, 2000 / 102},
		{"keys, several permits each", func(i int) request { return request{fmt.Sprint("k", i), take(5), false} }, 2000 / 140},
		{"runs for a key", func(i int) request { return request{"k", take(1 + i%2), false} }, 1 + (2000-102)/33}, // their costs alternate: 34 and 32
		{"equal requests", func(int) request { return request{"k", take(1), false} }, (2000 - 100) / 2},
		{"equal requests for several permits", func(int) request { return request{"k", take(10), false} }, (2000 - 130) / 20},
		{"requests for as many as fit", func(int) request { return request{"k", upTo(10), false} }, (2000 - 100) / 20},
		{"what is given back", func(i int) request { return request{fmt.Sprint("k", i), giveBack(1, 0), false} }, 2000 / (102 + 270)},
		{"what is given back to one key", func(int) request { return request{"k", giveBack(1, 0), false} }, 1 + (2000-372)/(32+270)},
		{"a dear request", func(int) request { return request{"k", take(5000), false} }, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			b, last, calls := newBatch(), map[lastKey]int{}, 0
			l := &Limit{Exec: &redisexec.Executor{Cost: price}, Name: asGiven}
			for ; calls <= maxCalls; calls++ {
				r := test.request(calls)
				_, joined := b.join(l, r.key, r.o, 0)
				if joined {
					continue
				}
				if _, ok := b.add(ctx, l, r.key, r.o, 0, last); !ok {
					break
				}
			}
			require.Equal(t, test.fits, calls)
			require.Equal(t, test.fits, b.calls)
			require.LessOrEqual(t, b.cost, max(maxCost, 100+30+2*5000))
		})
	}
}
