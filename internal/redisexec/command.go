package redisexec

import (
	"context"
	"slices"
	"strconv"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit/internal/script"
)

// A Command is one execution of a script: its arguments, and its reply. Arguments that
// differ from call to call are passed as pointers to its fields, because boxing each one
// would allocate.
type Command struct {
	exec   *Executor
	script *script.Script
	whole  bool // the command carries the script's source, not its digest
	op     Op   // a run of such an operation is what the reply is to; 0 if the caller counts the words

	once Once
	key  string
	id   string // of a hold
	n    int

	names  []string // of the keys of packed requests
	limits []string // of which keys are shares, see Executor.Limit
	asks   []string // what these ask of each
	begins []int64  // see addTable
	common int      // the limiter, from 1, whose key all requests have in common; 0: none
	now    int64
	args   []any
	around [][5]int64 // of the executor's Instants
	moved  bool       // these are those of an OUTSIDE reply
	room   []int64    // for the words of a reply that is one integer
	words  []int64
}

// commands holds released commands, to be used again.
var commands = sync.Pool{New: func() any { return new(Command) }}

// maxPooledArgs is more than the largest batch needs, but for groups of many limiters that all differ.
const maxPooledArgs = 4096

func (e *Executor) newCommand() *Command {
	if !e.Pooled {
		return &Command{exec: e}
	}
	c := commands.Get().(*Command)
	c.exec = e
	return c
}

// Release puts c into the pool. c then refers neither to the caller's context, which
// the client's command holds, nor to the key, so that the pool keeps neither alive.
func (c *Command) Release() {
	if !c.exec.Pooled {
		return
	}
	clear(c.args)
	c.args = c.args[:0]
	if cap(c.args) > maxPooledArgs {
		c.args = nil
	}
	c.exec, c.script, c.whole, c.op, c.common = nil, nil, false, 0, 0
	c.once.Cmder, c.key, c.id, c.words = nil, "", "", nil
	clear(c.names)
	clear(c.asks)
	clear(c.limits)
	if cap(c.names) > maxPooledArgs {
		c.names, c.asks = nil, nil
	}
	commands.Put(c)
}

// Command returns a command for an operation on a key, to be sent in a pipeline. key is
// its name in Redis. The caller calls Release.
func (e *Executor) Command(key string, o Operation) (*Command, error) {
	c := e.newCommand()
	return c, c.operate(key, o)
}

// CommandMany returns a command for the requests of so many keys, to be sent in a
// pipeline. Its parameters are those of [Executor.DoMany]. The caller calls Release.
func (e *Executor) CommandMany(s *script.Script, keys int, request func(i int) (name *string, requests any)) (*Command, error) {
	c := e.newCommand()
	return c, c.many(s, keys, request)
}

// request makes c run One or Peek, for so many equal requests if they are to several limiters.
func (c *Command) request(s *script.Script, key string, o Operation) error {
	c.script, c.key, c.n, c.op = s, key, o.N, o.Op
	if c.exec.Several != nil {
		c.several(1, func(int) (string, any) { return key, count(o.Times) })
		return c.addClock()
	}
	c.addKey()
	if o.N == 1 {
		c.args = append(c.args, "1")
	} else {
		c.args = append(c.args, &c.n)
	}
	c.addConfig()
	return c.addClock()
}

// addKey adds the script, and the name of its key.
func (c *Command) addKey() {
	c.args = append(c.args, c.script.BySHA()...)
	if c.exec.Limit == nil {
		c.args = append(c.args, "1", &c.key)
		return
	}
	c.limits = append(c.limits[:0], c.exec.Limit(c.key))
	c.args = append(c.args, "2", &c.key, &c.limits[0])
}

// addKeys adds the script and room for the names of so many keys, which begin at c.args[names].
func (c *Command) addKeys(keys int) (names int) {
	all := keys
	if c.exec.Limit != nil {
		all = 2 * keys
	}
	c.args = append(append(c.args, c.script.BySHA()...), count(all))
	names = len(c.args)
	c.args = append(c.args, make([]any, all)...)
	return names
}

// addLimits adds the limits of the keys whose names begin at c.args[names].
func (c *Command) addLimits(keys, names int) {
	if c.exec.Limit == nil {
		return
	}
	c.limits = slices.Grow(c.limits[:0], keys)[:keys]
	for i := range keys {
		c.limits[i] = c.exec.Limit(*c.args[names+i].(*string))
		c.args[names+keys+i] = &c.limits[i]
	}
}

// many makes c run Many or Operations.
func (c *Command) many(s *script.Script, keys int, request func(i int) (name *string, requests any)) error {
	c.script = s
	if c.exec.Several != nil {
		c.several(keys, func(i int) (string, any) {
			name, requests := request(i)
			return *name, timesOf(requests)
		})
		return c.addClock()
	}
	names := c.addKeys(keys)
	c.args = append(c.args, "")
	c.addConfig()
	for i := range keys {
		name, requests := request(i)
		c.args[names+i] = name
		c.args = append(c.args, requests)
	}
	c.addLimits(keys, names)
	return c.addClock()
}

// counts are small numbers as arguments, because boxing a string allocates.
var counts = [...]any{"0", "1", "2", "3", "4", "5", "6", "7", "8"}

func count(n int) any {
	if n < len(counts) {
		return counts[n]
	}
	return strconv.Itoa(n)
}

func (c *Command) addClock() (err error) {
	if c.exec.Now != nil {
		if c.now, err = c.exec.Now(); err != nil {
			return err
		}
		c.args = append(c.args, c.exec.Spare, &c.now)
	}
	c.setInstants()
	return nil
}

// run executes c and reads its reply. After three errors, which say that nothing was taken, it
// sends the command again, once for each:
//
//   - Redis does not know the script: with the script's source
//   - the instants were too far off: with others
//   - one integer does not hold the words: with the script that replies with them
func (c *Command) run(ctx context.Context) error {
	for {
		err := c.send(ctx)
		switch {
		case c.Unknown(err):
			c.SendSource()
		case !c.Outside(err) && !c.Beside(err):
			return err
		}
	}
}

func (c *Command) send(ctx context.Context) error {
	c.once.Cmder = c.newCmd(ctx)
	if err := c.once.Send(ctx, c.exec.Client); err != nil {
		return err
	}
	return c.read()
}

// Cmd returns a new go-redis command for c, for several commands that are sent together.
func (c *Command) Cmd(ctx context.Context) redis.Cmder {
	c.once.Cmder = c.newCmd(ctx)
	return &c.once
}

// Unknown reports whether err says that Redis did not know the script, and c can be
// sent again with its source.
func (c *Command) Unknown(err error) bool { return IsUnknown(err) && !c.whole }

// SendSource makes c carry the script's source when it is sent again.
func (c *Command) SendSource() {
	c.whole = true
	copy(c.args, c.script.Whole())
}

// Beside reports whether err says that one integer does not hold the words, and makes c run
// the script that replies with them when it is sent again.
func (c *Command) Beside(err error) bool {
	if err != errBeside {
		return false
	}
	c.script, c.whole = c.exec.InWords, false
	copy(c.args, c.script.BySHA())
	return true
}
