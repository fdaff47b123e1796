// Package recent keeps values that are costly to make and were used lately.
package recent

import (
	"sync"
	"sync/atomic"
)

// A Cache makes the value of a key once, and keeps it until more keys than fit are in use. A
// new key then takes the place of one that was not used for a while, by the CLOCK algorithm
// (second chance). A use writes nothing but one bit, once, so that readers do not wait
// for one another.
type Cache[K comparable, V any] struct {
	size int
	make func(K) (V, error)

	mu     sync.RWMutex
	places map[K]*place[K, V]
	clock  []*place[K, V] // grows to size
	hand   int            // the place of clock that is looked at next
}

type place[K comparable, V any] struct {
	key   K
	value V
	used  atomic.Bool // since the hand passed
}

// New returns a cache of at most size values, which make makes.
func New[K comparable, V any](size int, make func(K) (V, error)) *Cache[K, V] {
	return &Cache[K, V]{size: size, make: make, places: map[K]*place[K, V]{}}
}

// Get returns the value of key. It returns the error of make, which is not kept.
func (c *Cache[K, V]) Get(key K) (V, error) {
	c.mu.RLock()
	p := c.places[key]
	c.mu.RUnlock()
	if p == nil {
		return c.add(key)
	}
	if !p.used.Load() {
		p.used.Store(true)
	}
	return p.value, nil
}

// Len is the number of values that are kept.
func (c *Cache[K, V]) Len() int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.clock)
}

func (c *Cache[K, V]) add(key K) (V, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.places[key]; p != nil { // another caller was faster
		return p.value, nil
	}
	value, err := c.make(key)
	if err != nil {
		return value, err
	}
	p := &place[K, V]{key: key, value: value}
	if len(c.clock) < c.size {
		c.clock = append(c.clock, p)
	} else {
		i := c.unused()
		delete(c.places, c.clock[i].key)
		c.clock[i] = p
	}
	c.places[key] = p
	return value, nil
}

// unused moves the hand past the first place that was not used since the hand last passed it,
// and returns that place.
func (c *Cache[K, V]) unused() int {
	for {
		i := c.hand
		c.hand = (i + 1) % len(c.clock)
		if !c.clock[i].used.Swap(false) {
			return i
		}
	}
}
