// Package ratelimittest is for the tests of services that use package ratelimit: limits on an
// embedded Redis whose time the test sets, outages on demand, limiters whose answers the test
// sets, and a record of the calls.
//
//	func TestTheThirdRequestIsDenied(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			env := ratelimittest.New(t)
//			service := NewService(env.Client())
//			…
//			env.Advance(time.Minute)
//			…
//		})
//	}
//
// # Time
//
// The clock is that of a bubble of testing/synctest, whose documentation explains bubbles. In a
// bubble time passes only while all goroutines of the bubble wait; it then jumps at once to the
// next instant for which one of them waits. Everything uses this one clock: the embedded Redis
// and its TTLs, the decorators' memory, breakers and leases, waiting callers, deadlines of
// contexts, and the service under test. So nothing needs a clock as an argument, and no limiter
// needs an option for tests. [Env.Advance] lets time pass; time.Sleep, a [ratelimit.Wait] or any
// other timer do so as well. A bubble begins at midnight of 2000-01-01 in UTC.
//
// Three rules of bubbles matter here. Build everything that has a clock in the bubble, limiters
// and decorators included, not in variables of the package. Use no sockets: while a goroutine
// waits for a socket, no time passes; [Serve] is an HTTP server that needs none. And end all
// goroutines before the test ends.
//
// # Which to use
//
//	a service with its limits, and time         New and Advance in a bubble
//	what a service does when it is denied,      NewScript, in a bubble or not
//	or when there is no decision
//	what a service does in an outage            Down, FailWith, Slow and LoseReplies of an Env
//	what a service asks its limiters            a Recorder around them
//	a test that needs real sockets              New outside of a bubble; time is the real one
//
// Do not measure speed here: a script takes much longer in the embedded Redis than in a real one.
// The guide is docs/testing.md.
package ratelimittest
