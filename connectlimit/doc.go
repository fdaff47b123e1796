// Package connectlimit puts a rate limit in front of a Connect service, and in front of a Connect
// client's own calls, in the protocols Connect, gRPC and gRPC-Web.
//
//	key, err := connectlimit.ClientIP(nil) // no proxy in front of the service
//	...
//	limit, err := connectlimit.NewServer(limiter, key, connectlimit.WithPolicy("api"))
//	...
//	mux.Handle(pingv1connect.NewPingServiceHandler(service, connect.WithInterceptors(limit)))
//
// A call that is allowed goes on. A call that is denied fails with resource_exhausted and the
// details RetryInfo and QuotaFailure, and the handler does not run. In the Connect protocol a
// unary call's answer is then 429 with Retry-After; in gRPC and gRPC-Web grpc-retry-pushback-ms is
// among the trailers. If there is no decision, because Redis is down and there is no
// [ratelimit.Fallback], the call fails with unavailable. [RetryAfter] reads the delay from the
// error.
//
// A stream takes its permits when it starts; [WithReceived] and [WithSent] limit its messages, and
// [WithInFlight] limits how many calls run at once. [NewClient] limits a client.
//
// # Keys
//
// A [KeyFunc] says whose call it is: [ClientIP], [APIKey], [User], [Header], [Procedure],
// [Everyone], or several with [Join] and [FirstOf]. Package httplimit makes the keys, so a service
// that serves HTTP and Connect has one limit for both if it uses one limiter for both. The rules
// for keys are those of that package. A client that is limited must not be able to choose its key.
// A call without a key fails with invalid_argument, and never goes on without a limit. No secret
// is in an error, and no client chooses a slot of a Redis Cluster.
//
// # Order of interceptors
//
// Authentication goes outside of a limit by user or API key: into an HTTP middleware, or among the
// interceptors before the limit. connect.WithRecover goes before the limit too. An outer limit has
// taken its permits when an inner one denies; [ratelimit.NewAll] takes all or none.
//
// # httplimit in front of Connect
//
// A Connect handler is an http.Handler, so package httplimit works in front of it, and denies
// before anything is read. But its 429 has no details, and gRPC clients read a bare 429 as
// UNAVAILABLE, which many retry policies retry at once. Use the denial handler of the example of
// [Decision.Err] with httplimit, or use this package.
package connectlimit
