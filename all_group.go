package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit/internal/keyname"
	"github.com/tryacquire/ratelimit/internal/merge"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/script"
)

// maxGroup is the most limiters that decide together.
const maxGroup = 8

// A group is limiters that decide together, all or nothing, in one script.
type group struct {
	given  []*core // in the caller's order
	settle []bool  // which of them give a Ticket
	nested []int   // the indices in given, in the order of the script: by algorithm, so that there are few scripts
	words  []int   // where the reply has the words of each limiter in given
	most   int     // permits that one call can get from each of them
	slots  bool    // the names of the keys must have one hash tag
	name   string  // of all limiters
	seen   bool    // one of them at least is observed
	held   []int   // the limiters whose permits are in flight
	exec   *redisexec.Executor
	merger *merge.Merger // nil: every call is sent on its own
}

// newGroup returns the group of these limiters. settle says which of them give a Ticket.
func newGroup(limiters []*core, settle []bool) (*group, error) {
	if len(limiters) == 0 {
		return nil, invalidConfig("there is no limiter")
	}
	if len(limiters) > maxGroup {
		return nil, errTooManyLimiters(len(limiters))
	}
	first := limiters[0]
	g := &group{given: limiters, settle: settle, most: maxCount, words: make([]int, len(limiters))}
	merged, storing := true, 0
	for i, c := range limiters {
		if i > 0 && !same(c.exec.Client, first.exec.Client) {
			return nil, errClients(first, c)
		}
		if (c.clock == nil) != (first.clock == nil) {
			return nil, invalidConfig("of two limiters, the %s and the %s, only one has WithClock; one clock must decide for all", first.title, c.title)
		}
		g.nested = append(g.nested, i)
		g.seen = g.seen || c.watch != nil
		if i > 0 {
			g.name += "+"
		}
		g.name += c.name
		g.most = min(g.most, c.most)
		if c.stores() {
			storing++
			g.most = min(g.most, maxStored/storing)
		}
		merged = merged && c.merger != nil
	}
	slices.SortStableFunc(g.nested, func(a, b int) int {
		one, other := limiters[a], limiters[b]
		return cmp.Or(strings.Compare(one.scripts.file.Name(), other.scripts.file.Name()), len(one.exec.Args)-len(other.exec.Args))
	})
	g.exec = &redisexec.Executor{Client: first.exec.Client, Pooled: first.exec.Pooled, Now: first.exec.Now, Spare: first.exec.Spare}
	var files []*script.File
	var args []int
	var tickets []bool
	for _, i := range g.nested {
		c := limiters[i]
		if c.inFlight != nil {
			g.held = append(g.held, i)
		}
		files = append(files, c.file())
		args = append(args, len(c.exec.Args))
		tickets = append(tickets, settle[i])
		g.addInstants(c)
		g.exec.Args = append(g.exec.Args, c.exec.Args...)
		g.exec.Cost.Key += c.exec.Cost.Key
		g.exec.Cost.Permit += c.exec.Cost.Permit
		if spare, ok := c.exec.Spare.(string); ok && longer(spare, g.exec.Spare.(string)) {
			g.exec.Spare = spare
		}
	}
	for _, i := range slices.Backward(g.nested) {
		g.words[i] = g.exec.Words
		g.exec.Words += g.wordsOf(i)
	}
	set := allScriptsOf(files, args, tickets)
	g.exec.One, g.exec.Peek, g.exec.Many = set.one, set.peek, set.many
	for i, at := range g.nested {
		g.exec.Several = append(g.exec.Several, redisexec.Limiter{Words: g.wordsOf(at), Common: set.common[i]})
	}
	switch first.exec.Client.(type) {
	case *redis.ClusterClient, *redis.Ring:
		g.slots = true
	}
	if merged {
		g.merger = merge.New(g.exec, asPacked)
	}
	return g, nil
}

// addInstants adds those of a calendar window, whose arguments are the next.
func (g *group) addInstants(c *core) {
	if c.exec.Instants == nil {
		return
	}
	if g.exec.Instants == nil {
		g.exec.Instants = &redisexec.Instants{}
	}
	for _, calendar := range c.exec.Instants.Of {
		calendar.At += len(g.exec.Args)
		g.exec.Instants.Of = append(g.exec.Instants.Of, calendar)
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

// file is the file that c's scripts are made of.
func (c *core) file() *script.File {
	if c.clock != nil {
		return c.scripts.byCaller.With(callersClock)
	}
	return c.scripts.file
}

// scriptsOfAll holds the scripts of several limiters by the algorithms and the numbers of
// their arguments.
var scriptsOfAll sync.Map // string to severalSet

func allScriptsOf(files []*script.File, args []int, tickets []bool) severalSet {
	id := ""
	for i, f := range files {
		id += fmt.Sprintf("%s/%d/%t,", f.Name(), args[i], tickets[i])
	}
	if text, ok := files[0].Blocks()["clock"]; ok {
		id += text
	}
	if set, ok := scriptsOfAll.Load(id); ok {
		return set.(severalSet)
	}
	set, _ := scriptsOfAll.LoadOrStore(id, assembleAll(files, args, tickets))
	return set.(severalSet)
}

// wordsOf is how many words of the reply are about limiter i: how many requests it would
// allow alone, those of its run, and those of a ticket.
func (g *group) wordsOf(i int) int {
	words := 1 + g.given[i].exec.Words
	if g.settle[i] {
		words += redisexec.TicketWords
	}
	return words
}

// groups are the groups whose first limiter is the same, by all their limiters.
type groups struct {
	mu sync.RWMutex
	of map[groupKey]*group
}

// A groupKey is what distinguishes groups.
type groupKey struct {
	limiters [maxGroup]*core
	settle   [maxGroup]bool
}

// maxGroups is how many groups are kept. A program has few, unless it builds limiters for
// each call.
const maxGroups = 64

// groupOf returns the group of the claims' limiters.
func groupOf(claims []Claim) (*group, error) {
	var key groupKey
	for i, c := range claims {
		key.limiters[i], key.settle[i] = c.limiter, c.settle
	}
	return claims[0].limiter.groups.get(key, len(claims))
}

func (gs *groups) get(key groupKey, n int) (*group, error) {
	gs.mu.RLock()
	g := gs.of[key]
	gs.mu.RUnlock()
	if g != nil {
		return g, nil
	}
	g, err := newGroup(slices.Clone(key.limiters[:n]), slices.Clone(key.settle[:n]))
	if err != nil {
		return nil, err
	}
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if other := gs.of[key]; other != nil {
		return other, nil
	}
	if gs.of == nil || len(gs.of) == maxGroups {
		gs.of = map[groupKey]*group{}
	}
	gs.of[key] = g
	return g, nil
}

// pack checks the claims, one for each limiter, and packs them into a request. holds are as those of ask.
func (g *group) pack(ctx context.Context, claims []Claim, holds []*Hold) (string, error) {
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
	var parts [maxGroup]redisexec.Part
	for i, at := range g.nested {
		c := claims[at]
		parts[i] = redisexec.Part{Head: c.limiter.head, Key: c.key, N: c.n, Hold: c.limiter.inFlight != nil}
		if h := slices.Index(g.held, at); h >= 0 && holds != nil {
			parts[i].ID = holds[h].id
		}
	}
	return redisexec.Pack(parts[:len(claims)]), nil
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
			"take fewer in a call, or use the storage Hash or List, or a sliding log", ErrExceedsLimit, stored, maxStored)
	}
	return nil
}

// checkSlots refuses keys of which a cluster or a ring may have each in another place.
func (g *group) checkSlots(claims []Claim) error {
	if !g.slots || len(claims) == 1 {
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
func (g *group) ask(ctx context.Context, claims []Claim, peek bool, holds []*Hold) (redisexec.Reply, error) {
	request, err := g.pack(ctx, claims, holds)
	if err != nil {
		return redisexec.Reply{Batch: redisexec.Unsent}, err
	}
	var reply redisexec.Reply
	switch alone := g.merger == nil || dear(claims); {
	case peek:
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
func (g *group) report(ctx context.Context, began time.Time, claims []Claim, peek bool, reply redisexec.Reply, allowed bool, err error) {
	if !g.seen {
		return
	}
	for i, c := range claims {
		if c.limiter.watch == nil {
			continue
		}
		o := Observation{Call: c.call(), Key: c.key, N: c.n, Err: err}
		if peek {
			o.Call = CallPeek
		}
		o.sent(began, reply.Batch)
		if err == nil {
			o.Result = g.part(reply, i, c, peek)
		}
		c.report(ctx, began, o, allowed)
	}
}

// call is what a claim is reported as.
func (c *Claim) call() Call {
	if c.limiter == nil {
		if _, ok := c.outer.(Holder); ok {
			return CallHold
		}
	} else if c.limiter.inFlight != nil {
		return CallHold
	}
	if c.settle {
		return CallEstimate
	}
	return CallAcquire
}

// callOr is call, or CallPeek.
func (c *Claim) callOr(peek bool) Call {
	if peek {
		return CallPeek
	}
	return c.call()
}

// report reports the answer to one claim of several. allowed is about the whole.
func (c Claim) report(ctx context.Context, began time.Time, o Observation, allowed bool) {
	if o.Err == nil && o.Call <= CallHold && !allowed && o.Result.Allowed {
		o.Outcome = OutcomeUntaken
	}
	if f := c.limiter.inFlight; f != nil {
		n := 0
		if o.Err == nil && o.Call == CallHold && allowed {
			n = c.n
		}
		o.hold(f, n)
	}
	c.limiter.watch.end(ctx, began, o)
}

// newHolds are holds for the claims of permits in flight.
func (g *group) newHolds(claims []Claim) (holds []*Hold) {
	for _, at := range g.held {
		c := claims[at]
		holds = append(holds, newHold(c.limiter.inFlight, c.key, c.n))
	}
	return holds
}

// hold takes permits for holds, and gives them back if no caller gets to know of them.
func (g *group) hold(ctx context.Context, request string, holds []*Hold, alone bool) (redisexec.Reply, error) {
	late := func(reply redisexec.Reply, err error) {
		if mayHold(err) || err == nil && reply.Words[1+wordAllowed] > 0 {
			for _, h := range holds {
				h.giveBack(ctx)
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

// decide is the Result of the claim that governs. It stores the answer to each claim in
// parts, unless that is nil.
func (g *group) decide(ctx context.Context, claims []Claim, how manner, parts []PartResult) (Result, error) {
	peek := how == peekAll
	var holds []*Hold
	if !peek {
		holds = g.newHolds(claims)
	}
	sent := time.Now()
	reply, err := g.ask(ctx, claims, peek, holds)
	if err != nil {
		if how != acquireOrSplit || !errors.Is(err, ErrCrossSlot) {
			g.report(ctx, sent, claims, peek, reply, false, err)
		}
		return Result{}, err
	}
	r := g.explain(reply, claims, peek, parts)
	if !peek && r.Allowed {
		for _, h := range holds {
			if h.believe(sent); h.Left() == 0 {
				err = g.failed(ctx, claims, errLateReply)
			}
		}
	}
	g.report(ctx, sent, claims, peek, reply, r.Allowed, err)
	reply.Done()
	if err != nil {
		for _, h := range holds {
			go h.giveBack(ctx)
		}
		clear(parts)
		return Result{}, err
	}
	if peek || !r.Allowed {
		for i := range parts {
			parts[i].Ticket = nil // nothing was taken
		}
		return r, nil
	}
	for i, h := range holds {
		parts[g.held[i]].Hold = h
	}
	return r, nil
}

func (g *group) explain(reply redisexec.Reply, claims []Claim, peek bool, parts []PartResult) Result {
	var r Result
	for i, c := range claims {
		part := g.part(reply, i, c, peek)
		if parts != nil {
			parts[i] = PartResult{Name: c.limiter.name, Key: c.key, Result: part, Bucket: c.limiter.isBucket()}
			if c.settle && !peek {
				words := reply.Words[g.words[i]+1:][:c.limiter.exec.Words+redisexec.TicketWords]
				parts[i].Ticket = c.limiter.newTicket(c.key, c.n, reply.Index, words)
			}
		}
		if i == 0 {
			r = part
		} else {
			r = governs(r, part)
		}
	}
	return r
}

// part is the answer to claim i. The reply has, for each limiter, how many of the equal
// requests it would have allowed, and the words of its run, of which the first is the
// number that all limiters have allowed.
func (g *group) part(reply redisexec.Reply, i int, c Claim, peek bool) Result {
	words := reply.Words[g.words[i]:][:1+c.limiter.exec.Words]
	alone, words := words[0], words[1:]
	all, n := words[wordAllowed], int64(c.n)
	if peek {
		return c.limiter.explain(words, n, 0, all > 0)
	}
	return c.limiter.explain(words, n, min(reply.Index+1, all)*n, reply.Index < all || alone > all)
}

// reset deletes the states of all claims.
func (g *group) reset(ctx context.Context, claims []Claim) error {
	request, err := g.pack(ctx, claims, nil)
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
