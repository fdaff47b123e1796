package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"unique"

	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/errclass"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/keyname"
	"github.com/tryacquire/ratelimit/internal/merge"
	"github.com/tryacquire/ratelimit/internal/redisclient"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/script"
	"github.com/tryacquire/ratelimit/internal/scripts"
)

// core is what the limiters on Redis share: everything but what they do to a key. They embed it and so have its
// methods, whose documentation is that of all of them.
type core struct {
	title  string       // the algorithm and the limiter's name, in errors
	name   string       // the limiter's
	head   keyname.Head // of the keys in Redis
	clock  *callerClock // nil: the server's
	most   int          // permits that one call can get
	exec   *redisexec.Executor
	merger *merge.Merger // nil: every call is sent on its own
	watch  *watch        // nil: nobody observes

	tenants bool // keys are those of tenants, whose hash tag names the limit that they share

	explainer decision.Explainer
	decider   any // a Limiter or a Holder: what has this core

	scripts *scripts.Scripts
	groups  atomic.Value // *groups, of limiters of which this is the first, that decide together
}

// limiterCore is core for what is a Limiter.
type limiterCore struct {
	core
	mostCharge int                       // permits of one charge
	which      func(word, n int64) int64 // see algorithm
	credits    bool                      // see algorithm
	window     bool                      // the server's clock ends a window of all permits
	tickets    *ticketLease              // that estimates get; nil: none
}

// An algorithm is what core.build has to know of an algorithm.
type algorithm struct {
	id       string // in the table of package algorithms
	scripts  *scripts.Scripts
	rules    int // several, of a sliding log; else 0
	most     int
	args     []string
	instants func(now int64) [5]int64 // five more args; nil: none
	cost     redisexec.Cost           // of calls that are merged
	// unpack turns the reply to a single request, where that is one integer, into
	// words. If unpack is nil, the reply is an array of the words.
	unpack func(reply int64, words []int64)
	short  bool // the array for a single request has no zeros at its end
	// inWords is the script for a single request whose reply is always the words, for what
	// one integer does not hold. It is nil if that holds all.
	inWords func() *script.Script
	// large is the same algorithm without a bound of its numbers, to reserve with; nil if
	// there is none.
	large *algorithm
	// mostCharge is the most permits that one charge can take, if that is less than
	// exact.Permits.
	mostCharge int
	// which is the second argument of the block giveback, behind where the permits are. It is
	// computed from a ticket's second word and its number of permits; nil if it is that word.
	which func(word, n int64) int64
	// longest is the longest wait of a reservation, in microseconds, for which its numbers are exact.
	longest   int64
	explainer decision.Explainer
	tenants   bool         // see core
	credits   bool         // giveback knows what to do without a ticket
	window    bool         // permits count until a window of all of them ends
	tickets   *ticketLease // see limiterCore
}

// words is how many words the reply to a run has.
func (a *algorithm) words() int { return a.scripts.Words + a.rules*a.scripts.WordsOfRule }

func (c *limiterCore) build(client Client, s settings, a algorithm) error {
	c.mostCharge, c.which, c.credits = cmp.Or(a.mostCharge, exact.Permits), a.which, a.credits
	c.window = a.window && s.clock == nil
	c.tickets = a.tickets
	return c.core.build(client, s, c, a)
}

// build is for a core that is zero, in place, because what it makes points to it.
func (c *core) build(client Client, s settings, decider any, a algorithm) error {
	if err := redisclient.Check(client); err != nil {
		return invalidConfig("%v", err)
	}
	if err := s.checkClock(); err != nil {
		return err
	}
	table, _ := algorithms.Of(a.id)
	set := a.scripts.Get(s.clock != nil)
	*c = core{
		title: fmt.Sprintf("%s %q", table.Title, s.name),
		name:  s.name,
		watch: s.watch(s.name),
		head:  keyname.NewHead(s.prefix, s.name, a.id),
		clock: s.clock,
		most:  a.most,
		exec: &redisexec.Executor{
			Client: client,
			One:    set.One,
			Peek:   set.Peek,
			Many:   set.Many,

			Operations: set.Operations,
			Alone:      set.Alone,
			Extend:     set.Extend,

			ManyOfSeveral: set.ManyOfSeveral, OperationsOfSeveral: set.OperationsOfSeveral,

			Words:  a.words(),
			Cost:   a.cost,
			Unpack: a.unpack,
			Short:  a.short,
		},
		explainer: a.explainer,
		decider:   decider,
		scripts:   a.scripts,
	}
	if a.inWords != nil {
		c.exec.InWords = a.inWords()
	}
	c.exec.Args = redisexec.Texts(a.args)
	if a.instants != nil {
		c.exec.Instants = &redisexec.Instants{Of: []redisexec.Calendar{{At: len(a.args), Around: a.instants}}}
		c.exec.Args = append(c.exec.Args, make([]any, 5)...)
	}
	if a.tenants {
		c.tenants, c.exec.Limit = true, keyname.Limit
	}
	if a.tickets != nil {
		c.exec.Limit, c.exec.Own = keyname.Tickets, true
	}
	if s.clock != nil {
		c.exec.Now, c.exec.Spare = c.now, s.spare()
	}
	c.connect(s)
	return nil
}

// connect lets calls wait for one another, if the client and the options allow it.
func (c *core) connect(s settings) {
	c.exec.Pooled = redisclient.Of(c.exec.Client) != nil
	if c.exec.Pooled && !s.unmerged {
		c.merger = c.newMerger()
	}
}

// newMerger shares its queues with the other limiters of the client and the algorithm. A limiter
// by the caller's clock has a clock of its own, and that of a calendar instants of its own.
func (c *core) newMerger() *merge.Merger {
	if c.exec.ManyOfSeveral == nil || c.clock != nil || c.exec.Instants != nil {
		return merge.New(c.exec, c.head.Of)
	}
	limit := &merge.Limit{Exec: c.exec, Name: c.head.Of, Tag: keyname.Tag, States: unique.Make(string(c.head))}
	return merge.Shared(c.exec.Client, c.exec.Many, nil).Merger(limit)
}

// TryAcquire is TryAcquireN(ctx, key, 1).
func (c *limiterCore) TryAcquire(ctx context.Context, key string) (Result, error) {
	return c.TryAcquireN(ctx, key, 1)
}

// TryAcquireN takes n permits from key, all or none, see [Limiter].
func (c *limiterCore) TryAcquireN(ctx context.Context, key string, n int) (Result, error) {
	o := Observation{Call: callAcquire, Key: key, N: n}
	o.Err = c.check(ctx, key, n)
	c.watch.observed(ctx, &o, func() sending { return c.acquire(ctx, &o) })
	return o.Result, o.Err
}

func (c *limiterCore) acquire(ctx context.Context, o *Observation) sending {
	var reply redisexec.Reply
	var err error
	if c.merger != nil {
		reply, err = c.merger.Acquire(ctx, o.Key, o.N)
	} else {
		reply, err = c.exec.Ask(ctx, c.head.Of(o.Key), redisexec.Operation{Op: redisexec.Take, N: o.N, Times: 1})
	}
	if err != nil {
		o.Err = c.failed(ctx, o.Key, err)
		return reply.Batch
	}
	o.Result = c.inRun(reply.Words, int64(o.N), reply.Index)
	reply.Done()
	return reply.Batch
}

// operate decides an operation on key. The caller calls Done on the reply.
func (c *core) operate(ctx context.Context, key string, o redisexec.Operation) (redisexec.Reply, error) {
	if c.merger != nil {
		return c.merger.Operate(ctx, key, o)
	}
	return c.exec.Ask(ctx, c.head.Of(key), o)
}

// explain is the result of a request for n permits, see [decision.Explainer].
func (c *core) explain(words []int64, n, taken int64, allowed bool) Result {
	return Result(c.explainer.Explain(words, n, taken, allowed))
}

// inRun is the result of request i, from 0, of a run of equal requests for n permits.
func (c *core) inRun(words []int64, n, i int64) Result {
	allowed := words[decision.WordAllowed]
	return c.explain(words, n, min(i+1, allowed)*n, i < allowed)
}

// Peek returns what key has left now, and changes nothing, see [Limiter].
func (c *core) Peek(ctx context.Context, key string) (Result, error) {
	return c.peekN(ctx, key, 1)
}

func (c *core) peekN(ctx context.Context, key string, n int) (Result, error) {
	o := Observation{Call: callPeek, Key: key, N: n}
	o.Err = c.check(ctx, key, n)
	c.watch.observed(ctx, &o, func() sending { return c.peek(ctx, &o) })
	return o.Result, o.Err
}

func (c *core) peek(ctx context.Context, o *Observation) sending {
	reply, err := c.exec.Ask(ctx, c.head.Of(o.Key), redisexec.Operation{Op: redisexec.Look, N: o.N, Times: 1})
	if err != nil {
		o.Err = c.failed(ctx, o.Key, err)
		return nil
	}
	// The words are those of a run of one request that has not taken its permits.
	o.Result = c.explain(reply.Words, int64(o.N), 0, reply.Words[decision.WordAllowed] > 0)
	reply.Done()
	return nil
}

// Reset deletes the key's state, see [Limiter].
func (c *core) Reset(ctx context.Context, key string) error {
	o := Observation{Call: callReset, Key: key}
	o.Err = c.checkAny(ctx, key, 1)
	c.watch.observed(ctx, &o, func() sending {
		if err := c.exec.Delete(ctx, c.head.Of(key)); err != nil {
			o.Err = c.failed(ctx, key, err)
		}
		return nil
	})
	return o.Err
}

// check returns an error for a caller's mistake, and for a context that has ended.
func (c *core) check(ctx context.Context, key string, n int) error {
	if c.tenants && checkKey(key) == nil && !keyname.HasTenant(key) {
		return errNoTenant(key)
	}
	return c.checkAny(ctx, key, n)
}

// checkAny is check for a key that may also be that of a limit, which tenants share.
func (c *core) checkAny(ctx context.Context, key string, n int) error {
	if !c.made() {
		return errUnmade
	}
	if err := checkKey(key); err != nil {
		return err
	}
	switch {
	case n < 1:
		return errTooFew(n)
	case n > c.most:
		return fmt.Errorf("%w: %d permits of %s, which allows %d at most", ErrExceedsLimit, n, c.title, c.most)
	}
	if err := ctx.Err(); err != nil {
		return c.failed(ctx, key, err)
	}
	return nil
}

// failed wraps err, the reason why there is no decision for key.
func (c *core) failed(ctx context.Context, key string, err error) error {
	return c.about(key, ended(ctx, err))
}

func (c *core) about(key string, err error) error {
	return fmt.Errorf("ratelimit: %s, key %s: %w", c.title, shortKey(key), err)
}

func (c *core) observers() *watch { return c.watch }

// ended joins err with the error that a caller can match, and with the context's error if the
// context has ended.
func ended(ctx context.Context, err error) error {
	err = errclass.Matchable(err)
	if end := ctx.Err(); end != nil && !errors.Is(err, end) {
		return errors.Join(err, end)
	}
	return err
}

// now is the caller's clock in microseconds.
func (c *core) now() (int64, error) {
	t := c.clock.now()
	if now := t.UnixMicro(); now >= 0 && now < 2*exact.Micros {
		return now, nil
	}
	return 0, fmt.Errorf("%w: WithClock: the clock reads %v, outside 1970 to 2112", ErrInvalidConfig, t)
}

// isBucket reports whether c is that of a token or leaky bucket.
func (c *core) isBucket() bool {
	_, ok := c.decider.(*bucketCore)
	return ok
}

// holds reports whether c is that of an InFlight.
func (c *core) holds() bool {
	_, ok := c.decider.(*InFlight)
	return ok
}

// Name returns the limiter's name, see [WithName].
func (c *core) Name() string { return c.name }

// made reports whether a constructor has made it.
func (c *core) made() bool { return c.exec != nil }
