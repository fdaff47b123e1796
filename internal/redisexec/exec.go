// Package redisexec runs the scripts of one limiter on Redis: it builds the
// command, sends it at most once, and checks the reply.
package redisexec

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit/internal/redisclient"
	"github.com/tryacquire/ratelimit/internal/script"
)

// An Executor runs the scripts of one limiter. Its fields do not change once it is
// in use.
type Executor struct {
	Client          redisclient.Client
	One, Peek, Many *script.Script // for one request; for a Peek; for many requests
	Operations      *script.Script // for operations of all kinds
	Alone           *script.Script // for one of them
	Extend          *script.Script // begins the lease of a hold again; nil: permits are not held

	// ManyOfSeveral and OperationsOfSeveral are Many and Operations for keys of several limiters of
	// the algorithm, or for requests to several groups of limiters of the same algorithms. Their Args
	// then are a table. They are nil if calls are merged with those of the same limiter only.
	ManyOfSeveral, OperationsOfSeveral *script.Script

	Args    []any     // the algorithm's ARGV, see Texts
	Words   int       // of the reply to a run of equal requests
	Several []Limiter // that each call is for, whose key is then a packed request; nil: one
	Cost    Cost      // of an execution for many requests

	// Limit returns the name of the limit that a key shares with others, which stands in KEYS too, behind all keys of
	// callers. It is nil if a key has a limit of its own.
	Limit func(name string) string

	// Own says that what Limit names is of this key alone, and is deleted with it: its tickets.
	Own bool

	// Unpack turns the reply of One, where that is one integer, into words. If Unpack is
	// nil, the reply is an array of the words, as that of Peek always is.
	Unpack func(reply int64, words []int64)

	// Short says that One leaves out the zeros at the end of its words.
	Short bool

	// InWords is One, but its reply is an array of the words. If One replies Beside, which
	// means that nothing was taken, InWords decides. It is nil if One never replies so.
	InWords *script.Script

	// Now reads the caller's clock, in microseconds. If it is nil, the server's clock
	// decides.
	Now func() (int64, error)

	// Spare goes with Now: what every TTL is longer by, in milliseconds.
	Spare any

	// Instants are those of Args that change with time. They are nil for most algorithms.
	Instants *Instants

	// Others are further scripts of the limiter, to be loaded with these.
	Others []*script.Script

	// Pooled is true if the client does not use a command after Process has returned,
	// so that the command's memory can be used again.
	Pooled bool
}

// Texts are arguments of a command that stand next to each other in memory. With thousands of
// limiters, those of a call are seldom in the processor's cache, and each string on its own would be
// loaded with two lines of it.
func Texts(texts []string) []any {
	joined := strings.Join(texts, "")
	parts, args := make([]string, len(texts)), make([]any, len(texts))
	for i, text := range texts {
		parts[i], joined = joined[:len(text)], joined[len(text):]
		args[i] = &parts[i]
	}
	return args
}

// A Limiter is one of several that decide together, in the order of the scripts.
type Limiter struct {
	Args  int                      // of the executor, that are its own
	Words int                      // of the reply to a request
	Limit func(name string) string // see Executor
	Own   bool                     // see Executor

	// Common and CommonOfSeveral are Many and ManyOfSeveral, for requests that have the key of this
	// limiter in common. They are nil where requests have ids.
	Common, CommonOfSeveral *script.Script
}

// Cost estimates the server's time for an execution, during which it serves nothing
// else. The unit is what a Redis command takes in a script, about half a microsecond.
type Cost struct {
	Key    int // to load a key, decide one request for one permit, and store the key
	Run    int // for each run beyond that: requests for several permits, or for as many as other ones
	Permit int // for each permit that is taken
	Back   int // for permits that are given back, beyond loading and storing the key twice
}

// A Reply is a script's reply to a run of equal requests, and the index of one request
// in that run.
type Reply struct {
	Words []int64
	Index int64  // of the request, from 0
	Batch *Batch // nil: the call was sent on its own
	Late  bool   // the caller has left, and the operation's Late gets the reply

	command *Command // holds Words; nil: nothing to release
}

// A Batch says how a call was sent that was merged with others. The reply to a failed call
// has it too.
type Batch struct {
	Calls int           // sent together; 0: the call was not sent
	Sent  time.Duration // when, on the clock of package merge; 0: at once
}

// Unsent is the Batch of a call that was not sent.
var Unsent = &Batch{}

// Done releases the reply's memory. Words must not be used after it.
func (r Reply) Done() {
	if r.command != nil {
		r.command.Release()
	}
}

// Keep releases the reply's memory and returns the words, which the caller may keep.
func (r Reply) Keep() []int64 {
	words := r.Words
	if r.command != nil {
		if r.command.exec.Unpack != nil || r.command.exec.Short { // the words are in the command's own memory
			words = slices.Clone(words)
		}
		r.command.Release()
	}
	return words
}

// DoMany runs Many or Operations for so many keys. It waits for the client even after
// ctx has ended. request returns the name of key i in Redis and the requests for it, as
// the script reads them. The caller may keep the words.
func (e *Executor) DoMany(ctx context.Context, s *script.Script, keys int, request func(i int) (name *string, requests any)) ([]int64, error) {
	c := e.newCommand()
	defer c.Release()
	if err := c.many(s, keys, request); err != nil {
		return nil, err
	}
	if err := c.run(ctx); err != nil {
		return nil, err
	}
	return c.words, nil
}

// Delete deletes the key, or those of a packed request. It returns the context's error as
// soon as ctx ends.
func (e *Executor) Delete(ctx context.Context, key string) error {
	args := []any{"unlink"}
	if e.Several == nil {
		args = append(args, key)
		if e.Own {
			args = append(args, e.Limit(key))
		}
	} else {
		names, _ := unpack(key, len(e.Several), nil, nil)
		for i, name := range names {
			args = append(args, name)
			if l := e.Several[i]; l.Own {
				args = append(args, l.Limit(name))
			}
		}
	}
	_, _, err := replies.Do(ctx, func() (Reply, error) {
		unlink := Once{redis.NewIntCmd(ctx, args...)}
		return Reply{}, unlink.Send(ctx, e.Client)
	}, nil)
	return err
}

// Scripts are all scripts of the limiter.
func (e *Executor) Scripts() []*script.Script {
	scripts := append([]*script.Script{e.One, e.Peek}, e.Others...)
	for _, s := range []*script.Script{e.Many, e.Operations, e.Alone, e.Extend, e.InWords, e.ManyOfSeveral, e.OperationsOfSeveral} {
		if s != nil {
			scripts = append(scripts, s)
		}
	}
	for _, l := range e.Several {
		scripts = append(scripts, l.Common)
		if e.ManyOfSeveral != nil {
			scripts = append(scripts, l.CommonOfSeveral)
		}
	}
	return scripts
}

// Load loads scripts, on every master of a cluster and every shard of a ring. It returns the context's error as soon as
// ctx ends.
func Load(ctx context.Context, client redisclient.Client, scripts ...*script.Script) error {
	_, _, err := replies.Do(ctx, func() (Reply, error) {
		for _, s := range scripts {
			load := func() redis.Cmder { return &Once{redis.NewStringCmd(ctx, "script", "load", s.Source())} }
			if err := everywhere(ctx, client, load); err != nil {
				return Reply{}, err
			}
		}
		return Reply{}, nil
	}, nil)
	return err
}

// everywhere sends a command to all servers, as far as the client knows them.
func everywhere(ctx context.Context, client redisclient.Client, cmd func() redis.Cmder) error {
	if servers := redisclient.Of(client); servers != nil {
		return servers.ProcessOnEach(ctx, cmd)
	}
	return Send(ctx, client, cmd())
}
