// Package grpclimit puts a rate limit in front of a gRPC service, and in front of a gRPC client's
// own calls.
//
//	key, err := grpclimit.ClientIP(nil) // no proxy in front of the service
//	...
//	limit, err := grpclimit.NewServer(limiter, key, grpclimit.WithPolicy("api"))
//	...
//	server := grpc.NewServer(limit.Options()...)
//
// A call that is allowed goes on. A call that is denied fails with RESOURCE_EXHAUSTED and the
// details RetryInfo and QuotaFailure, and the handler does not run. The trailer
// grpc-retry-pushback-ms says when to retry, for the retry policies of clients, which do not read
// RetryInfo. If there is no decision, because Redis is down and there is no [ratelimit.Fallback],
// the call fails with UNAVAILABLE. [RetryAfter] reads the delay from the error.
//
// A stream takes its permits when it starts; [WithReceived] and [WithSent] limit its messages,
// and [WithInFlight] limits how many calls run at once. [NewClient] limits a client; [NewTap]
// denies before the server spends anything.
//
// # Keys
//
// A [KeyFunc] says whose call it is: [ClientIP], [APIKey], [User], [Metadata], [Method],
// [Everyone], or several with [Join] and [FirstOf]. Package httplimit makes the keys, so a service
// that serves HTTP and gRPC has one limit for both if it uses one limiter for both. The rules for
// keys are those of that package. A client that is limited must not be able to choose its key. A
// call without a key fails with INVALID_ARGUMENT, and never goes on without a limit. No secret is
// in an error, and no client chooses a slot of a Redis Cluster.
//
// # Order of interceptors
//
// Authentication goes outside of a limit by user or API key. A limit by address goes outside of
// authentication, and so do metrics and recovery. An outer limit has taken its permits when an
// inner one denies; [ratelimit.NewAll] takes all or none. On a client, the retry policy is inside
// of all interceptors: a call takes its permits once, however often it is sent.
package grpclimit
