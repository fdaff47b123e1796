package ratelimit

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestDenyCacheSizeRoundsUp(t *testing.T) {
	for keys, want := range map[int]int{1: 4, 4: 4, 5: 8, 1000: 1024, 1024: 1024, 65_536: 65_536} {
		c, _ := newTestDenyCache(t, &scriptedLimiter{}, WithMaxKeys(keys))
		require.Equal(t, want, len(c.table.sets)*denyWays, "WithMaxKeys(%d)", keys)
	}
	c, _ := newTestDenyCache(t, &scriptedLimiter{})
	require.Equal(t, 65_536, len(c.table.sets)*denyWays, "the default size")
}

// denials counts what c remembers.
func (c *DenyCache) denials() (count int) {
	for i := range c.table.sets {
		for w := range c.table.sets[i] {
			if c.table.sets[i][w].denial.Load() != nil {
				count++
			}
		}
	}
	return count
}

func TestDenyCacheIsBoundedUnderAFloodOfKeys(t *testing.T) {
	l := &scriptedLimiter{answer: func() (Result, error) { return deniedBy10(0, time.Hour, time.Hour), nil }}
	c, _ := newTestDenyCache(t, l, WithMaxKeys(1024))
	for i := range 50_000 {
		_, err := c.TryAcquire(t.Context(), fmt.Sprint(i))
		require.NoError(t, err)
	}
	require.Equal(t, 1024, c.denials(), "denials in the table")
}

func TestDenyCacheManyCountsOfOneKeyTakeTwoPlaces(t *testing.T) {
	l := &scriptedLimiter{}
	c, _ := newTestDenyCache(t, l, WithMaxKeys(4))
	for n := range 10 {
		for _, n := range []int{n + 1, 10 - n} {
			l.answer = func() (Result, error) { return deniedBy10(0, time.Duration(n)*time.Second, time.Hour), nil }
			_, err := c.TryAcquireN(t.Context(), "k", n)
			require.NoError(t, err)
			require.LessOrEqual(t, c.denials(), 2, "denials in the table")
		}
	}
}

func TestDenyCacheEndedDenialsGiveWayFirst(t *testing.T) {
	l := &scriptedLimiter{}
	c, now := newTestDenyCache(t, l, WithMaxKeys(4))
	ask := func(key string, retryAfter time.Duration) {
		t.Helper()
		l.answer = func() (Result, error) { return deniedBy10(0, retryAfter, time.Hour), nil }
		_, err := c.TryAcquire(t.Context(), key)
		require.NoError(t, err)
	}
	for i := range 20 {
		for k := range 4 { // one of the four is short
			retryAfter := time.Hour
			if k == i%4 {
				retryAfter = time.Second
			}
			ask(fmt.Sprint("key", i, k), retryAfter)
		}
		*now += 2 * time.Second
		ask(fmt.Sprint("new", i), time.Hour)
		l.asked = nil
		for k := range 4 {
			if k != i%4 {
				ask(fmt.Sprint("key", i, k), time.Hour)
			}
		}
		ask(fmt.Sprint("new", i), time.Hour)
		require.Empty(t, l.asked, "round %d: denials that had not ended were dropped", i)
		*now += 2 * time.Hour // all end
	}
}

func TestDenyCacheDenialsGiveWayInTurn(t *testing.T) {
	l := &scriptedLimiter{}
	l.answer = func() (Result, error) { return deniedBy10(0, time.Hour, time.Hour), nil }
	c, _ := newTestDenyCache(t, l, WithMaxKeys(4))
	ask := func(key string, n int) {
		t.Helper()
		_, err := c.TryAcquireN(t.Context(), key, n)
		require.NoError(t, err)
	}
	for i := range 4 {
		ask(fmt.Sprint("old", i), 1)
	}
	for round := range 3 {
		for i := range 4 {
			ask(fmt.Sprint("new", round, i), 1)
		}
		l.asked = nil
		for i := range 4 {
			ask(fmt.Sprint("new", round, i), 1)
		}
		require.Empty(t, l.asked, "round %d: the latest four are not remembered", round)
	}
}

func TestDenyCacheDenialDoesNotReplaceAnotherOfItsKey(t *testing.T) {
	for position := range 4 {
		l := &scriptedLimiter{}
		c, _ := newTestDenyCache(t, l, WithMaxKeys(4))
		ask := func(key string, n int, retryAfter time.Duration) {
			t.Helper()
			want := deniedBy10(0, retryAfter, time.Hour)
			l.answer = func() (Result, error) { return want, nil }
			r, err := c.TryAcquireN(t.Context(), key, n)
			require.NoError(t, err, "position %d, %d permits", position, n)
			require.Equal(t, want, r, "position %d, %d permits", position, n)
		}
		for i := range 4 {
			ask(fmt.Sprint(i), 2, time.Minute)
		}
		ask(fmt.Sprint(position), 1, time.Second) // a fifth for four places
		l.asked = nil
		ask(fmt.Sprint(position), 2, time.Minute)
		ask(fmt.Sprint(position), 1, time.Second)
		require.Empty(t, l.asked, "position %d", position)
	}
}

func TestDenyCacheGivesNoRoomToEndedDenials(t *testing.T) {
	l := &scriptedLimiter{}
	c, now := newTestDenyCache(t, l)
	l.answer = func() (Result, error) {
		*now += time.Second
		return deniedBy10(0, time.Second, time.Second), nil
	}
	r, err := c.TryAcquire(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, deniedBy10(0, time.Second, time.Second), r)
	require.Zero(t, c.denials(), "denials in the table")
}

func TestDenyCacheComparesWholeKeys(t *testing.T) {
	l := &scriptedLimiter{answer: func() (Result, error) { return deniedBy10(0, time.Hour, time.Hour), nil }}
	c, _ := newTestDenyCache(t, l)
	key := strings.Repeat("a string of which a key is a part, ", 3)[:10]
	_, err := c.TryAcquire(t.Context(), key)
	require.NoError(t, err)
	for i := range c.table.sets {
		for w := range c.table.sets[i] {
			d := c.table.sets[i][w].denial.Load()
			if d == nil {
				continue
			}
			hash := c.table.sets[i][w].hash.Load()
			r, ok := c.table.lookup(hash, key, 1, nil)
			require.True(t, ok, "the denial is not found by its own hash")
			require.Equal(t, deniedBy10(0, time.Hour, time.Hour), r)
			_, ok = c.table.lookup(hash, "another", 1, nil)
			require.False(t, ok, "another key of the same hash is denied")
			require.NotSame(t, unsafe.StringData(key), unsafe.StringData(d.key), "the caller's string is kept alive")
		}
	}
	require.Equal(t, 1, c.denials(), "denials in the table")
}
