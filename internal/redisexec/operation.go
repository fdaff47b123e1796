package redisexec

import (
	"context"
	"strconv"
)

// An Op is what a call does to a key: the letter that operations.lua reads.
type Op byte

const (
	Take     Op = 'x' // permits, all or none
	Estimate Op = 'e' // the same; the reply ends with the two words of a ticket
	Charge   Op = 'c' // permits, whether they fit or not
	GiveBack Op = 'g' // permits for which a ticket stands
)

// An Operation is what one call, or several equal ones, do.
type Operation struct {
	Op           Op
	N            int   // permits of each request
	Times        int   // equal requests, of which as many are allowed as fit
	Where, Which int64 // the ticket of a GiveBack
}

// Append adds o as many.lua and operations.lua read it.
func (o Operation) Append(to []byte) []byte {
	to = append(strconv.AppendInt(to, int64(o.N), 10), byte(o.Op))
	if o.Op != GiveBack {
		return strconv.AppendInt(to, int64(o.Times), 10)
	}
	to = append(strconv.AppendInt(to, o.Where, 10), '/')
	return strconv.AppendInt(to, o.Which, 10)
}

// TicketWords is how many words say where permits are. They come after those of an Estimate's
// run.
const TicketWords = 2

// WordsOf is the number of words of the reply to a run of such operations.
func (e *Executor) WordsOf(op Op) int {
	switch op {
	case GiveBack:
		return 1
	case Estimate:
		return e.Words + TicketWords
	}
	return e.Words
}

// Operate runs an operation on its own. key is its name in Redis. It waits for the client even
// after ctx has ended. The caller calls Done on the reply.
func (e *Executor) Operate(ctx context.Context, key string, o Operation) (Reply, error) {
	c := e.newCommand()
	err := c.operate(key, o)
	if err == nil {
		err = c.run(ctx)
	}
	if err != nil {
		c.release()
		return Reply{}, err
	}
	return Reply{Words: c.words, command: c}, nil
}

// operate makes c run an operation on its own.
func (c *Command) operate(key string, o Operation) error {
	if o.Op == Take && (o.Times == 1 || c.exec.Several != nil) {
		return c.requests(c.exec.One, key, o.N, o.Times)
	}
	c.script, c.key, c.expect = c.exec.Operations, key, c.exec.WordsOf(o.Op)
	c.args = append(append(c.args, c.script.BySHA...), "1", &c.key, "")
	c.addConfig()
	c.args = append(c.args, o.Append(nil))
	return c.addClock()
}
