package denials

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/decision"
)

// A testTable is a table whose clock the test sets.
type testTable struct {
	*Table
	now time.Duration
}

func newTestTable(keys int) *testTable {
	t := &testTable{New(keys, math.MaxInt64, nil), time.Hour}
	t.Now = func() time.Duration { return t.now }
	return t
}

func denialOf(retryAfter time.Duration) decision.Result {
	return decision.Result{Limit: 10, Window: time.Second, RetryAfter: retryAfter, ResetAfter: time.Hour}
}

// knows reports whether n permits of key are denied.
func (t *testTable) knows(key string, n int) bool {
	_, ok := t.Find(t.Hash(key), key, n, nil)
	return ok
}

// deny denies n permits of key.
func (t *testTable) deny(key string, n int, retryAfter time.Duration) {
	hash := t.Hash(key)
	t.Remember(hash, key, n, nil, denialOf(retryAfter), t.BeforeSending(hash))
}

func TestSizeRoundsUp(t *testing.T) {
	for keys, want := range map[int]int{1: 4, 4: 4, 5: 8, 1000: 1024, 1024: 1024, 65_536: 65_536} {
		require.Equal(t, want, len(newTestTable(keys).sets)*ways, "%d keys", keys)
	}
}

func TestIsBoundedUnderAFloodOfKeys(t *testing.T) {
	table := newTestTable(1024)
	for i := range 50_000 {
		table.deny(fmt.Sprint(i), 1, time.Hour)
	}
	require.Equal(t, 1024, table.Len(), "denials in the table")
}

func TestManyCountsOfOneKeyTakeTwoPlaces(t *testing.T) {
	table := newTestTable(4)
	for n := range 10 {
		for _, n := range []int{n + 1, 10 - n} {
			if !table.knows("k", n) {
				table.deny("k", n, time.Duration(n)*time.Second)
			}
			require.LessOrEqual(t, table.Len(), 2, "denials in the table")
		}
	}
}

func TestEndedDenialsGiveWayFirst(t *testing.T) {
	table := newTestTable(4)
	for i := range 20 {
		for k := range 4 { // one of the four is short
			retryAfter := time.Hour
			if k == i%4 {
				retryAfter = time.Second
			}
			table.deny(fmt.Sprint("key", i, k), 1, retryAfter)
		}
		table.now += 2 * time.Second
		table.deny(fmt.Sprint("new", i), 1, time.Hour)
		for k := range 4 {
			require.Equal(t, k != i%4, table.knows(fmt.Sprint("key", i, k), 1), "round %d, key %d", i, k)
		}
		require.True(t, table.knows(fmt.Sprint("new", i), 1), "round %d", i)
		table.now += 2 * time.Hour // all end
	}
}

func TestDenialsGiveWayInTurn(t *testing.T) {
	table := newTestTable(4)
	for i := range 4 {
		table.deny(fmt.Sprint("old", i), 1, time.Hour)
	}
	for round := range 3 {
		for i := range 4 {
			table.deny(fmt.Sprint("new", round, i), 1, time.Hour)
		}
		for i := range 4 {
			require.True(t, table.knows(fmt.Sprint("new", round, i), 1), "round %d: the latest four are not remembered", round)
		}
	}
}

func TestDenialDoesNotReplaceAnotherOfItsKey(t *testing.T) {
	for position := range 4 {
		table := newTestTable(4)
		for i := range 4 {
			table.deny(fmt.Sprint(i), 2, time.Minute)
		}
		table.deny(fmt.Sprint(position), 1, time.Second) // a fifth for four places
		for n, want := range map[int]time.Duration{1: time.Second, 2: time.Minute} {
			key := fmt.Sprint(position)
			found, ok := table.Find(table.Hash(key), key, n, nil)
			require.True(t, ok, "position %d, %d permits", position, n)
			require.Equal(t, denialOf(want), found, "position %d, %d permits", position, n)
		}
	}
}

func TestGivesNoRoomToEndedDenials(t *testing.T) {
	table := newTestTable(65_536)
	hash := table.Hash("k")
	sent := table.BeforeSending(hash)
	table.now += time.Second
	table.Remember(hash, "k", 1, nil, denialOf(time.Second), sent)
	require.Zero(t, table.Len(), "denials in the table")
}

func TestComparesWholeKeys(t *testing.T) {
	table := newTestTable(65_536)
	key := strings.Repeat("a string of which a key is a part, ", 3)[:10]
	table.deny(key, 1, time.Hour)
	for i := range table.sets {
		for w := range table.sets[i] {
			d := table.sets[i][w].denial.Load()
			if d == nil {
				continue
			}
			hash := table.sets[i][w].hash.Load()
			found, ok := table.Find(hash, key, 1, nil)
			require.True(t, ok, "the denial is not found by its own hash")
			require.Equal(t, denialOf(time.Hour), found)
			_, ok = table.Find(hash, "another", 1, nil)
			require.False(t, ok, "another key of the same hash is denied")
			require.NotSame(t, unsafe.StringData(key), unsafe.StringData(d.key), "the caller's string is kept alive")
		}
	}
	require.Equal(t, 1, table.Len(), "denials in the table")
}
