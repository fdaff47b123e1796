package adapters

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/gofiber/fiber/v3"
	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
)

// A wish is a request that a client writes.
type wish struct{ method, path string }

// invented are requests that try to get a key of their own: by methods, by paths that do not exist, by other ways to
// write one that does.
func invented() (all []wish) {
	methods := []string{"GET", "HEAD", "OPTIONS", "TRACE", "PATCH", "DELETE", "PROPFIND", "REPORT", "get", "echo_route_not_found", "M0", "M1", "M2"}
	for _, method := range methods {
		for _, path := range []string{
			"/users/7", "/users/8", "/users/7/", "//users/7", "/users//7", "/Users/7", "/users/a%2Fb", "/users%2F7", "/users/%7Bid%7D",
			"/users/../users/7", "/users/./7", "/users/", "/users", "/", "/a", "/b", "/api/a", "/api/b", "/api/a/", "/api/", "/api", "/api%2Fa",
			"/api/known", "/api/known/", "/api/Known", "/api/%6Bnown",
		} {
			all = append(all, wish{method, path})
		}
	}
	return all
}

// request is what a client sends, which is not made pretty on the way.
func (w wish) request() *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	r.Method, r.RequestURI = w.method, w.path
	r.URL = &url.URL{Path: w.path}
	if path, err := url.PathUnescape(w.path); err == nil && path != w.path {
		r.URL.Path, r.URL.RawPath = path, w.path
	}
	return r
}

// TestNothingThatAClientWritesChoosesARoutesKey: with a limit by route of one an hour, the invented requests get the keys of
// the service's routes, one for all that is no route, and one allowed call each. A handler of unknown routes, which
// some frameworks take for a route, is no exception.
func TestNothingThatAClientWritesChoosesARoutesKey(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	none := "route:none"
	for name, framework := range map[string]struct {
		keys  []string // that are possible at all
		serve func(limit wrapper, served func()) http.Handler
	}{
		"net/http": {
			[]string{"route:/users/%7Bid%7D", "route:GET /api/known", "route:/api/"},
			func(limit wrapper, served func()) http.Handler {
				mux := http.NewServeMux()
				h := limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served() }))
				mux.Handle("/users/{id}", h)
				mux.Handle("GET /api/known", h)
				mux.Handle("/api/", h)
				return mux
			},
		},
		"chi": {
			[]string{"route:/users/%7Bid%7D", "route:/api", "route:/api/", "route:/api/*"},
			func(limit wrapper, served func()) http.Handler {
				h := func(http.ResponseWriter, *http.Request) { served() }
				r := NewChi(func(next http.Handler) http.Handler { return next })
				r.With(limit).Get("/users/{id}", h)
				r.Route("/api", func(r chi.Router) {
					r.Use(limit)
					r.Get("/known", h)
					r.NotFound(h)
				})
				return r
			},
		},
		"gin": {
			[]string{none, "route:GET /users/:id", "route:GET /api/known"},
			func(limit wrapper, served func()) http.Handler {
				h := func(*gin.Context) { served() }
				g := NewGin(limit)
				g.HandleMethodNotAllowed = true
				g.GET("/users/:id", h)
				g.Group("/api").GET("/known", h)
				g.NoRoute(h)
				g.NoMethod(h)
				return g
			},
		},
		"echo": {
			[]string{none, "route:GET /users/:id", "route:GET /api/known"},
			func(limit wrapper, served func()) http.Handler {
				h := func(echo.Context) error { served(); return nil }
				e := NewEcho(limit)
				e.GET("/users/:id", h)
				e.GET("/api/known", h)
				e.RouteNotFound("/api/*", h)
				e.RouteNotFound("/*", h)
				return e
			},
		},
		"echo, a group": {
			[]string{none, "route:GET /api/known"},
			func(limit wrapper, served func()) http.Handler {
				e := echo.New()
				api := e.Group("/api", Echo(limit)) // which registers handlers of unknown routes
				api.GET("/known", func(echo.Context) error { served(); return nil })
				return e
			},
		},
		"echo, a host": {
			[]string{none, "route:GET /users/:id"},
			func(limit wrapper, served func()) http.Handler {
				e := echo.New()
				e.Use(Echo(limit))
				e.Host("example.com").GET("/users/:id", func(echo.Context) error { served(); return nil })
				return e
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := miniredis.RunT(t)
			client := redis.NewClient(&redis.Options{Addr: server.Addr()})
			t.Cleanup(func() { _ = client.Close() })
			window := ratelimit.Must(ratelimit.NewFixedWindow(client, 1, time.Hour))
			asked, last := map[string]int{}, ""
			pattern := httplimit.Pattern()
			served := map[string]int{}
			h := framework.serve(ratelimit.Must(httplimit.New(window, func(r *http.Request) (string, error) {
				key, err := pattern(r)
				require.NoError(t, err)
				asked[key]++
				last = key
				return key, nil
			})), func() { served[last]++ })
			denied := 0
			for _, w := range invented() {
				last = ""
				answer := httptest.NewRecorder()
				h.ServeHTTP(answer, w.request())
				if answer.Code == http.StatusTooManyRequests {
					denied++
				}
			}
			total := 0
			for key, n := range asked {
				total += n
				require.Contains(t, framework.keys, key)
				require.LessOrEqual(t, served[key], 1, key)
			}
			require.Equal(t, len(asked), len(server.Keys()), slices.Collect(maps.Keys(asked)))
			require.Len(t, asked, len(framework.keys))
			require.Equal(t, total-len(asked), denied, "one request of each key is allowed")
		})
	}
}

// TestARouteOfFiberIsNoKey: Fiber knows the route only when the handler runs, so a limit by route is an error, and not a
// key that the client writes.
func TestARouteOfFiberIsNoKey(t *testing.T) {
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	window := ratelimit.Must(ratelimit.NewFixedWindow(client, 1, time.Hour))
	app := NewFiber(ratelimit.Must(httplimit.New(window, httplimit.Pattern())))
	app.Get("/users/:id", func(fiber.Ctx) error { t.Error("served"); return nil })
	for _, path := range []string{"/users/7", "/users/7/", "/a"} {
		answer, err := app.Test(httptest.NewRequest("GET", path, nil))
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, http.StatusInternalServerError, answer.StatusCode, path)
	}
	require.Empty(t, server.Keys())
}
