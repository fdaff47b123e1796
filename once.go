package ratelimit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/keyname"
	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/waiting"
)

// A once is the id under which a call takes its permits.
type once struct {
	id      string
	ttl     time.Duration
	lenient bool // a limiter in this process, which remembers no id, may decide: an outage's secondary
}

// TryAcquireOnce takes the permits of all claims, or none, as [TryAcquireAll] does, but the same id takes them once: a
// webhook that is delivered again, a job that a queue hands out again, a call that is repeated because its reply was lost.
//
//	r, err := ratelimit.TryAcquireOnce(ctx, job.ID, time.Hour, ratelimit.ClaimOf(perTenant, tenant, job.Cost))
//
// For ttl after the call that was allowed, an equal call with its id gets its answer, with Repeated, and nothing is taken:
// the durations in it are those of then. A denial is not remembered: the same id asks again. If it was answered by an
// error, repeat the call: it takes the permits at most once.
//
// An id has 1 to 4,096 bytes, and belongs to the limiter and the key of the first claim: under another key it is another
// id. ErrIDReused means that it stands for other claims, or that a limit has changed; nothing was taken. ttl is 1ms to 71
// years. Redis keeps a key of its own for each id that was allowed, in the slot of the first claim's key, of some 200 bytes
// until ttl is over; a Reset does not delete it.
//
// The secondary of a [Fallback] in this process remembers nothing: its answer, with Fallback, may be a second take. The
// other errors are those of TryAcquireAll, and ErrInvalidConfig for an estimate and for permits in flight, which would be
// given back once for each answer, and for limiters in this process.
func TryAcquireOnce(ctx context.Context, id string, ttl time.Duration, claims ...Claim) (AllResult, error) {
	if id == "" || len(id) > maxKey {
		return AllResult{}, fmt.Errorf("%w: the id of TryAcquireOnce has %d bytes; it must have 1 to %d", ErrInvalidKey, len(id), maxKey)
	}
	if err := checkSpan("TryAcquireOnce: the time for which the id is remembered", ttl); err != nil {
		return AllResult{}, err
	}
	for i := range claims {
		if claims[i].settle {
			return AllResult{}, invalidConfig("TryAcquireOnce: the claim of %s is an estimate, which would be settled once for each answer; "+
				"take permits, or estimate without an id", claims[i].title())
		}
	}
	return decideAll(ctx, call{op: acquire, once: &once{id: id, ttl: ttl}}, claims)
}

// remembered is the error of a call under an id that its limiters cannot remember, nil if they can. The policies have been
// taken off.
func (c *call) remembered() error {
	if c.once == nil {
		return nil
	}
	for i := range c.claims {
		claim := &c.claims[i]
		switch {
		case claim.limiter != nil && claim.limiter.holds():
			return invalidConfig("TryAcquireOnce: permits of %s are held, and would be released once for each answer; TryAcquireAll holds them once under the id of Claim.As", claim.title())
		case claim.limiter == nil && !c.once.lenient && !isConstant(claim.outer):
			return invalidConfig("TryAcquireOnce: %s does not decide on Redis, and remembers no id; "+
				"give a limiter on Redis, and of an All its claims (Claims)", claim.title())
		}
	}
	return nil
}

// part is what a request asks of the id: the name of its key, for how long it is remembered, and what it stands for.
func (o *once) part(claims []Claim) redisexec.Part {
	first := &claims[0]
	head := string(first.limiter.head) + "/once{" + keyname.Tag(first.key) + "}"
	about := sha256.New()
	for _, c := range claims {
		_, _ = fmt.Fprintf(about, "%q %q %d", c.limiter.head, c.key, c.n)
		for _, arg := range c.limiter.exec.Args {
			if text, ok := arg.(*string); ok { // nil: an instant of a calendar
				_, _ = fmt.Fprintf(about, " %q", *text)
			}
		}
	}
	return redisexec.Part{
		Name: head + first.key + "/" + o.id + "/" + strconv.Itoa(len(first.key)),
		Once: strconv.FormatInt(exact.CeilDiv(o.ttl.Microseconds(), 1000), 10) + "/" + hex.EncodeToString(about.Sum(nil)[:16]),
	}
}

// underIDs is g for calls under ids, whose scripts have one key more for each request.
func (g *group) underIDs(clock *callerClock) *group {
	return g.by(&g.ids, clock, func(exec *redisexec.Executor) {
		exec.One, exec.Many, exec.ManyOfSeveral = g.scripts.Once.One, g.scripts.Once.Many, g.scripts.Once.ManyOfSeveral
		exec.Words, exec.Several = g.all+1, append(exec.Several, redisexec.Limiter{Words: 1})
		exec.Cost.Key += costOfID
	})
}

// costOfID is what a GET and a SET of an id cost a merged call beyond its limiters, see [redisexec.Cost].
const costOfID = 15

// repeated reports whether a reply is one that was remembered, or that of an equal call in the same execution.
func (g *group) repeated(reply redisexec.Reply) bool {
	return len(reply.Words) > g.all && (reply.Words[g.all] != 0 || reply.Index > 0 && g.wordsOf(reply, 0)[decision.WordAllowed] > 0)
}

// As claims permits in flight under an id of the caller's, of 1 to 4,096 bytes: the id of a job, say. While the hold
// lasts, the same claim is the same hold, in any process: it takes no further place and begins the lease again, and the
// AllResult has Repeated. So a call whose reply was lost can be repeated, and another process can take a hold over:
//
//	r, err := ratelimit.TryAcquireAll(ctx, ratelimit.ClaimHold(reports, tenant, 1).As(job.ID))
//
// Without Repeated, the hold was released or its lease had ended, and r is the answer of a call that takes a place. An id
// belongs to the key and to the limiter's name and lease. The error is ErrIDReused if it has another number of permits, and
// nothing changes.
//
// Whoever releases the hold ends it for all, so a process that leaves it to another calls [Hold.HandOver]. After an error
// nothing is given back in the background: repeat the call, or the permits are free when the lease ends. After an error of
// Release, take another id, or wait for a lease: the Release may still come.
//
// Other claims of the call take their permits each time. The error is ErrInvalidConfig for a claim of what is not in
// flight, see [TryAcquireOnce], and for a call of several claims that one script cannot decide.
func (c Claim) As(id string) Claim {
	c.as = &id
	return c
}

// checkIDs is the error of claims under ids that cannot work.
func checkIDs(claims []Claim) error {
	for i := range claims {
		switch c := &claims[i]; {
		case c.as == nil:
		case *c.as == "" || len(*c.as) > maxKey:
			return fmt.Errorf("%w: the id of Claim.As has %d bytes; it must have 1 to %d", ErrInvalidKey, len(*c.as), maxKey)
		case !c.holds():
			return invalidConfig("Claim.As: the permits of %s are not held; TryAcquireOnce takes permits once for an id", c.title())
		}
	}
	return nil
}

// idOf is an id of a caller's in Redis. It begins with a small letter, which no other id has.
func idOf(id string) string {
	sum := sha256.Sum256([]byte(id))
	return "i" + hex.EncodeToString(sum[:15])
}

var errOtherPermits = fmt.Errorf("%w: its hold has another number of permits; ask for as many, or take another id", ErrIDReused)

// ReleaseAs gives back the n permits of key that a claim holds under an id ([Claim.As]), for a caller that has no Hold:
// a process that hears that work which another one began is done. It takes nothing, and returns nil too if there is no
// such hold, or no longer. n is that of the claim; with fewer, the rest stays taken until the lease ends.
//
// A Hold of the same id in this process still counts for observers until its HandOver. The errors are those of
// [Hold.Release], ErrExceedsLimit, and ErrInvalidKey for the id. After an error the permits are free at the latest when
// the lease ends.
func (f *InFlight) ReleaseAs(ctx context.Context, key string, n int, id string) error {
	o := Observation{Call: callRelease, Key: key, N: n}
	if o.Err = f.check(ctx, key, n); o.Err == nil {
		o.Err = checkIDs([]Claim{{limiter: &f.core, as: &id}})
	}
	f.watch.observed(ctx, &o, func() (sent sending) {
		h := f.newHold(&Claim{key: key, n: n, as: &id})
		if sent, o.Err = f.release(ctx, h); o.Err == nil {
			waiting.InFlight.Free(f.permits(key))
		}
		return sent
	})
	return o.Err
}
