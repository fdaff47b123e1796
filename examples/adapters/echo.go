package adapters

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
)

// Echo returns a middleware of echo that applies a limit. It is echo.WrapMiddleware, with additions: what the limit
// asks about a request can read echo's context, see [EchoContext], and httplimit.Pattern is the route, such as GET
// /users/:id. When the handlers have run, the request has its own context again: the limit's ends with a permit in
// flight.
//
// Echo writes the answer to a handler's error after the limit has returned. So
// httplimit.WithSettle, in a limit that is mounted like this, sees the status 200 instead of the
// error's.
func Echo(limit func(http.Handler) http.Handler) echo.MiddlewareFunc {
	wrapped := echo.WrapMiddleware(limit)
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		limited := wrapped(next)
		return func(c echo.Context) error {
			outside := c.Request()
			defer c.SetRequest(outside)
			asked := outside.WithContext(context.WithValue(outside.Context(), echoContext{}, c))
			asked.Pattern = "none" // of a page that does not exist
			if c.Path() != "" {
				asked.Pattern = asked.Method + " " + c.Path()
			}
			c.SetRequest(asked)
			return limited(c)
		}
	}
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
