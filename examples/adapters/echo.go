package adapters

import (
	"net/http"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
)

// NewEcho is an echo with a limit for all its routes; echo's own adapter is all that it needs. For
// a group of routes, give it to e.Group("/api", echo.WrapMiddleware(limit)).
//
// Echo answers the error of a handler when the limit has returned. So httplimit.WithSettle, in a
// limit that is mounted like this, sees the status 200 in place of the error's.
func NewEcho(limit func(http.Handler) http.Handler) *echo.Echo {
	e := echo.New()
	e.Use(middleware.Recover())
	e.Use(echo.WrapMiddleware(limit))
	return e
}
