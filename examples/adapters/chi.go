package adapters

import (
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
)

// NewChi returns a router with a limit for all its routes. The limit is a middleware like chi's
// own. For one route only, use r.With(limit).Get(…): there, httplimit.Pattern knows the route.
func NewChi(limit func(http.Handler) http.Handler) *chi.Mux {
	r := chi.NewRouter()
	r.Use(middleware.Recoverer)
	r.Use(limit)
	return r
}
