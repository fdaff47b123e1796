package adapters

import (
	"context"
	"net/http"
	"sync"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
)

// Echo returns a middleware of echo that applies a limit. It is echo.WrapMiddleware, with additions: what the limit
// asks about a request can read echo's context, see [EchoContext], and httplimit.Pattern is the route, such as GET
// /users/:id. It is "none" for all that no route matches with its method: echo has a path for these too, beside which the
// client could write any method. The routes are those at the time of the first request; echo wants them all by then. When
// the handlers have run, the request has its own context again: the limit's ends with a permit in
// flight.
//
// Echo writes the answer to a handler's error after the limit has returned. So
// httplimit.WithSettle, in a limit that is mounted like this, sees the status 200 instead of the
// error's.
func Echo(limit func(http.Handler) http.Handler) echo.MiddlewareFunc {
	wrapped := echo.WrapMiddleware(limit)
	var once sync.Once
	var routes map[string]bool
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		limited := wrapped(next)
		return func(c echo.Context) error {
			outside := c.Request()
			defer c.SetRequest(outside)
			asked := outside.WithContext(context.WithValue(outside.Context(), echoContext{}, c))
			once.Do(func() { routes = patternsOf(c.Echo()) })
			asked.Pattern = asked.Method + " " + c.Path()
			if !routes[asked.Pattern] {
				asked.Pattern = "none"
			}
			c.SetRequest(asked)
			return limited(c)
		}
	}
}

// patternsOf is the routes of e and of its hosts, without the handlers of what no route matches.
func patternsOf(e *echo.Echo) map[string]bool {
	all := e.Routes()
	for _, host := range e.Routers() {
		all = append(all, host.Routes()...)
	}
	patterns := map[string]bool{}
	for _, route := range all {
		if route.Method != echo.RouteNotFound {
			patterns[route.Method+" "+route.Path] = true
		}
	}
	return patterns
}

type echoContext struct{}

// EchoContext returns echo's context of a request to [Echo], for what a limit asks about the request: keys, costs,
// plans. It is nil for other requests.
//
//	user, err := httplimit.User(func(ctx context.Context) string { id, _ := EchoContext(ctx).Get("user").(string); return id })
func EchoContext(ctx context.Context) echo.Context {
	c, _ := ctx.Value(echoContext{}).(echo.Context)
	return c
}

// NewEcho returns an echo with a limit for all its routes. For a group of routes, use e.Group("/api", Echo(limit)).
func NewEcho(limit func(http.Handler) http.Handler) *echo.Echo {
	e := echo.New()
	e.Use(middleware.Recover())
	e.Use(Echo(limit))
	return e
}
