package model

import (
	"maps"
	"math"
	"sync/atomic"
)

// A Reserver is a model of a bucket whose permits can be reserved.
type Reserver interface {
	Model

	// Reserve takes n permits if they are there within longest microseconds. due is when
	// that is, from now. cancel gives all of them back if the state has not changed since.
	// If others have reserved since, it does so when all of these have been cancelled. After a denial
	// it undoes a repair.
	Reserve(now int64, n int, longest int64) (answer Answer, due int64, cancel func())
}

// changes is what a cancel has to know of a state.
type changes struct {
	version  int64            // the number of its last change; no two changes have the same
	promised bool             // by a reservation that made the last change, permits that were not there
	waiting  map[int64]func() // while they are promised: the cancels that wait until the state has this version again
}

var lastChange atomic.Int64

func (c *changes) change() { *c = changes{version: lastChange.Add(1)} }

// reserved makes the last change one of a reservation that is due so many microseconds later, and whose
// cancel restores a state. It returns that cancel.
func (c *changes) reserved(due int64, before changes, restore func()) (cancel func()) {
	if due > 0 {
		c.promised, c.waiting = true, before.waiting
	}
	made := c.version
	return func() {
		if c.version != made && !c.promised {
			return
		}
		waiting := map[int64]func(){made: restore}
		maps.Copy(waiting, c.waiting)
		for restore := waiting[c.version]; restore != nil; restore = waiting[c.version] {
			delete(waiting, c.version)
			restore()
		}
		if c.promised {
			c.waiting = waiting
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
