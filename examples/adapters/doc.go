// Package adapters shows the limits of httplimit in front of the handlers of web frameworks: chi,
// gin, echo and fiber, each in a file of its own, to copy. Their tests start the framework on a
// listener and ask it over HTTP.
//
// chi and echo take the middleware as it is. Gin and Fiber need the functions [Gin] and [Fiber].
// All four run the framework's handlers inside of the limit, so that permits in flight are held
// while they run (httplimit.NewInFlight), and what they report (httplimit.ReportCost) is settled
// afterwards.
//
// It is a module of its own, so that users of the limiters do not download frameworks.
package adapters
