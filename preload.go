package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tryacquire/ratelimit/internal/identity"
	"github.com/tryacquire/ratelimit/internal/keyname"
	"github.com/tryacquire/ratelimit/internal/redisclient"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/script"
)

// Preload loads the scripts that a call with these claims needs on every server, and connects. Without it, the first
// call sends its script and may have to connect, which can take longer than a budget (see [WithBudget]).
//
//	err := ratelimit.Preload(ctx, ClaimOf(perUser, "any", 1), ClaimOf(tokens, "any", 1).Estimate())
//
// It loads what each limiter needs alone, and what all need together. It looks behind decorators, but not into types of
// your own: it loads what the secondaries of a [Fallback] need, asks a [Choice] for the key of its claim, and leaves
// out the trial of a [Shadow]. Plans of one algorithm share their scripts. It takes no permits, and waits until the
// client's timeouts or ctx end it. After an error of Redis or the network the limiters work all the same. Its other
// errors are those of TryAcquireAll before it asks Redis, and ErrInvalidConfig if a Choice picks [DenyAll].
func Preload(ctx context.Context, claims ...Claim) error {
	if len(claims) == 0 {
		return invalidConfig("Preload: there is no claim")
	}
	var p preloads
	if err := p.add(ctx, &call{op: acquire, claims: slices.Clone(claims), split: true}); err != nil {
		return err
	}
	return p.load(ctx)
}

// preloads is what is to be loaded.
type preloads struct {
	clients []redisclient.Client
	scripts [][]*script.Script // of each client, each once
}

// add adds what c needs.
func (p *preloads) add(ctx context.Context, c *call) error {
	inside, secondaries, err := c.within(func(choice picker, at int) (any, error) {
		key := c.claims[at].key
		picked, err := choice.of(ctx, key)
		if err == nil && deniesAll(picked) {
			err = invalidConfig("Preload: the plan of %s, the key of claim %d, is to deny all, which needs no script; give a key and a context that have another plan",
				shortKey(key), at+1)
		}
		return picked, err
	})
	switch {
	case err != nil:
		return err
	case inside == nil:
		return p.addLimiters(c)
	}
	if err := p.add(ctx, inside); err != nil || secondaries == nil {
		return err
	}
	return p.add(ctx, secondaries)
}

// deniesAll reports whether l is DenyAll or DenyHolds.
func deniesAll(l any) bool { return l == any(denyAll) || l == any(denyHolds) }

// addLimiters is add for a call without policies.
func (p *preloads) addLimiters(c *call) error {
	for i := range c.claims { // any key will do
		if claim := &c.claims[i]; claim.limiter != nil && claim.limiter.tenants && !keyname.HasTenant(claim.key) {
			claim.key = "{preload}:" + claim.key
		}
	}
	together := *c
	together.split = false // one script for all, if there can be one
	if err := together.mistakeOfLimiters(context.Background()); err != nil {
		return err
	}
	var onRedis []Claim
	for _, claim := range c.claims {
		if claim.limiter != nil {
			onRedis = append(onRedis, claim)
			p.addScripts(claim.limiter.exec)
		} else if a, ok := claim.outer.(*All); ok {
			switch {
			case !a.made():
				return errUnmade
			case a.group != nil: // nil: its limiters are in memory
				p.addScripts(a.group.exec)
			}
		}
	}
	if len(onRedis) == 0 {
		return nil
	}
	joined, _, err := joinClaims(nil, onRedis)
	if err != nil {
		return err
	}
	g, err := groupOf(joined)
	if err != nil {
		return err
	}
	p.addScripts(g.exec)
	if ends := slices.DeleteFunc(joined, func(c Claim) bool { return !c.settle && !c.limiter.holds() }); len(ends) > 1 {
		if g, err := groupOf(ends); err == nil {
			p.addFor(g.exec.Client, g.scripts.Finish, g.scripts.FinishOfSeveral)
		}
	}
	return nil
}

func (p *preloads) addScripts(e *redisexec.Executor) { p.addFor(e.Client, e.Scripts()...) }

func (p *preloads) addFor(client redisclient.Client, scripts ...*script.Script) {
	at := slices.IndexFunc(p.clients, func(c redisclient.Client) bool { return identity.Same(c, client) })
	if at < 0 {
		at = len(p.clients)
		p.clients, p.scripts = append(p.clients, client), append(p.scripts, nil)
	}
	for _, s := range scripts {
		if !slices.Contains(p.scripts[at], s) {
			p.scripts[at] = append(p.scripts[at], s)
		}
	}
}

// load goes on after an error: that of one Redis says nothing of another.
func (p *preloads) load(ctx context.Context) error {
	var errs []error
	for i, client := range p.clients {
		if err := redisexec.Load(ctx, client, p.scripts[i]...); err != nil {
			errs = append(errs, fmt.Errorf("ratelimit: preload: %w", ended(ctx, err)))
		}
	}
	return errors.Join(errs...)
}
