package adapters

import (
	"net/http"

	"github.com/gin-gonic/gin"
)

// Gin returns a handler for gin that applies a limit.
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
		limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			allowed = true
			c.Request = r                          // with the limit's context
			defer func() { c.Request = outside }() // the limit's context ends with the handler
			c.Next()
		})).ServeHTTP(c.Writer, c.Request)
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
