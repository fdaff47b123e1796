package recent

import (
	"errors"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// counting returns a cache of texts, and how often each was made.
func counting(size int) (*Cache[int, string], map[int]int) {
	made := map[int]int{}
	return New(size, func(n int) (string, error) {
		made[n]++
		return strconv.Itoa(n), nil
	}), made
}

func get(t *testing.T, c *Cache[int, string], keys ...int) {
	t.Helper()
	for _, key := range keys {
		value, err := c.Get(key)
		require.NoError(t, err)
		require.Equal(t, strconv.Itoa(key), value)
	}
}

func TestEachValueIsMadeOnce(t *testing.T) {
	c, made := counting(3)
	get(t, c, 1, 2, 3, 1, 2, 3, 3)
	require.Equal(t, map[int]int{1: 1, 2: 1, 3: 1}, made)
	require.Equal(t, 3, c.Len())
}

// TestANewValueTakesThePlaceOfOneThatWasNotUsed. Making a value does not count as a use of it.
func TestANewValueTakesThePlaceOfOneThatWasNotUsed(t *testing.T) {
	c, made := counting(3)
	get(t, c, 1, 2, 3, 1, 3) // 2 was made, and not used since
	get(t, c, 4)             // takes the place of 2
	require.Equal(t, 3, c.Len())
	get(t, c, 1, 3, 4)
	require.Equal(t, map[int]int{1: 1, 2: 1, 3: 1, 4: 1}, made)
	get(t, c, 2) // all were used: takes the place at the hand, that of 3
	get(t, c, 1, 4)
	require.Equal(t, map[int]int{1: 1, 2: 2, 3: 1, 4: 1}, made)
	get(t, c, 3)
	require.Equal(t, map[int]int{1: 1, 2: 2, 3: 2, 4: 1}, made)
	require.Equal(t, 3, c.Len())
}

func TestOfManyKeysAsManyAsFitAreKept(t *testing.T) {
	c, made := counting(100)
	for key := range 10_000 {
		get(t, c, key, 7) // 7 is in use all the time
	}
	require.Equal(t, 100, c.Len())
	require.Len(t, c.places, 100)
	require.Equal(t, 1, made[7])
}

func TestAnErrorIsNotKept(t *testing.T) {
	fails := errors.New("no")
	c := New(1, func(int) (string, error) { return "", fails })
	_, err := c.Get(1)
	require.ErrorIs(t, err, fails)
	require.Zero(t, c.Len())
	fails = nil
	_, err = c.Get(1)
	require.NoError(t, err)
	require.Equal(t, 1, c.Len())
}

func TestManyCallersGetOneValue(t *testing.T) {
	c := New(64, func(int) (*int, error) { return new(int), nil })
	var wg sync.WaitGroup
	all := make([][]*int, 8)
	for i := range all {
		wg.Go(func() {
			for key := range 64 {
				p, _ := c.Get(key)
				all[i] = append(all[i], p)
			}
		})
	}
	wg.Wait()
	for _, one := range all[1:] {
		for key, p := range one {
			require.Same(t, all[0][key], p)
		}
	}
}
