// Package httplimit puts a rate limit in front of an http.Handler. It needs nothing but the
// standard library and package ratelimit.
//
//	limit, err := httplimit.PerClient(client, "100/m", nil) // no proxy in front of the service
//	...
//	http.Handle("/", limit(handler))
//
// PerClient limits each client by its address, and decides in memory while Redis is down. It is a few lines
// of this package and of package ratelimit; most services write their own:
//
//	key, err := httplimit.ClientIP(nil)
//	...
//	limit, err := httplimit.New(limiter, key, httplimit.WithPolicy("api"))
//	...
//	http.Handle("/", limit(handler))
//
// A request that is allowed is served, with the fields RateLimit and RateLimit-Policy in the
// answer. A request that is denied gets 429 with Retry-After, the same fields and an
// application/problem+json body; the handler does not run. If there is no decision, because
// Redis is down and there is no [ratelimit.Fallback], the answer is 503.
//
// # Keys
//
// A [KeyFunc] says whose request it is: [ClientIP], [APIKey], [User], [Header], [Pattern], or
// several with [Join] and [FirstOf]. A client that is limited must not be able to choose its key:
// use an address only as trusted proxies report it, and a header only if something in front of the
// service sets it or has checked it. A request without a key is not served without a limit: the key
// function returns an error, and the answer is 400 unless [WithErrorHandler] chooses another one.
//
// The key functions of this package never return an empty key, nor one with a brace, so that no
// client chooses a slot of a Redis Cluster. Each part begins with its kind ("user:42",
// "ip:192.0.2.7"), so that no user can take the name of an address. A value of more than 128 bytes
// is hashed. An API key is always hashed, and is in no error.
//
// # Several limits, waiting, and costs
//
// [NewAll] takes the permits of several limits, each with a key, a cost and a policy of its own,
// from all or from none. [NewInFlight] limits how many requests are served at once, alone or as one
// of several ([InFlight]). [WithMaxWait] lets a request wait for its permits instead of being
// denied. [WithReportedCost] and [WithSettle] take an estimate before the handler runs, and settle
// what the request has really cost after it has run. For plans, use a [ratelimit.Choice]; for a
// limit on trial, a [ratelimit.Shadow].
//
// # Order of middlewares
//
// CORS goes outside, so that browsers may read a denial, and so that preflights, which it answers
// itself, take no permit. Authentication goes outside of a limit by user or API key, and inside of
// a limit by address. Recovery goes outside of all limits, which pass a panic on. Limits can be
// nested: each adds its policy to the fields. An
// outer limit has taken its permits when an inner one denies; [NewAll] takes all or none. Mount each
// limit once: a request that passes it twice takes two permits.
//
// # Cost
//
// In addition to the limiter's own call, a request with [New] costs about a microsecond of the
// processor's time, two with Forwarded, and at most 4 allocations (Join and FirstOf add those of
// each key). The ResponseWriter and the request are passed on as they are: Flusher, Hijacker,
// http.ResponseController and websockets work as without the limit. Only [WithSettle] wraps the
// ResponseWriter, and these still work. WithSettle, [WithReportedCost] and [NewInFlight] give the
// handler a copy of the request with another context.
package httplimit
