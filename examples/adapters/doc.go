// Package adapters shows the limits of httplimit in front of the handlers of web frameworks: chi,
// gin, echo and Fiber. Each has a file of its own, which you can copy. The tests start the
// framework on a listener and send it requests over HTTP.
//
// chi accepts the middleware as it is. Gin and Fiber need the functions [Gin] and [Fiber]; with [Echo], as with Gin,
// keys can read the framework's context. All four run the framework's handlers inside of the limit, so that permits in
// flight are held while handlers run (httplimit.NewInFlight), and costs that handlers report (httplimit.ReportCost) are
// settled afterwards.
//
// It is a module of its own, so that users of the limiters do not download frameworks.
package adapters
