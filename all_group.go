package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/identity"
	"github.com/tryacquire/ratelimit/internal/keyname"
	"github.com/tryacquire/ratelimit/internal/merge"
	"github.com/tryacquire/ratelimit/internal/recent"
	"github.com/tryacquire/ratelimit/internal/redisclient"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/script"
	"github.com/tryacquire/ratelimit/internal/scripts"
	"github.com/tryacquire/ratelimit/internal/waiting"
)

// maxGroup is the most limiters that decide together.
const maxGroup = scripts.MostTogether

// A group is limiters that decide together, all or nothing, in one script. It is light: what depends on
// the algorithms only is in its shape.
type group struct {
	*shape
	exec   *redisexec.Executor
	merger *merge.Merger         // nil: every call is sent on its own
	ids    atomic.Pointer[group] // by the scripts for calls under ids, see underIDs
	ends   atomic.Pointer[group] // by those for the end of calls, see finishing
}

// newGroup returns the group of these limiters. settle says which of them give a Ticket.
func newGroup(limiters []*core, settle []bool) (*group, error) {
	if len(limiters) == 0 {
		return nil, invalidConfig("there is no limiter")
	}
	if len(limiters) > maxGroup {
		return nil, errTooManyLimiters(len(limiters))
	}
	first, merged := limiters[0], true
	for i, c := range limiters {
		if i > 0 && !identity.Same(c.exec.Client, first.exec.Client) {
			return nil, errClients(first, c)
		}
		if (c.clock == nil) != (first.clock == nil) {
			return nil, invalidConfig("of two limiters, the %s and the %s, only one has WithClock; one clock must decide for all", first.title, c.title)
		}
		merged = merged && c.merger != nil
	}
	s := shapeOf(limiters, settle)
	exec := &redisexec.Executor{
		Client: first.exec.Client, Pooled: first.exec.Pooled, Now: first.exec.Now, Spare: first.exec.Spare,
		One: s.scripts.One, Peek: s.scripts.Peek, Many: s.scripts.Many, ManyOfSeveral: s.scripts.ManyOfSeveral,
		Args: make([]any, 0, s.args), Words: s.all, Several: s.several,
	}
	for _, i := range s.nested {
		c := limiters[i]
		addInstants(exec, c)
		exec.Args = append(exec.Args, c.exec.Args...)
		exec.Cost.Key += c.exec.Cost.Key
		exec.Cost.Permit += c.exec.Cost.Permit
		if spare, ok := c.exec.Spare.(string); ok && longer(spare, exec.Spare.(string)) {
			exec.Spare = spare
		}
	}
	g := &group{shape: s, exec: exec}
	if merged {
		g.merger = newGroupMerger(exec, first.clock)
	}
	return g, nil
}

// newGroupMerger shares its queues with the other groups of the client and the algorithms, if they have
// one clock. Those with a calendar have instants of their own.
func newGroupMerger(exec *redisexec.Executor, clock *callerClock) *merge.Merger {
	if exec.Instants != nil {
		exec.ManyOfSeveral = nil
		return merge.New(exec, asPacked)
	}
	var by any
	if clock != nil {
		by = sharedClock{weak.Make(clock), exec.Spare.(string)}
	}
	return merge.Shared(exec.Client, exec.Many, by).Merger(&merge.Limit{Exec: exec, Name: asPacked})
}

// by returns g with other scripts, which change sets when it is first asked for and at keeps. None of them is for requests
// with a key in common.
func (g *group) by(at *atomic.Pointer[group], clock *callerClock, change func(*redisexec.Executor)) *group {
	if made := at.Load(); made != nil {
		return made
	}
	exec := *g.exec
	exec.Several = slices.Clone(g.several)
	for i := range exec.Several {
		exec.Several[i].Common, exec.Several[i].CommonOfSeveral = nil, nil
	}
	change(&exec)
	made := &group{shape: g.shape, exec: &exec}
	if g.merger != nil {
		made.merger = newGroupMerger(&exec, clock)
	}
	at.CompareAndSwap(nil, made)
	return at.Load()
}

// A sharedClock is what groups by callers' clocks that share queues have in common, see [merge.Shared].
type sharedClock struct {
	clock weak.Pointer[callerClock]
	spare string
}

// A shape is what groups of the same algorithms have in common.
type shape struct {
	nested  []int // the indices of the limiters, in the order of the script: by algorithm, so that there are few scripts
	words   []int // where the reply has the words of each limiter
	held    []int // the limiters whose permits are in flight
	args    int   // of all limiters
	all     int   // words of the reply to a request
	several []redisexec.Limiter
	scripts scripts.Several
}

// A shapeKey is what distinguishes shapes: whose clock decides, and the limiters in the order of the claims.
type shapeKey struct {
	byCaller bool
	of       [maxGroup]struct {
		file   string // that the limiter's scripts are made of
		args   int
		settle bool // it gives a Ticket
	}
}

// shapes are kept for ever: a program has few, for its algorithms say which, not its limits, and each is some 5 kB.
var shapes sync.Map // shapeKey to *shape

func shapeOf(limiters []*core, settle []bool) *shape {
	key := shapeKey{byCaller: limiters[0].clock != nil}
	for i, c := range limiters {
		of := &key.of[i]
		of.file, of.args, of.settle = c.scripts.Name, len(c.exec.Args), settle[i]
	}
	if s, ok := shapes.Load(key); ok {
		return s.(*shape)
	}
	s, _ := shapes.LoadOrStore(key, newShape(limiters, settle))
	return s.(*shape)
}

func newShape(limiters []*core, settle []bool) *shape {
	s := &shape{words: make([]int, len(limiters))}
	for i := range limiters {
		s.nested = append(s.nested, i)
	}
	slices.SortStableFunc(s.nested, func(a, b int) int {
		one, other := limiters[a], limiters[b]
		return cmp.Or(strings.Compare(one.scripts.Name, other.scripts.Name), len(one.exec.Args)-len(other.exec.Args))
	})
	var nested []*core
	var tickets []bool
	for _, i := range s.nested {
		c := limiters[i]
		if c.holds() {
			s.held = append(s.held, i)
		}
		s.args += len(c.exec.Args)
		nested, tickets = append(nested, c), append(tickets, settle[i])
	}
	wordsOf := func(i int) int { // how many requests the limiter would allow alone, the words of its run, and those of a ticket
		words := 1 + limiters[i].exec.Words
		if settle[i] {
			words += redisexec.TicketWords
		}
		return words
	}
	for _, i := range slices.Backward(s.nested) {
		s.words[i] = s.all
		s.all += wordsOf(i)
	}
	if !slices.IsSorted(s.nested) { // the limiters in another order have the same scripts
		other := shapeOf(nested, tickets)
		s.scripts, s.several = other.scripts, other.several
		return s
	}
	var files []*script.File
	var args []int
	for _, c := range limiters {
		files, args = append(files, c.scripts.Whole(c.clock != nil)), append(args, len(c.exec.Args))
	}
	s.scripts = scripts.Together(files, args, settle)
	for i := range limiters {
		s.several = append(s.several, redisexec.Limiter{
			Args: args[i], Words: wordsOf(i), Limit: limiters[i].exec.Limit, Own: limiters[i].exec.Own, Common: s.scripts.Common[i], CommonOfSeveral: s.scripts.CommonOfSeveral[i],
		})
	}
	return s
}

// addInstants adds those of a calendar window, whose arguments are the next.
func addInstants(exec *redisexec.Executor, c *core) {
	if c.exec.Instants == nil {
		return
	}
	if exec.Instants == nil {
		exec.Instants = &redisexec.Instants{}
	}
	for _, calendar := range c.exec.Instants.Of {
		calendar.At += len(exec.Args)
		exec.Instants.Of = append(exec.Instants.Of, calendar)
	}
}

func errClients(a, b *core) error {
	return invalidConfig("the %s and the %s have different clients; limiters that decide together share one", a.title, b.title)
}

func errTooManyLimiters(n int) error {
	return invalidConfig("%d limiters are too many for one script, which holds at most %d", n, maxGroup)
}

// longer compares two whole numbers in decimal.
func longer(a, b string) bool { return len(a) > len(b) || len(a) == len(b) && a > b }

// groups are the groups whose first limiter is the same, by all their limiters. So the groups of
// limiters that nobody uses any more are gone with their first limiter.
type groups = recent.Cache[groupKey, *group]

// A groupKey is what distinguishes groups.
type groupKey struct {
	limiters [maxGroup]*core
	settle   [maxGroup]bool
}

// maxGroups is how many groups of one first limiter are kept: as many as [TokenBucket.With] keeps limits, in some
// 11 MB. That suits one limiter for all users beside a plan of each tenant. A call whose group is not kept makes it
// again, in some microseconds and six allocations of 550 bytes together (BenchmarkGroupOf). It is then not combined
// with equal calls of the old group.
const maxGroups = maxLimits

// groupOf returns the group of the claims' limiters.
func groupOf(claims []Claim) (*group, error) {
	var key groupKey
	for i, c := range claims {
		key.limiters[i], key.settle[i] = c.limiter, c.settle
	}
	first := claims[0].limiter
	kept, ok := first.groups.Load().(*groups)
	if !ok {
		first.groups.CompareAndSwap(nil, recent.New(maxGroups, groupOfKey))
		kept = first.groups.Load().(*groups)
	}
	return kept.Get(key)
}

func groupOfKey(key groupKey) (*group, error) {
	n := len(key.limiters)
	for key.limiters[n-1] == nil {
		n--
	}
	return newGroup(key.limiters[:n], key.settle[:n])
}

// pack checks the claims, one for each limiter, and packs them into a request. The others are as those of ask.
func (g *group) pack(ctx context.Context, claims []Claim, once *once, holds []*Hold, tickets []*Ticket) (string, error) {
	for _, c := range claims {
		if err := c.limiter.check(ctx, c.key, c.n); err != nil {
			return "", err
		}
	}
	if err := checkStored(claims); err != nil {
		return "", err
	}
	if err := g.checkSlots(claims); err != nil {
		return "", err
	}
	var parts [maxGroup + 1]redisexec.Part
	for i, at := range g.nested {
		c := claims[at]
		parts[i] = redisexec.Part{Head: c.limiter.head, Key: c.key, N: c.n, Hold: c.limiter.holds()}
		if h := slices.Index(g.held, at); h >= 0 && holds != nil {
			parts[i].ID = holds[h].id
		}
		if tickets != nil && tickets[at] != nil {
			parts[i].ID = tickets[at].lease.spec
		}
	}
	if once == nil {
		return redisexec.Pack(parts[:len(claims)]), nil
	}
	parts[len(claims)] = once.part(claims)
	return redisexec.Pack(parts[:len(claims)+1]), nil
}

// stores reports whether c keeps something for each permit, so that a call for many is dear.
func (c *core) stores() bool { return c.exec.Cost.Permit > 0 }

// checkStored refuses claims for more permits than one script should store, see maxStored.
func checkStored(claims []Claim) error {
	stored := 0
	for _, c := range claims {
		if c.limiter.stores() {
			stored += c.n
		}
	}
	if stored > maxStored {
		return fmt.Errorf("%w: %d permits in one call of limiters that store each of them (the storage ZSet, in flight), which are %d together at most; "+
			"take fewer in a call, or use the storage List or Hash, or a sliding log", ErrExceedsLimit, stored, maxStored)
	}
	return nil
}

// checkSlots refuses keys of which a cluster or a ring may have each in another place.
func (g *group) checkSlots(claims []Claim) error {
	if c := redisclient.Of(g.exec.Client); c == nil || !c.Several() {
		return nil
	}
	tag := keyname.Tag(claims[0].key)
	for _, c := range claims[1:] {
		if keyname.Tag(c.key) != tag {
			return fmt.Errorf("%w: %s and %s; give the keys one hash tag, such as {42} in {42}:user and {42}:tokens", ErrCrossSlot, shortKey(claims[0].key), shortKey(c.key))
		}
	}
	return nil
}

// asPacked is the name of a packed request, which holds the names of its keys.
func asPacked(request string) string { return request }

// ask asks Redis about the claims. holds has a Hold for each claim of permits in flight, in
// the order of g.held; for a Peek there are none.
func (g *group) ask(ctx context.Context, claims []Claim, looks bool, once *once, holds []*Hold, tickets []*Ticket) (redisexec.Reply, error) {
	request, err := g.pack(ctx, claims, once, holds, tickets)
	if err != nil {
		return redisexec.Reply{Batch: redisexec.Unsent}, err
	}
	if once != nil {
		g = g.underIDs(claims[0].limiter.clock)
	}
	var reply redisexec.Reply
	switch alone := g.merger == nil || dear(claims); {
	case looks:
		reply, err = g.exec.Ask(ctx, request, redisexec.Operation{Op: redisexec.Look, N: 1, Times: 1})
	case holds != nil:
		reply, err = g.hold(ctx, request, holds, alone)
	case alone:
		reply, err = g.exec.Ask(ctx, request, redisexec.Operation{Op: redisexec.Take, N: 1, Times: 1})
	default:
		reply, err = g.merger.Acquire(ctx, request, 1)
	}
	if err != nil {
		return redisexec.Reply{Batch: reply.Batch}, g.failed(ctx, claims, err)
	}
	return reply, nil
}

// report reports a call to the limiters that are observed, each its own answer.
func (g *group) report(ctx context.Context, began time.Time, claims []Claim, looks bool, reply redisexec.Reply, allowed bool, err error) {
	for i, c := range claims {
		if c.limiter.watch == nil {
			continue
		}
		o := Observation{Call: c.opOr(looks).call, Err: err}
		o.sent(began, reply.Batch)
		if err == nil {
			o.Repeated = g.repeated(reply) || allowed && g.heldBefore(reply, i, &c)
			o.Result = g.part(reply, i, c, looks)
		}
		c.report(ctx, began, o, allowed)
	}
}

// report reports the answer to one claim of several, whose policies have been taken off. allowed is about the whole.
func (c *Claim) report(ctx context.Context, began time.Time, o Observation, allowed bool) {
	w := c.observers()
	if w == nil {
		return
	}
	o.Key, o.N = c.key, c.n
	switch {
	case o.Err != nil || !o.Call.takes():
	case !allowed && o.Result.Allowed:
		o.Outcome = OutcomeUntaken
	case allowed && o.Call == callHold:
		o.HeldChange = c.n
	}
	w.end(ctx, began, o)
}

func (c *Claim) observers() *watch {
	if c.limiter != nil {
		return c.limiter.watch
	}
	return c.outer.(origin).observers()
}

// newHolds are holds for the claims of permits in flight.
func (g *group) newHolds(claims []Claim) (holds []*Hold) {
	for _, at := range g.held {
		c := claims[at]
		holds = append(holds, c.limiter.decider.(*InFlight).newHold(&c))
	}
	return holds
}

// newTickets are tickets for the estimates whose tickets have a lease, each at the place of its claim; nil if there are none.
func newTickets(claims []Claim) (tickets []*Ticket) {
	for i, c := range claims {
		if !c.settle {
			continue
		}
		if t := c.limiter.decider.(charger).unbegun(c.key); t != nil {
			if tickets == nil {
				tickets = make([]*Ticket, len(claims))
			}
			tickets[i] = t
		}
	}
	return tickets
}

// hold takes permits for holds, and gives them back if no caller gets to know of them.
func (g *group) hold(ctx context.Context, request string, holds []*Hold, alone bool) (redisexec.Reply, error) {
	late := func(reply redisexec.Reply, err error) {
		if mayHold(err) || err == nil && reply.Words[1+decision.WordAllowed] > 0 {
			for _, h := range holds {
				h.from.giveBack(ctx, h)
			}
		}
	}
	o := redisexec.Operation{Op: redisexec.Take, N: 1, Times: 1, Detail: &redisexec.Detail{Late: late}}
	var reply redisexec.Reply
	var err error
	if !alone {
		reply, err = g.merger.Operate(ctx, request, o)
	} else {
		reply, err = g.exec.Ask(ctx, request, o)
	}
	if mayHold(err) && !reply.Late {
		go late(reply, err)
	}
	return reply, err
}

// dear reports whether claims for many permits cost the server more than a merged call
// should.
func dear(claims []Claim) bool {
	cost := 0
	for _, c := range claims {
		if c.n > 1 {
			cost += c.limiter.exec.Cost.Run + (c.n-1)*c.limiter.exec.Cost.Permit
		}
	}
	return cost > 100
}

// decide is the Result of the claim that governs, of a call with these claims. It stores the answer to each claim in
// parts, unless that is nil.
func (g *group) decide(ctx context.Context, c *call, claims []Claim, parts []PartResult) (Result, error) {
	looks := c.op == look
	var holds []*Hold
	var tickets []*Ticket
	if !looks {
		holds, tickets = g.newHolds(claims), newTickets(claims)
	}
	sent := time.Now()
	reply, err := g.ask(ctx, claims, looks, c.once, holds, tickets)
	if err != nil {
		if !c.split || !errors.Is(err, ErrCrossSlot) { // each claim is asked about on its own then, and reported
			g.report(ctx, sent, claims, looks, reply, false, err)
		}
		return Result{}, err
	}
	r, full := g.explain(reply, claims, looks, parts, tickets)
	if full {
		err = g.failed(ctx, claims, ErrTooManyTickets) // nothing was taken
	}
	for i, h := range holds {
		if err == nil {
			err = h.answered(g.wordsOf(reply, g.held[i]), reply.Index)
		}
	}
	if !looks && r.Allowed {
		for _, h := range holds {
			if h.believe(sent); h.Left() == 0 {
				err = g.failed(ctx, claims, errLateReply)
			}
		}
	}
	g.report(ctx, sent, claims, looks, reply, r.Allowed, err)
	reply.Done()
	if err != nil {
		for _, h := range holds {
			go h.from.giveBack(ctx, h)
		}
		clear(parts)
		return Result{}, err
	}
	if looks || !r.Allowed {
		for _, h := range holds {
			waiting.Denied(ctx, h.from.permits(h.key))
		}
		for i := range parts {
			parts[i].Ticket = nil // nothing was taken
		}
		return r, nil
	}
	for i, h := range holds {
		parts[g.held[i]].Hold = h
	}
	for i := range parts {
		if t := parts[i].Ticket; t != nil {
			t.endsWith(sent, parts[i].Result)
		}
	}
	return r, nil
}

// explain is the Result of the claim that governs. full says that a limiter has too many tickets.
func (g *group) explain(reply redisexec.Reply, claims []Claim, looks bool, parts []PartResult, tickets []*Ticket) (r Result, full bool) {
	for i, c := range claims {
		part := g.part(reply, i, c, looks)
		if parts != nil {
			parts[i] = PartResult{Name: c.limiter.name, Key: c.key, Result: part, bucket: c.limiter.isBucket(), repeated: g.repeated(reply)}
			if c.settle && !looks {
				words := reply.Words[g.words[i]+1:][:c.limiter.exec.Words+redisexec.TicketWords]
				if tickets != nil && tickets[i] != nil {
					parts[i].Ticket = tickets[i]
					full = full || !tickets[i].began(c.n, words)
				} else {
					parts[i].Ticket = c.limiter.decider.(charger).newTicket(c.key, c.n, reply.Index, words)
				}
				parts[i].Ticket.hearers = c.hearers
			}
		}
		if i == 0 {
			r = part
		} else {
			r = governs(r, part)
		}
	}
	return r, full
}

// part is the answer to claim i. The reply has, for each limiter, how many of the equal
// requests it would have allowed, and the words of its run, of which the first is the
// number that all limiters have allowed.
func (g *group) part(reply redisexec.Reply, i int, c Claim, looks bool) Result {
	words := reply.Words[g.words[i]:][:1+c.limiter.exec.Words]
	alone, words := words[0], words[1:]
	all, n, index := words[decision.WordAllowed], int64(c.n), reply.Index
	if looks {
		return c.limiter.explain(words, n, 0, all > 0)
	}
	if len(reply.Words) > g.all { // under an id, equal requests are one
		index = 0
	}
	return c.limiter.explain(words, n, min(index+1, all)*n, index < all || alone > all)
}

// wordsOf is the words of the run of claim i.
func (g *group) wordsOf(reply redisexec.Reply, i int) []int64 { return reply.Words[g.words[i]+1:] }

// heldBefore reports whether the call of claim i found its hold, see Claim.As.
func (g *group) heldBefore(reply redisexec.Reply, i int, c *Claim) bool {
	return c.as != nil && (reply.Index > 0 || g.wordsOf(reply, i)[wordFree] > 0)
}

// reset deletes the states of all claims.
func (g *group) reset(ctx context.Context, claims []Claim) error {
	request, err := g.pack(ctx, claims, nil, nil, nil)
	if err != nil {
		return err
	}
	if err := g.exec.Delete(ctx, request); err != nil {
		return g.failed(ctx, claims, err)
	}
	return nil
}

// failed wraps err, the reason why there is no decision.
func (g *group) failed(ctx context.Context, claims []Claim, err error) error {
	var about []string
	for _, c := range claims {
		about = append(about, fmt.Sprintf("%s, key %s", c.limiter.title, shortKey(c.key)))
	}
	return fmt.Errorf("ratelimit: %s: %w", strings.Join(about, "; "), ended(ctx, err))
}
