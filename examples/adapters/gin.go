package adapters

import (
	"context"
	"net/http"

	"github.com/gin-gonic/gin"
)

// Gin returns a handler for gin that applies a limit. What the limit asks about a request can read gin's context, see
// [GinContext], and httplimit.Pattern is the route, such as GET /users/:id.
//
// Gin's handlers write to gin's own ResponseWriter. So httplimit.WithSettle does not see the status
// and the bytes here. Use httplimit.WithReportedCost with
//
//	httplimit.ReportCost(c.Request.Context(), c.Writer.Size())
//
// or put the limit around the engine: http.ListenAndServe(addr, limit(engine)).
func Gin(limit func(http.Handler) http.Handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		allowed, outside := false, c.Request
		asked := outside.WithContext(context.WithValue(outside.Context(), ginContext{}, c))
		asked.Pattern = "none" // of a page that does not exist
		if c.FullPath() != "" {
			asked.Pattern = asked.Method + " " + c.FullPath()
		}
		limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			allowed = true
			c.Request = r                          // with the limit's context
			defer func() { c.Request = outside }() // the limit's context ends with the handler
			c.Next()
		})).ServeHTTP(c.Writer, asked)
		if !allowed {
			c.Abort()
		}
	}
}

// NewGin returns an engine with a limit for all its routes.
func NewGin(limit func(http.Handler) http.Handler) *gin.Engine {
	engine := gin.New()
	engine.Use(gin.Recovery())
	engine.Use(Gin(limit))
	return engine
}

type ginContext struct{}

// GinContext returns gin's context of a request to [Gin], for what a limit asks about the request: keys, costs, plans.
// It is nil for other requests, as with a limit around the engine.
//
//	user, err := httplimit.User(func(ctx context.Context) string { return GinContext(ctx).GetString("user") })
func GinContext(ctx context.Context) *gin.Context {
	c, _ := ctx.Value(ginContext{}).(*gin.Context)
	return c
}
