package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/limitername"
	"github.com/tryacquire/ratelimit/internal/pauses"
	"github.com/tryacquire/ratelimit/internal/redisexec"
)

// Bans is a [Limiter] that pauses a key for longer and longer while its limiter goes on denying it: 2 minutes, then 5,
// then an hour. A denial is a strike, and the k-th strike pauses the key for the k-th length, or for the last one. The
// denials of an episode are one strike, whichever processes they come from: an episode lasts until the pause is over
// and, if that is later, until the denial's RetryAfter is. When no strike has come for the quiet time after the last
// episode, the strikes are forgotten.
//
//	banned, err := ratelimit.NewPause(client, ratelimit.WithName("banned"))
//	...
//	logins, err := ratelimit.NewBans(perUser, banned, []time.Duration{2 * time.Minute, 5 * time.Minute, time.Hour}, 24*time.Hour)
//
// The limiter and the pause decide together: while a key is paused, nothing is taken from the limiter. A call costs as much
// as one of an [All] of both, and a denial by the limiter a second round trip, for the strike. If that one fails, the
// denial stands, and the episode's next denial brings the strike, unless Redis has counted it. The Result of a denial is
// that of the limiter or of the pause, whichever lasts longer.
//
// Several Bans can have one pause, and count their strikes together. TryAcquireUpTo asks the pause first. Charge asks
// the limiter only, and nothing can be reserved. Put other decorators around the Bans; docs/pausing.md has an example.
type Bans struct {
	policied
	limiter Limiter
	pause   *Pause
	steps   string
	quiet   int64
}

func (b *Bans) kind() kind { return kindAround(b, b.limiter) }

// maxSteps keeps a strike cheap.
const maxSteps = 100

// NewBans returns a limiter that decides as l does, and pauses keys that l denies. lengths are those of the pauses, at
// most 100. Each of them and the quiet time is a whole number of microseconds, from 1ms to 71 years. The error wraps
// ErrInvalidConfig: l is no limiter that decides on Redis, or on another client than p; p has [WithProbe]; or a time
// cannot work.
func NewBans(l Limiter, p *Pause, lengths []time.Duration, quiet time.Duration) (*Bans, error) {
	c, err := redisCore(l)
	switch {
	case kindOf(l).absent:
		return nil, invalidConfig("NewBans: the limiter is nil")
	case err != nil:
		return nil, invalidConfig("NewBans: the limiter %v; put decorators around the Bans", err)
	case p == nil || !p.made():
		return nil, invalidConfig("NewBans: the pause was not made; NewPause makes one")
	case p.explainer != pauses.Explainer{}:
		return nil, invalidConfig("NewBans: the %s has WithProbe, and would wait for a success that nobody reports; give a pause without it", p.title)
	case len(lengths) == 0 || len(lengths) > maxSteps:
		return nil, invalidConfig("NewBans: there are %d lengths of pauses; give 1 to %d", len(lengths), maxSteps)
	}
	if _, ok := l.(*Pause); ok {
		return nil, invalidConfig("NewBans: the limiter is a pause; give one with a limit")
	}
	if _, err := newGroup([]*core{c, &p.core}, make([]bool, 2)); err != nil {
		return nil, fmt.Errorf("%w (NewBans)", err)
	}
	b := &Bans{limiter: l, pause: p, quiet: quiet.Microseconds()}
	for i, d := range lengths {
		if err := checkSpan(fmt.Sprintf("NewBans: length %d", i+1), d); err != nil {
			return nil, err
		}
		b.steps += ":" + strconv.FormatInt(d.Microseconds(), 10)
	}
	if err := checkSpan("NewBans: the quiet time", quiet); err != nil {
		return nil, err
	}
	b.by = b
	return b, nil
}

// Name is the limiter's.
func (b *Bans) Name() string {
	if b.by == nil {
		return ""
	}
	return limitername.Of(b.limiter)
}

// Reset resets key in the limiter and in the pause: it is allowed again, and its strikes are forgotten.
func (b *Bans) Reset(ctx context.Context, key string) error {
	if b.by == nil {
		return errUnmade
	}
	if err := b.pause.Reset(ctx, key); err != nil {
		return err
	}
	return b.limiter.Reset(ctx, key)
}

func (b *Bans) rank() int { return rankBans }

// divide adds a claim of the Bans without them, and if one decision is about both, one on the pause.
func (b *Bans) divide(to []Claim, c *call, claim Claim) ([]Claim, error) {
	switch {
	case b.by == nil:
		return nil, errUnmade
	case c.op == reserve && !c.orAtOnce:
		return nil, errNoReserve
	case c.op == pause || c.op == resume:
		claim.by(b.pause)
		return append(to, claim), nil
	}
	claim.by(b.limiter)
	if to = append(to, claim); c.op == acquire || c.op == look {
		to = append(to, Claim{limiter: &b.pause.core, key: claim.key, n: 1})
	}
	return to, nil
}

// around decides a claim of Bans as two, of which the second is on the pause, and counts a strike if the first is denied.
func (*Bans) around(ctx context.Context, c *call, own claimSet) outcome {
	var bans [maxGroup]*Bans
	var places [maxGroup][2]int // where the claims are
	var space [2 * maxGroup]Claim
	claims := space[:0]
	for i, claim := range c.claims {
		places[i][0] = len(claims)
		if !own.has(i) {
			claims = append(claims, claim)
			continue
		}
		bans[i] = claim.outer.(*Bans)
		var err error
		if claims, err = bans[i].divide(claims, c, claim); err != nil {
			return failedWith(err)
		}
		places[i][1] = len(claims) - 1
	}
	inner := *c
	inner.claims = claims
	switch {
	case c.op == acquire || c.op == look:
	case c.op == upTo:
		return bans[0].part(ctx, &inner)
	case c.op == reserve && c.orAtOnce:
		take := *c
		take.op = acquire
		return c.reservedAtOnce(take.decide(ctx))
	default:
		return inner.decide(ctx)
	}
	if len(claims) > maxGroup {
		return failedWith(errTooManyLimiters(len(claims)))
	}
	out := inner.decide(ctx)
	if out.err != nil {
		var slots *slotErrors
		if errors.As(out.err, &slots) {
			failed := claimSet(0)
			for i, at := range places[:len(c.claims)] {
				if slots.failed.has(at[0]) || bans[i] != nil && slots.failed.has(at[1]) {
					failed |= 1 << i
				}
			}
			slots.failed = failed
		}
		return out
	}
	parts, joined := make([]PartResult, len(c.claims)), claimSet(0)
	for i, b := range bans[:len(c.claims)] {
		parts[i] = out.parts[places[i][0]]
		if out.joined.has(places[i][0]) {
			joined |= 1 << i
		}
		if b != nil && !parts[i].Unknown {
			limited, paused := parts[i].Result, out.parts[places[i][1]].Result
			if c.op == acquire && !limited.Allowed && paused.Allowed {
				paused = b.strike(ctx, c.claims[i].key, limited)
			}
			parts[i].Result = governs(limited, paused)
		}
		if i == 0 {
			out.result = parts[0].Result
		} else if !parts[i].Unknown {
			out.result = governs(out.result, parts[i].Result)
		}
	}
	if c.one() && c.once == nil {
		p := parts[0]
		return outcome{result: p.Result, ticket: p.Ticket, hold: p.Hold, bucket: p.bucket}
	}
	out.parts, out.joined = parts, joined
	return out
}

// part takes as many permits as are left, if the key is not paused.
func (b *Bans) part(ctx context.Context, c *call) outcome {
	key := c.claims[0].key
	if err := c.mistake(ctx); err != nil {
		return failedWith(err)
	}
	r, err := b.pause.TryAcquire(ctx, key)
	if err != nil || !r.Allowed {
		return outcome{result: r, err: err}
	}
	out := c.decide(ctx)
	if out.err == nil && !out.result.Allowed {
		out.result = governs(out.result, b.strike(ctx, key, out.result))
	}
	return out
}

// strike counts a strike for a denial. The answer is that of the pause.
func (b *Bans) strike(ctx context.Context, key string, denied Result) Result {
	p := &b.pause.pauseCore
	wait := min(denied.RetryAfter, exact.Duration(exact.Micros)).Microseconds()
	o := Observation{Call: callPause, Key: key, N: 1}
	p.watch.observed(ctx, &o, func() sending {
		return p.change(ctx, &o, redisexec.Operation{Op: redisexec.Strike, Detail: &redisexec.Detail{Where: wait, Which: b.quiet, Steps: b.steps}})
	})
	if o.Err != nil { // the denial stands
		return Result{Allowed: true}
	}
	return o.Result
}
