package adapters

import (
	"net/http"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
)

// NewEcho returns an echo with a limit for all its routes; echo's own adapter is enough. For a
// group of routes, use e.Group("/api", echo.WrapMiddleware(limit)).
//
// Echo writes the answer to a handler's error after the limit has returned. So
// httplimit.WithSettle, in a limit that is mounted like this, sees the status 200 instead of the
// error's.
func NewEcho(limit func(http.Handler) http.Handler) *echo.Echo {
	e := echo.New()
	e.Use(middleware.Recover())
	e.Use(echo.WrapMiddleware(limit))
	return e
}
