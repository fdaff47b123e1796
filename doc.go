// Package ratelimit limits rates across processes. Each limiter keeps its state in
// Redis, where one Lua script per decision reads and writes the state, so that
// concurrent callers in any number of processes never get more than the rule allows.
//
// # Who needs what?
//
// Most programs need three things: [NewTokenBucket], its method TryAcquire, and [NewFallback],
// which says what happens while Redis is down.
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
// The rest is for other needs. Limiters on Redis and the decorators around them have the same
// methods; each is documented once, at the name in brackets.
//
//   - Waiting rather than being denied: [Wait]; for a place, [WaitAll]. On a bucket, callers are served in order, and
//     Reserve promises permits for later ([TokenBucket.Reserve]).
//   - More than one permit: TryAcquireN takes n or none ([Limiter]), TryAcquireUpTo as many as are left
//     ([TokenBucket.TryAcquireUpTo]). Peek and [Look] say what is left; Reset forgets what was used.
//   - Costs that are known afterwards: Estimate and its [Ticket], or Charge. Permits that come back: Credit ([Settler]);
//     [WithTicketLease] gives back what a process that died has estimated.
//   - Work under way, rather than calls in a time: [InFlight], whose permits are held and given back.
//   - A stop for all processes until an instant: [NewPause]. Longer ones for those who go on: [NewBans].
//   - Several limits, all or nothing, in one round trip: [NewAll] for one key, [TryAcquireAll] for a
//     key and a number of permits of each, [TryAcquireOnce] for what may be delivered twice.
//   - Plans, and limits that change or come with the call: [NewChoice], [TokenBucket.With].
//     [WithHeadroom] leaves the last permits of a key to more important callers.
//   - One limit that tenants share, none of which takes what another one needs: [NewFairTokenBucket].
//   - Policies around a limiter: [NewFallback] for outages, [NewDenyCache] answers denials from memory,
//     [NewLeased] spends permits of hot keys in this process, [NewShadow] tries a limit without enforcing it.
//   - HTTP: package httplimit has keys that clients cannot forge, 429 with Retry-After, and the fields that
//     tell clients what is left. Modules grpclimit and connectlimit do so for gRPC and Connect.
//   - Observing: [WithObserver] calls a function for each call. Package observe logs denials and counts the keys
//     that are denied most; module otellimit has metrics for OpenTelemetry and Prometheus.
//   - Tests: package ratelimittest has a Redis inside the test's process, and one clock for all.
//
// # Which limiter do I want?
//
//	                  allows                                 choose it for
//	TokenBucket       burst + rate × t in any time t         most things: bursts, then a steady rate
//	LeakyBucket       capacity + rate × t in any time t      even spacing, with Wait and a capacity of 1;
//	                                                         it decides as the token bucket does
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
// # What holds for all of them
//
// A decision is atomic. A denial takes nothing, and writes only to repair a lost TTL, or a state
// from before the server's clock stepped back. A call is executed at most once, even when its
// reply is lost: the package keeps go-redis from sending it again.
//
// The server's clock decides, to the microsecond. When that clock steps back, nothing more is
// allowed, and no caller waits for the clock to catch up; README.md has the exceptions. Numbers
// are whole, so that rates such as 7 per minute neither leak nor lose a permit.
//
// Every key expires. One decision of one limiter touches one key in Redis, whose name is
// prefix:name:algorithm{key} (fair buckets and tickets with a lease have a second one). The
// braces are a hash tag, so that all limiters of one key are in one slot of a cluster, and
// [NewAll] works there as it is; a key with a tag of its own keeps it:
// prefix:name:algorithm:{user:42}:x. A [TryAcquireAll] of different keys needs a common tag.
//
// A changed configuration goes on from what the old one had counted. So two rules of one
// algorithm that must hold at the same time need two names, see [WithName]. [NewAll] makes
// one limiter of two.
//
// An error means that no decision was made. If a reply was lost, the permits may have
// been taken. The caller decides what an error means for the request; with [NewFallback],
// that decision is a policy in one line.
//
// Calls that arrive while many others are in flight are sent together, and share the cost:
// [WithoutMerging] says when, and turns it off.
package ratelimit
