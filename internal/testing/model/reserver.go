package model

import (
	"math"
	"sync/atomic"
)

// A Reserver is a model of a bucket whose permits can be reserved.
type Reserver interface {
	Model

	// Reserve takes n permits if they are there within longest microseconds. due is when
	// that is, from now. cancel gives all of them back if the state has not changed since,
	// and otherwise nothing.
	Reserve(now int64, n int, longest int64) (answer Answer, due int64, cancel func())
}

// changes is the number of a state's last change. No two changes have the same, so that a
// cancel notices every one.
type changes struct{ version int64 }

var lastChange atomic.Int64

func (c *changes) change() { c.version = lastChange.Add(1) }

// unlessChanged returns a function that calls f if the state has not changed by then.
func (c *changes) unlessChanged(f func()) func() {
	made := c.version
	return func() {
		if c.version == made {
			f()
		}
	}
}

// longest is how long a call waits for its permits: a charge, for as long as it takes.
func longest(charge bool) int64 {
	if charge {
		return math.MaxInt64
	}
	return 0
}
