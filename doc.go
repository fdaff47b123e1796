// Package ratelimit limits rates across processes. Each limiter keeps its state in
// Redis, where one Lua script per decision reads and writes the state, so that
// concurrent callers in any number of processes never get more than the rule allows.
//
// Most callers should use three things: [NewTokenBucket], its method TryAcquire, and
// [NewFallback], which says what happens while Redis is down.
//
//	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//	limiter, err := ratelimit.NewTokenBucket(
//		client, ratelimit.PerSecond(10), 20, ratelimit.WithName("api"))
//	...
//	result, err := limiter.TryAcquire(ctx, "user:42")
//	switch {
//	case err != nil: // no decision was made: Redis is down, for example
//	case !result.Allowed: // retry after result.RetryAfter
//	}
//
// Callers that would rather wait than be denied should use [Wait], and HTTP services the
// middleware of package httplimit. The rest of this package is for other needs.
//
// # Which limiter do I want?
//
//	                  allows                                 choose it for
//	TokenBucket       burst + rate × t in any time t         most things: bursts, then a steady rate
//	LeakyBucket       capacity + rate × t in any time t      filling something that drains; it
//	                                                         decides as the token bucket does
//	FixedWindow       limit per window, up to twice that     quotas per hour or day; the cheapest
//	                  across a boundary
//	CalendarWindow    limit per day, week or month of a      quotas of a plan, billing
//	                  time zone
//	SlidingWindow     limit in any interval of a window      a limit that must hold at all times
//	                  (Hash and List a little less)
//	SlidingLog        every rule, in any interval, exactly   several rules at once, or exactness
//
// A decision costs Redis a few microseconds, and the state of a key takes about a hundred
// bytes; sliding windows and logs take more, as their docs say. When in doubt, use the token
// bucket.
//
// [InFlight] limits something else: how many holders a key has at once, such as requests under
// way or jobs that run. It is a [Holder], and not a Limiter.
//
// # Which method do I want?
//
// Every limiter on Redis has the same methods, and so has every decorator.
// Each is documented once, at the name that is given here:
//
//   - TryAcquire takes one permit, and TryAcquireN n permits or none ([Limiter]).
//   - Peek says what is left, and Reset forgets what was used ([Limiter]); [Look] says whether n permits are there, of
//     several limiters too, and when.
//   - TryAcquireUpTo takes as many permits as are left ([TokenBucket.TryAcquireUpTo]).
//   - Estimate takes permits for a cost that is known only afterwards, and its [Ticket] settles the
//     true cost. Charge takes permits even if fewer are left; the missing ones are a debt
//     ([Settler]).
//   - Claim is an argument of [TryAcquireAll].
//   - Reserve takes permits that may be used later, where a bucket decides
//     ([TokenBucket.Reserve]).
//
// An [All] has those of Limiter; [All.Claims] makes the claims of its limiters.
//
// # What holds for all of them
//
// A decision is atomic. A denial takes nothing. It writes only to repair a lost TTL, or a state
// from before the server's clock stepped back.
//
// A call is executed at most once, even when its reply is lost: the package keeps
// go-redis from sending it again.
//
// The server's clock decides, to the microsecond. When that clock steps back, nothing more is
// allowed, and no caller waits for the clock to catch up.
//
// Numbers are whole, so that rates such as 7 per minute neither leak nor lose a permit.
//
// Every key expires. One decision of one limiter touches one key in Redis, whose name is
// prefix:name:algorithm{key}. The braces are a hash tag, so that all limiters of one key are
// in one slot of a cluster, and [NewAll] works there as it is; a key with a tag of its own
// keeps it: prefix:name:algorithm:{user:42}:x. A [TryAcquireAll] of different keys needs a
// common tag on a cluster.
//
// A changed configuration goes on from what the old one had counted. So two rules of one
// algorithm that must hold at the same time need two names, see [WithName]. [NewAll] makes
// one limiter of two.
//
// An error means that no decision was made. If a reply was lost, the permits may have
// been taken. The caller decides what an error means for the request; with [NewFallback],
// that decision is a policy in one line.
//
// # Several limiters
//
// [NewAll] takes permits of one key from several limiters, all or nothing, in one round
// trip; [TryAcquireAll] does so with a key and a number of permits for each. [NewChoice] picks
// the limiter of each call, for plans and for limits that change while the program runs.
// [TokenBucket.With] has the limiter of a limit that comes with the call, as from a database; so has
// [InFlight.With], and both in memory.
// [NewShadow] tries a limit without enforcing it. [WithHeadroom] leaves the last permits of
// a key to other limiters of the same name.
//
// # Waiting
//
// [Wait] waits until a limiter allows a call. On a bucket, waiting callers are served in
// order, and each makes one call to Redis: a reservation, as of [TokenBucket.Reserve]. A
// [LeakyBucket] of capacity 1 whose callers wait is a shaper.
//
// # HTTP
//
// Package httplimit puts a limiter in front of an http.Handler: keys that clients cannot forge, 429
// with Retry-After, and the fields that tell clients what is left. Packages grpclimit and
// connectlimit, each a module of its own, do so for gRPC and Connect.
//
// # Observing
//
// [WithObserver] calls a function for each call of a limiter. Package observe logs denials and
// counts which keys are denied most; module otellimit has metrics for OpenTelemetry and Prometheus.
//
// # Speed
//
// Calls that arrive while many others are in flight are sent together, and share the cost:
// [WithoutMerging] says when, and turns it off. If the client is an AutoPipeliner of go-redis, go-redis groups
// the calls instead. [NewDenyCache] answers denials from memory for as long as they cannot change.
//
// # Tests
//
// Package ratelimittest has a Redis inside the test's process, and one clock for the Redis, the
// limiters and the service.
package ratelimit
