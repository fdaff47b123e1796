package merge

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/tryacquire/ratelimit/internal/redisexec"
)

// A queue is where the calls for one server wait. A waiting batch is sent when
// another batch is done, when a call arrives and the last send was minInterval ago or
// a crowd waits, or by a timer: a slow network, or a reply that never comes, does not
// hold calls back. The goroutine of a batch ends when nobody waits.
type queue struct {
	sender *sender
	prefix string // of keys in Redis

	mu       sync.Mutex     // guards all below, and batches until they are sent
	waiting  []*batch       // in their order
	open     *batch         // the last of those; nil when it takes no more calls
	last     map[string]int // of the open one: each key's last run
	callers  int            // in all waiting batches
	inFlight int            // batches, and calls that are sent directly
	gathers  int            // of those in flight: done, and about to send the waiting calls
	lastSent time.Duration  // since epoch
	timer    *time.Timer    // sends the waiting calls if nothing else does
	timerSet bool
}

const (
	maxInFlight    = 16                     // batches of a queue at a time
	maxKeys        = 128                    // of a batch: its server serves nothing else until they are decided
	maxCalls       = 1024                   // of a batch
	crowdThreshold = 64                     // so many calls are sent although one batch is in flight
	minInterval    = 200 * time.Microsecond // between sends while others are in flight
	maxDelay       = 500 * time.Microsecond // after the last send waiting calls are sent, even if no other call came
)

// epoch is what instants are counted from: a Duration is smaller than a Time.
var epoch = time.Now()

// acquire takes n permits from key.
func (q *queue) acquire(ctx context.Context, key string, n int) (redisexec.Reply, error) {
	cancellable, deadline := ctx.Done() != nil, noDeadline
	if cancellable {
		if d, ok := ctx.Deadline(); ok {
			deadline = d.Sub(epoch)
		}
	}
	s, b, direct := q.enter(ctx, key, n, deadline, !cancellable)
	if direct {
		return q.acquireDirectly(ctx, key, n)
	}
	q.start(b)
	if !cancellable {
		<-s.batch.done
		return s.outcome()
	}
	select {
	case <-s.batch.done:
		return s.outcome()
	case <-ctx.Done():
		q.leave(s)
		return redisexec.Reply{}, ctx.Err()
	}
}

// acquireDirectly makes a call in the caller's goroutine. It is counted as in flight.
func (q *queue) acquireDirectly(ctx context.Context, key string, n int) (redisexec.Reply, error) {
	defer func() { q.start(q.finish(1)) }() // even if a hook of the client panics
	return q.sender.sendOne(ctx, q.prefix+key, n)
}

// enter gives a call a slot, and returns the batch that can be sent now, if any. Where
// nothing is in flight, a call that may be sent directly needs no slot: direct is then
// true, and the call is counted as in flight.
func (q *queue) enter(ctx context.Context, key string, n int, deadline time.Duration, mayDirectly bool) (s slot, b *batch, direct bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if mayDirectly && q.inFlight == 0 {
		q.inFlight, q.lastSent = 1, time.Since(epoch)
		return slot{}, nil, true
	}
	joined := false
	if q.open != nil {
		s, joined = q.open.join(key, n, deadline)
	}
	if !joined {
		s = q.add(ctx, key, n, deadline)
	}
	q.callers++
	if !joined || q.gathers == 0 { // else it is sent in a moment, and reading the clock would be felt
		b = q.next()
	}
	return s, b, false
}

// add gives a call a slot in the open batch, or in another one behind it. It is called
// with mu held.
func (q *queue) add(ctx context.Context, key string, n int, deadline time.Duration) slot {
	if q.open != nil {
		if s, ok := q.open.add(ctx, q.prefix, key, n, deadline, q.last); ok {
			return s
		}
	}
	if q.last == nil {
		q.last = map[string]int{}
	}
	clear(q.last)
	q.open = newBatch()
	q.waiting = append(q.waiting, q.open)
	s, _ := q.open.add(ctx, q.prefix, key, n, deadline, q.last)
	return s
}

// next is the batch that can be sent now, or nil. It is called with mu held.
func (q *queue) next() *batch {
	crowd := q.inFlight == 1 && q.callers >= crowdThreshold
	if q.inFlight > 0 && !crowd && time.Since(epoch)-q.lastSent < minInterval {
		q.setTimer()
		return nil
	}
	return q.take()
}

// setTimer makes sure that waiting calls are sent if no batch is done and no call
// comes. It is called with mu held.
func (q *queue) setTimer() {
	if q.timerSet || q.inFlight == maxInFlight || q.callers == 0 {
		return
	}
	q.timerSet = true
	wait := q.lastSent + maxDelay - time.Since(epoch)
	if q.timer == nil {
		q.timer = time.AfterFunc(wait, func() { q.start(q.onTimer()) })
	} else {
		q.timer.Reset(wait)
	}
}

// onTimer is the batch that the timer sends, or nil.
func (q *queue) onTimer() *batch {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.timerSet = false
	if q.inFlight == 0 {
		return nil // the last that was done found nobody waiting
	}
	return q.next()
}

// take takes the first waiting batch and counts it as in flight. It returns nil if no
// call waits or too many batches are in flight. It is called with mu held.
func (q *queue) take() *batch {
	if q.inFlight == maxInFlight || q.callers == 0 {
		return nil
	}
	b := q.waiting[0]
	q.remove(b)
	q.callers -= b.callers
	q.inFlight++
	q.lastSent = time.Since(epoch)
	q.setTimer() // for those that found no slot in it
	return b
}

// finish notes that a batch of so many callers is done, and returns the batch to send
// next, or nil when no call waits.
func (q *queue) finish(callers int) *batch {
	q.mu.Lock()
	defer q.mu.Unlock()
	if callers > 1 {
		q.gather(callers)
	}
	q.inFlight--
	return q.take()
}

// gather lets callers that were just answered run, for as long as they come to wait
// again: a batch that is sent at once would be nearly empty. It does not wait for
// goroutines that are blocked. It is called with mu held, and gives mu up in between.
func (q *queue) gather(most int) {
	q.gathers++
	for last, now := -2, -1; now > last && now < most; {
		q.mu.Unlock()
		runtime.Gosched()
		q.mu.Lock()
		last, now = now, q.callers
	}
	q.gathers--
}

// idle reports whether nobody waits and nothing is in flight.
func (q *queue) idle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.callers == 0 && q.inFlight == 0
}

// leave notes that the caller in s no longer waits. If its batch was not sent yet, the
// call is left out of it. A batch that nobody waits for is dropped, so that a hung
// server cannot fill the memory.
func (q *queue) leave(s slot) {
	q.mu.Lock()
	defer q.mu.Unlock()
	b := s.batch
	if b.closed {
		return
	}
	s.leave()
	q.callers--
	if b.callers == 0 {
		q.remove(b)
	}
}

// remove takes b from the waiting batches. It is called with mu held.
func (q *queue) remove(b *batch) {
	b.closed = true
	q.waiting = slices.DeleteFunc(q.waiting, func(other *batch) bool { return other == b })
	if q.open == b {
		q.open = nil // the batches before it were full, and last is not theirs
	}
}

// start sends b, if it is not nil, and all that follow it.
func (q *queue) start(b *batch) {
	if b != nil {
		go q.sendAll(b)
	}
}

func (q *queue) sendAll(b *batch) {
	redisexec.GrowStack()
	defer func() {
		if b != nil { // a hook of the client ended the goroutine
			q.start(q.finish(1))
		}
	}()
	for b != nil {
		q.sender.send(b)
		b = q.finish(b.callers)
	}
}
