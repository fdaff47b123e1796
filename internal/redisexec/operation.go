package redisexec

import (
	"context"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit/internal/await"
	"github.com/tryacquire/ratelimit/internal/script"
)

// An Op is what a call does to a key: the letter that operations.lua reads.
type Op byte

const (
	Take     Op = 'x' // permits, all or none
	Look     Op = 'l' // at what a Take would get, never beside others
	Estimate Op = 'e' // the same; the reply ends with the two words of a ticket
	Charge   Op = 'c' // permits, whether they fit or not
	GiveBack Op = 'g' // permits for which a ticket stands
	Lease    Op = 'd' // up to so many permits, to be spent within some time
	Reserve  Op = 's' // permits that may be used later
	Cancel   Op = 'z' // a reservation
	Pause    Op = 'p' // a key, for some time
	Resume   Op = 'f' // after a pause, because a call has succeeded
	Strike   Op = 't' // a key, with a pause of its own length
	Hold     Op = 'h' // permits in flight, see holds.lua
	Release  Op = 'r' // the permits of a hold
	Extend   Op = 'k' // the lease of a hold, never beside others
	Begin    Op = 'a' // an Estimate whose permits come back when its lease has ended, see tickets.lua
	More     Op = 'm' // permits that such a ticket takes too
	Settle   Op = 'u' // such a ticket: N is what was used
	Renew    Op = 'w' // the lease of such a ticket
	Finish   Op = 'F' // what a call to several limiters took: an operation of each, see finish.lua
)

// Own reports whether each such operation is a run of its own, with a Detail.
func (o Op) Own() bool { return o != Take && o != Estimate && o != Charge }

// Apart reports whether such an operation is loaded and stored on its own.
func (o Op) Apart() bool {
	switch o {
	case GiveBack, Lease, Reserve, Cancel, Pause, Resume, Strike, Begin, More, Settle, Renew, Finish:
		return true
	}
	return false
}

// An Operation is what one call, or several equal ones, do.
type Operation struct {
	Op      Op
	N       int // permits of each request
	Times   int // equal requests, of which as many are allowed as fit
	*Detail     // of an operation that is a run of its own; nil for the others
}

// A Detail is what only some operations have.
type Detail struct {
	Where, Which  int64  // the ticket of a GiveBack, Nowhere and 0 if there is none; the length of a Pause; the wait and the quiet time of a Strike
	Steps         string // of a Strike: a colon and the microseconds of each
	Longest       int64  // wait of a Reserve, time of a Lease, microseconds
	Shortest      int64  // time of a Lease: a bucket makes it as long as costs nothing, up to the Longest
	Waiting       int    // permits of a Lease, or as many of them as fit
	Epoch         int64  // of a Lease: what Redis may call the time that begins with it; above 1, below 2^53, and of no other Lease
	Wrote, Before string // of a Cancel: what the reservation wrote, and what the key held before it
	ID            string // of a Hold, its Release or Extend
	Ticket        string // of a Begin, More, Settle or Renew: its name as operations.lua reads it

	// Late gets the outcome of an operation that was sent and whose caller has left before; nil:
	// nobody needs it.
	Late func(Reply, error)
}

// Nowhere is where the permits are of a GiveBack without a ticket.
const Nowhere = -1

// IfLate is the Late of the Detail. It is nil if the operation has no Detail.
func (o Operation) IfLate() func(Reply, error) {
	if o.Detail == nil {
		return nil
	}
	return o.Late
}

// Append adds o as many.lua and operations.lua read it.
func (o Operation) Append(to []byte) []byte {
	to = append(strconv.AppendInt(to, int64(o.N), 10), byte(o.Op))
	switch o.Op {
	case GiveBack:
		if o.Where != Nowhere {
			to = strconv.AppendInt(to, o.Where, 10)
		}
		return strconv.AppendInt(append(to, '/'), o.Which, 10)
	case Pause:
		return strconv.AppendInt(to, o.Where, 10)
	case Resume:
		return to
	case Strike:
		to = append(strconv.AppendInt(to, o.Where, 10), '/')
		return append(strconv.AppendInt(to, o.Which, 10), o.Steps...)
	case Lease:
		to = append(strconv.AppendInt(to, int64(o.Waiting), 10), '/')
		to = append(strconv.AppendInt(to, o.Shortest, 10), '/')
		to = append(strconv.AppendInt(to, o.Longest, 10), '/')
		return strconv.AppendInt(to, o.Epoch, 10)
	case Reserve:
		return strconv.AppendInt(to, o.Longest, 10)
	case Cancel:
		return append(append(append(to, o.Wrote...), '|'), o.Before...)
	case Hold, Release:
		return append(to, o.ID...)
	case Begin, More, Settle, Renew:
		return append(to, o.Ticket...)
	}
	return strconv.AppendInt(to, int64(o.Times), 10)
}

// TicketWords is how many words say where permits are. They come after those of an Estimate's
// run.
const TicketWords = 2

// WordsOf is the number of words of the reply to a run of such operations, which that reply
// begins with. It is more than there are if the reply ends too soon.
func (e *Executor) WordsOf(op Op, reply []int64) int {
	switch op {
	case GiveBack, Cancel, Release, Extend:
		return 1
	case Estimate, Begin:
		return e.Words + TicketWords
	case More, Settle, Renew:
		return e.wordsOfTicket(op, reply)
	case Lease:
		return 1 + e.Words + TicketWords
	case Reserve:
		return e.wordsOfReservation(reply)
	case Finish:
		return e.wordsOfFinish(reply)
	}
	return e.Words
}

// What became of a ticket: the first word of the reply to its Settle.
const (
	LateCharged = iota // it had been given back, and all that was used was charged; then the words of the charge
	GaveBack           // then how many permits
	Charged            // what was used beyond it; then the words of the charge
	LateUnused         // it had been given back, and nothing was used
	Kept               // just as much was used
)

// wordsOfTicket is WordsOf for operations on one ticket, whose first word says what it has become.
func (e *Executor) wordsOfTicket(op Op, reply []int64) int {
	switch {
	case len(reply) == 0, op == Renew:
		return 1
	case op == More && reply[0] == 1:
		return 1 + e.Words + TicketWords
	case op == Settle && reply[0] == GaveBack:
		return 2
	case op == Settle && (reply[0] == LateCharged || reply[0] == Charged):
		return 1 + e.Words
	}
	return 1
}

var replies await.Pool[Reply]

// Ask runs an operation on its own. key is its name in Redis. Ask returns the context's error as
// soon as ctx ends; Redis may then execute the operation all the same, once, and Late gets the
// outcome. The caller calls Done on the reply.
func (e *Executor) Ask(ctx context.Context, key string, o Operation) (Reply, error) {
	if ctx.Done() == nil { // a closure would allocate
		return e.Operate(ctx, key, o)
	}
	reply, left, err := replies.Do(ctx, func() (Reply, error) { return e.Operate(ctx, key, o) }, o.IfLate())
	reply.Late = left
	return reply, err
}

// Operate is Ask, but it waits for the client even after ctx has ended.
func (e *Executor) Operate(ctx context.Context, key string, o Operation) (Reply, error) {
	if o.Op == Release {
		_, err := e.release(ctx, key, o)
		return Reply{Words: released}, err
	}
	c := e.newCommand()
	err := c.operate(key, o)
	if err == nil {
		err = c.run(ctx)
	}
	if err != nil {
		c.Release()
		return Reply{}, err
	}
	return Reply{Words: c.words, command: c}, nil
}

// operate makes c run an operation on its own.
func (c *Command) operate(key string, o Operation) error {
	switch {
	case o.Op == Look:
		return c.request(c.exec.Peek, key, o)
	case o.Op == Take && (o.Times == 1 || c.exec.Several != nil):
		return c.request(c.exec.One, key, o)
	case o.Op == Finish:
		return c.request(c.exec.Operations, key, o)
	case o.Op == Hold:
		return c.hold(c.exec.One, key, o)
	case o.Op == Extend:
		return c.hold(c.exec.Extend, key, o)
	}
	c.script, c.key, c.op = c.exec.Alone, key, o.Op
	c.addKey()
	c.args = append(c.args, "")
	c.addConfig()
	c.args = append(c.args, o.Append(nil))
	return c.addClock()
}

// hold makes c run a script for one hold.
func (c *Command) hold(s *script.Script, key string, o Operation) error {
	c.script, c.key, c.op, c.n, c.id = s, key, o.Op, o.N, o.ID
	c.args = append(append(c.args, s.BySHA()...), "1", &c.key, &c.n)
	c.addConfig()
	c.args = append(c.args, &c.id)
	return c.addClock()
}

// released are the words of a release.
var released = []int64{1}

// ReleaseLate releases a hold whose command brought no reply. Redis may execute that command after a release that was
// sent later, on another connection: of the connections that have sent something, it reads one after the other, in an
// order of its own. When the release has its answer, the command's connection has had its turn too. So where nothing was
// there to be released, it is released once more.
func (e *Executor) ReleaseLate(ctx context.Context, key string, o Operation) error {
	removed, err := e.release(ctx, key, o)
	if removed == 0 && err == nil {
		_, err = e.release(ctx, key, o)
	}
	return err
}

// ReleaseAgain releases a hold that was taken, and whose release may not have been executed.
func (e *Executor) ReleaseAgain(ctx context.Context, key string, o Operation) error {
	_, err := e.release(ctx, key, o)
	return err
}

// release removes the permits of a hold. It may be sent several times. removed is how many permits were there.
func (e *Executor) release(ctx context.Context, key string, o Operation) (removed int64, err error) {
	rule := *e.Args[len(e.Args)-1].(*string) // with which the names of permits end
	texts, args := make([]string, 1+o.N), make([]any, 2+o.N)
	args[0], texts[0] = "zrem", key
	for i := range texts {
		if i > 0 {
			texts[i] = strconv.Itoa(i) + "/" + o.ID + rule
		}
		args[i+1] = &texts[i] // boxing each would allocate
	}
	cmd := redis.NewIntCmd(ctx, args...)
	err = Send(ctx, e.Client, cmd)
	return cmd.Val(), err
}
