package merge

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/tryacquire/ratelimit/internal/await"
	"github.com/tryacquire/ratelimit/internal/redisexec"
)

// A queue sends the calls for one server. While few calls are in flight, a call is sent
// at once, directly, unless a batch of several calls was done a moment ago. The others wait
// in batches. A waiting batch is sent
//
//   - when another batch is done, or few calls are left in flight
//   - when a call arrives, if the last batch was sent minInterval ago or earlier
//   - when few calls are in flight, and all goroutines that can run have added theirs
//   - when crowdThreshold calls wait behind at most one batch
//   - by a timer, maxDelay after the last batch was sent
//
// So a slow network, or a reply that never comes, does not hold calls back. The goroutine of a
// batch ends when no call waits.
type queue struct {
	sender *sender

	mu       sync.Mutex      // guards all below, and batches until they are sent
	waiting  []*batch        // in the order of their first calls
	open     *batch          // the last of waiting; nil when that takes no more calls
	last     map[lastKey]int // each key's last run in open
	callers  int             // callers that wait, in all waiting batches
	calls    int             // in flight: direct ones and those of batches
	batches  int             // in flight
	gathers  int             // goroutines in gather, about to send the waiting calls
	lastSent time.Duration   // when the last batch or call was sent, since epoch
	together time.Duration   // when a batch of several calls was done last, since epoch
	timer    *time.Timer     // sends the waiting calls if nothing else does
	timerSet bool
}

// FewCalls: with fewer in flight, a call is sent directly. To wait would cost it more than
// merging saves.
const FewCalls = 8

const (
	maxInFlight    = 16                     // batches of a queue that are in flight at a time
	maxKeys        = 128                    // of a batch: its server serves nothing else until they are decided
	maxCalls       = 1024                   // of a batch
	maxCost        = 2000                   // of a batch of several calls, in Redis commands: about a millisecond
	crowdThreshold = 64                     // so many waiting calls are sent at once, even if a batch is in flight
	minInterval    = 200 * time.Microsecond // between two batches, while others are in flight
	maxDelay       = 500 * time.Microsecond // waiting calls are sent so long after the last batch, even if no other call comes
	crowdTime      = time.Millisecond       // for so long after a batch of several calls, a call that comes is likely to be one of several
)

// epoch is the instant from which the others are counted: a Duration is smaller than a
// Time.
var epoch = time.Now()

// Instant is the instant of a Batch's Sent.
func Instant(sent time.Duration) time.Time { return epoch.Add(sent) }

// operate decides an operation on key.
func (q *queue) operate(ctx context.Context, l *Limit, key string, o redisexec.Operation) (redisexec.Reply, error) {
	cancellable, deadline := ctx.Done() != nil, noDeadline
	if cancellable {
		if d, ok := ctx.Deadline(); ok {
			deadline = d.Sub(epoch)
		}
	}
	s, b, direct := q.enter(ctx, l, key, o, deadline)
	if direct {
		return q.operateDirectly(ctx, l, key, o)
	}
	q.start(b)
	if !cancellable {
		<-s.batch.done
		return s.reply()
	}
	select {
	case <-s.batch.done:
		return s.reply()
	case <-ctx.Done():
		sent := q.leave(s)
		if sent != redisexec.Unsent {
			if late := o.IfLate(); late != nil {
				go func() {
					<-s.batch.done
					late(s.reply())
				}()
			}
		}
		return redisexec.Reply{Batch: sent, Late: true}, ctx.Err()
	}
}

var replies await.Pool[redisexec.Reply]

// operateDirectly makes a call that enter has counted as in flight. The call stays in
// flight until its execution has ended, even if its caller leaves.
func (q *queue) operateDirectly(ctx context.Context, l *Limit, key string, o redisexec.Operation) (redisexec.Reply, error) {
	if ctx.Done() == nil { // a closure would allocate
		return q.sendDirectly(ctx, l, key, o)
	}
	reply, left, err := replies.Do(ctx, func() (redisexec.Reply, error) { return q.sendDirectly(ctx, l, key, o) }, o.IfLate())
	reply.Late = left
	return reply, err
}

func (q *queue) sendDirectly(ctx context.Context, l *Limit, key string, o redisexec.Operation) (redisexec.Reply, error) {
	defer func() { q.start(q.finishDirect()) }() // even if a hook of the client panics
	return q.sender.sendOne(ctx, l.Exec, l.Name(key), o)
}

// enter counts a call as in flight where it may be sent directly: direct is then true.
// Otherwise it gives the call a slot, and returns the batch that can be sent now, if any.
func (q *queue) enter(ctx context.Context, l *Limit, key string, o redisexec.Operation, deadline time.Duration) (s slot, b *batch, direct bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	few := q.calls < FewCalls
	if few {
		if now := time.Since(epoch); q.together == 0 || now-q.together > crowdTime {
			q.calls++
			q.lastSent = now
			return slot{}, nil, true
		}
	}
	joined := false
	if q.open != nil {
		s, joined = q.open.join(l, key, o, deadline)
	}
	if !joined {
		s = q.add(ctx, l, key, o, deadline)
	}
	q.callers++
	if q.gathers > 0 && (joined || few) { // it is sent in a moment; next would read the clock, which costs too much here
		return s, nil, false
	}
	if few {
		q.gather(maxCalls)
	}
	return s, q.next(), false
}

// add gives a call a slot in the open batch, or in a new one behind it. It is called
// with mu held.
func (q *queue) add(ctx context.Context, l *Limit, key string, o redisexec.Operation, deadline time.Duration) slot {
	if q.open != nil {
		if s, ok := q.open.add(ctx, l, key, o, deadline, q.last); ok {
			return s
		}
	}
	if q.last == nil {
		q.last = map[lastKey]int{}
	}
	clear(q.last)
	q.open = newBatch()
	q.waiting = append(q.waiting, q.open)
	s, _ := q.open.add(ctx, l, key, o, deadline, q.last)
	return s
}

// next is the batch that can be sent now, or nil. It is called with mu held.
func (q *queue) next() *batch {
	crowd := q.batches <= 1 && q.callers >= crowdThreshold
	if q.calls >= FewCalls && !crowd && time.Since(epoch)-q.lastSent < minInterval {
		q.setTimer()
		return nil
	}
	return q.take()
}

// setTimer makes sure that waiting calls are sent if no batch is done and no call
// comes. It is called with mu held.
func (q *queue) setTimer() {
	if q.timerSet || q.batches == maxInFlight || q.callers == 0 {
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
	return q.next()
}

// take takes the first waiting batch and counts it as in flight. It returns nil if no
// call waits or too many batches are in flight. It is called with mu held.
func (q *queue) take() *batch {
	if q.batches == maxInFlight || q.callers == 0 {
		return nil
	}
	b := q.waiting[0]
	q.remove(b)
	q.callers -= b.callers
	q.calls += b.callers
	q.batches++
	q.lastSent = time.Since(epoch)
	b.sent = redisexec.Batch{Calls: b.callers, Sent: q.lastSent}
	q.setTimer() // for the calls that are not in b
	return b
}

// takeWhileFew is take while few calls are in flight, and nil otherwise.
func (q *queue) takeWhileFew() *batch {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.calls >= FewCalls {
		return nil
	}
	return q.take()
}

// finish notes that b is done, and returns the batch to send next, or nil when no call
// waits.
func (q *queue) finish(b *batch) *batch {
	q.mu.Lock()
	defer q.mu.Unlock()
	if b.callers > 1 {
		q.gather(b.callers)
		q.together = time.Since(epoch)
	}
	q.calls -= b.callers
	q.batches--
	return q.take()
}

// finishDirect notes that a direct call is done, and returns the batch to send next, if
// any. While many calls are in flight, that is none: the calls that wait go together when
// a batch is done.
func (q *queue) finishDirect() *batch {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.calls--
	if q.callers == 0 {
		return nil
	}
	return q.next()
}

// gather lets callers that were just answered run, for as long as further calls come,
// because these callers often call again at once: without it the next batch would be
// nearly empty. Callers that ask over a network come a little later, several at a time, and
// the first of them gathers the others. It does not wait for goroutines that are blocked. It
// is called with mu held, and unlocks it for a while.
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

// idle reports whether no call waits and nothing is in flight.
func (q *queue) idle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.callers == 0 && q.calls == 0
}

// leave notes that the caller of s no longer waits. If its batch was not sent yet, the
// call is taken out of it. A batch that no caller waits for is dropped, so that a hung
// server cannot fill the memory. It returns how the call was sent.
func (q *queue) leave(s slot) *redisexec.Batch {
	q.mu.Lock()
	defer q.mu.Unlock()
	b := s.batch
	if b.closed {
		return &b.sent
	}
	s.leave()
	q.callers--
	if b.callers == 0 {
		q.remove(b)
	}
	return redisexec.Unsent
}

// remove takes b from the waiting batches. It is called with mu held.
func (q *queue) remove(b *batch) {
	b.closed = true
	q.waiting = slices.DeleteFunc(q.waiting, func(other *batch) bool { return other == b })
	if q.open == b {
		q.open = nil // the batches in front of it are full, and last is not about them
	}
}

// start sends b, if it is not nil, and then the batches that wait when b is done.
func (q *queue) start(b *batch) {
	if b != nil {
		go q.sendAll(b)
	}
}

func (q *queue) sendAll(b *batch) {
	await.GrowStack()
	defer func() {
		if b != nil { // a hook of the client ended the goroutine
			q.start(q.finish(b))
		}
	}()
	for b != nil {
		q.start(q.takeWhileFew()) // the calls that b has no room for
		q.sender.send(b)
		b = q.finish(b)
	}
}
