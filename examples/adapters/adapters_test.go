package adapters

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"
	"github.com/gofiber/fiber/v3"
	"github.com/labstack/echo/v4"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/httplimit"
)

type wrapper = func(http.Handler) http.Handler

// A service has the same routes on each framework: /hello; /panic; /report, which costs 7; /wait,
// which says that it runs and goes on when it may; /stream, which writes a second line when it may.
type service struct {
	served  atomic.Int32
	running chan bool
	goOn    chan bool
	release func() // lets all handlers go on; so does the end of the test
}

func newService() *service {
	s := &service{running: make(chan bool), goOn: make(chan bool)}
	s.release = sync.OnceFunc(func() { close(s.goOn) })
	return s
}

func (s *service) wait() {
	s.running <- true
	<-s.goOn
}

// frameworks start a service on a listener of their own, and return its address.
var frameworks = map[string]func(t *testing.T, limit wrapper, s *service) string{
	"chi": func(t *testing.T, limit wrapper, s *service) string {
		r := NewChi(limit)
		r.Get("/hello", func(w http.ResponseWriter, _ *http.Request) { s.served.Add(1); _, _ = io.WriteString(w, "hello") })
		r.Get("/panic", func(http.ResponseWriter, *http.Request) { panic("boom") })
		r.Get("/report", func(_ http.ResponseWriter, r *http.Request) { httplimit.ReportCost(r.Context(), 7) })
		r.Get("/wait", func(http.ResponseWriter, *http.Request) { s.wait() })
		r.Get("/stream", func(w http.ResponseWriter, _ *http.Request) { stream(w, s) })
		return listen(t, r)
	},
	"echo": func(t *testing.T, limit wrapper, s *service) string {
		e := NewEcho(limit)
		e.Logger.SetOutput(t.Output())
		e.GET("/hello", func(c echo.Context) error { s.served.Add(1); return c.String(200, "hello") })
		e.GET("/panic", func(echo.Context) error { panic("boom") })
		e.GET("/report", func(c echo.Context) error { httplimit.ReportCost(c.Request().Context(), 7); return nil })
		e.GET("/wait", func(echo.Context) error { s.wait(); return nil })
		e.GET("/stream", func(c echo.Context) error { stream(c.Response(), s); return nil })
		return listen(t, e)
	},
	"gin": func(t *testing.T, limit wrapper, s *service) string {
		gin.SetMode(gin.ReleaseMode)
		gin.DefaultErrorWriter = io.Discard // of Recovery
		g := NewGin(limit)
		g.GET("/hello", func(c *gin.Context) { s.served.Add(1); c.String(200, "hello") })
		g.GET("/panic", func(*gin.Context) { panic("boom") })
		g.GET("/report", func(c *gin.Context) { httplimit.ReportCost(c.Request.Context(), 7) })
		g.GET("/wait", func(*gin.Context) { s.wait() })
		g.GET("/stream", func(c *gin.Context) { stream(c.Writer, s) })
		return listen(t, g)
	},
	"fiber": func(t *testing.T, limit wrapper, s *service) string {
		app := NewFiber(limit)
		app.Get("/hello", func(c fiber.Ctx) error { s.served.Add(1); return c.SendString("hello") })
		app.Get("/panic", func(fiber.Ctx) error { panic("boom") })
		app.Get("/report", func(c fiber.Ctx) error { httplimit.ReportCost(c.Context(), 7); return nil })
		app.Get("/wait", func(fiber.Ctx) error { s.wait(); return nil })
		app.Get("/stream", func(c fiber.Ctx) error {
			return c.SendStreamWriter(func(w *bufio.Writer) {
				_, _ = w.WriteString("first\n")
				_ = w.Flush()
				<-s.goOn
				_, _ = w.WriteString("second\n")
			})
		})
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		ended := make(chan error)
		go func() { ended <- app.Listener(l, fiber.ListenConfig{DisableStartupMessage: true}) }()
		t.Cleanup(func() {
			http.DefaultClient.CloseIdleConnections()
			require.NoError(t, app.Shutdown())
			require.NoError(t, <-ended)
		})
		return "http://" + l.Addr().String()
	},
}

func stream(w http.ResponseWriter, s *service) {
	_, _ = io.WriteString(w, "first\n")
	w.(http.Flusher).Flush()
	<-s.goOn
	_, _ = io.WriteString(w, "second\n")
}

func listen(t *testing.T, h http.Handler) string {
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}

// onEach runs a test on each framework, with a Redis whose clock stands still.
func onEach(t *testing.T, test func(t *testing.T, client *redis.Client, start func(wrapper, *service) string)) {
	for name, framework := range frameworks {
		t.Run(name, func(t *testing.T) {
			server := miniredis.RunT(t)
			server.SetTime(time.Unix(1_763_670_000, 0))
			client := redis.NewClient(&redis.Options{Addr: server.Addr()})
			t.Cleanup(func() { _ = client.Close() })
			test(t, client, func(limit wrapper, s *service) string {
				url := framework(t, limit, s)
				t.Cleanup(s.release)
				return url
			})
		})
	}
}

func get(t *testing.T, url string, header ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	response, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response, string(body)
}

const problem = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
	`"title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"violated-policies":["api"]}`

// TestAllowedAndDenied: the handler runs with the fields in its answer, or does not run.
func TestAllowedAndDenied(t *testing.T) {
	onEach(t, func(t *testing.T, client *redis.Client, start func(wrapper, *service) string) {
		bucket := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerMinute(1), 2, ratelimit.WithName("api")))
		s := newService()
		url := start(ratelimit.Must(httplimit.New(bucket, ratelimit.Must(httplimit.ClientIP(nil)))), s)
		for remaining := 1; remaining >= 0; remaining-- {
			response, body := get(t, url+"/hello")
			require.Equal(t, 200, response.StatusCode)
			require.Equal(t, "hello", body)
			require.True(t, strings.HasPrefix(response.Header.Get("Content-Type"), "text/plain"), response.Header)
			require.Equal(t, []string{`"api";q=2;w=120`}, response.Header.Values("RateLimit-Policy"))
			require.Equal(t, []string{fmt.Sprintf(`"api";r=%d;t=%d`, remaining, max(1, 60*remaining))}, response.Header.Values("RateLimit"))
			require.Empty(t, response.Header.Values("Retry-After"))
		}
		response, body := get(t, url+"/hello")
		require.Equal(t, 429, response.StatusCode)
		require.Equal(t, problem, body)
		require.Equal(t, []string{"60"}, response.Header.Values("Retry-After"))
		require.Equal(t, []string{`"api";q=2;w=120`}, response.Header.Values("RateLimit-Policy"))
		require.Equal(t, []string{`"api";r=0;t=60`}, response.Header.Values("RateLimit"))
		require.Equal(t, []string{"application/problem+json"}, response.Header.Values("Content-Type"))
		require.Equal(t, []string{"no-store"}, response.Header.Values("Cache-Control"))
		require.Equal(t, int32(2), s.served.Load(), "the handler ran for a denied request")
	})
}

// TestAPanicIsTheFrameworks: its recovery answers 500, the service goes on, and a permit in flight
// is given back.
func TestAPanicIsTheFrameworks(t *testing.T) {
	onEach(t, func(t *testing.T, client *redis.Client, start func(wrapper, *service) string) {
		running := ratelimit.Must(ratelimit.NewInFlight(client, 1, time.Hour))
		s := newService()
		url := start(ratelimit.Must(httplimit.NewInFlight(running, httplimit.Everyone())), s)
		for range 2 {
			response, _ := get(t, url+"/panic")
			require.Equal(t, 500, response.StatusCode)
		}
		response, body := get(t, url+"/hello")
		require.Equal(t, 200, response.StatusCode)
		require.Equal(t, "hello", body)
	})
}

// TestAPermitIsHeldWhileTheHandlerRuns, in each of the frameworks.
func TestAPermitIsHeldWhileTheHandlerRuns(t *testing.T) {
	onEach(t, func(t *testing.T, client *redis.Client, start func(wrapper, *service) string) {
		running := ratelimit.Must(ratelimit.NewInFlight(client, 1, time.Hour, ratelimit.WithName("api")))
		s := newService()
		url := start(ratelimit.Must(httplimit.NewInFlight(running, httplimit.Everyone())), s)
		ended := make(chan int)
		go func() {
			response, err := http.Get(url + "/wait")
			if err != nil {
				ended <- 0
				return
			}
			_ = response.Body.Close()
			ended <- response.StatusCode
		}()
		<-s.running
		response, body := get(t, url+"/hello")
		require.Equal(t, 429, response.StatusCode)
		require.Equal(t, problem, body)
		require.Equal(t, `"api";q=1;qu="concurrent-requests"`, response.Header.Get("RateLimit-Policy"))
		s.release()
		require.Equal(t, 200, <-ended)
		response, _ = get(t, url+"/hello")
		require.Equal(t, 200, response.StatusCode)
	})
}

// TestWhatAHandlerReportsIsSettled, in each of the frameworks.
func TestWhatAHandlerReportsIsSettled(t *testing.T) {
	onEach(t, func(t *testing.T, client *redis.Client, start func(wrapper, *service) string) {
		window := ratelimit.Must(ratelimit.NewFixedWindow(client, 100, time.Minute))
		url := start(ratelimit.Must(httplimit.New(window, httplimit.Everyone(), httplimit.WithReportedCost())), newService())
		get(t, url+"/report")
		r, err := window.Peek(t.Context(), "all")
		require.NoError(t, err)
		require.Equal(t, 93, r.Remaining)
		get(t, url+"/panic")
		r, err = window.Peek(t.Context(), "all")
		require.NoError(t, err)
		require.Equal(t, 92, r.Remaining, "the estimate stays")
	})
}

// TestAStreamReachesTheClientAsItIsWritten: no answer is held back, by a limit that settles either.
func TestAStreamReachesTheClientAsItIsWritten(t *testing.T) {
	onEach(t, func(t *testing.T, client *redis.Client, start func(wrapper, *service) string) {
		window := ratelimit.Must(ratelimit.NewFixedWindow(client, 100, time.Minute))
		settled := httplimit.WithSettle(func(_ *http.Request, o httplimit.Outcome) int { return o.Estimate })
		for name, limit := range map[string]wrapper{
			"plain":   ratelimit.Must(httplimit.New(window, httplimit.Everyone())),
			"settled": ratelimit.Must(httplimit.New(window, httplimit.Everyone(), settled)),
		} {
			t.Run(name, func(t *testing.T) {
				s := newService()
				url := start(limit, s)
				response, err := http.Get(url + "/stream")
				require.NoError(t, err)
				defer response.Body.Close()
				lines := bufio.NewReader(response.Body)
				first, err := lines.ReadString('\n')
				require.NoError(t, err)
				require.Equal(t, "first\n", first)
				s.release()
				second, err := lines.ReadString('\n')
				require.NoError(t, err)
				require.Equal(t, "second\n", second)
				_, err = lines.ReadByte()
				require.Equal(t, io.EOF, err)
			})
		}
	})
}

// TestTwoAPIKeysAreNoWayAroundTheLimit: frameworks differ in which of two lines they read.
func TestTwoAPIKeysAreNoWayAroundTheLimit(t *testing.T) {
	onEach(t, func(t *testing.T, client *redis.Client, start func(wrapper, *service) string) {
		window := ratelimit.Must(ratelimit.NewFixedWindow(client, 1, time.Minute))
		s := newService()
		url := start(ratelimit.Must(httplimit.New(window, ratelimit.Must(httplimit.APIKey("X-Api-Key")))), s)
		response, _ := get(t, url+"/hello", "X-Api-Key", "mine")
		require.Equal(t, 200, response.StatusCode)
		response, _ = get(t, url+"/hello", "X-Api-Key", "mine", "X-Api-Key", "another")
		require.Equal(t, 400, response.StatusCode)
		response, _ = get(t, url+"/hello", "X-Api-Key", "mine")
		require.Equal(t, 429, response.StatusCode)
		response, _ = get(t, url+"/hello")
		require.Equal(t, 400, response.StatusCode)
		require.Equal(t, int32(1), s.served.Load())
	})
}

// TestAnOutage is 503 on each of the frameworks.
func TestAnOutage(t *testing.T) {
	onEach(t, func(t *testing.T, client *redis.Client, start func(wrapper, *service) string) {
		window := ratelimit.Must(ratelimit.NewFixedWindow(client, 1, time.Minute))
		s := newService()
		url := start(ratelimit.Must(httplimit.New(window, httplimit.Everyone())), s)
		require.NoError(t, client.Close())
		response, body := get(t, url+"/hello")
		require.Equal(t, 503, response.StatusCode)
		require.Equal(t, `{"title":"Service Unavailable","status":503}`, body)
		require.Zero(t, s.served.Load())
	})
}

// TestAGinEngineInsideTheLimit: the limit around the whole sees what gin writes, and gin finds what
// it asks a ResponseWriter for.
func TestAGinEngineInsideTheLimit(t *testing.T) {
	server := miniredis.RunT(t)
	server.SetTime(time.Unix(1_763_670_000, 0))
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	window := ratelimit.Must(ratelimit.NewFixedWindow(client, 100, time.Minute))
	outcomes := make(chan httplimit.Outcome, 10)
	limit := ratelimit.Must(httplimit.New(window, httplimit.Everyone(), httplimit.WithSettle(func(_ *http.Request, o httplimit.Outcome) int {
		outcomes <- o
		return int(o.Bytes)
	})))
	gin.SetMode(gin.ReleaseMode)
	engine := gin.New()
	engine.GET("/stream", func(c *gin.Context) {
		lines := 3
		c.Stream(func(w io.Writer) bool { // asks for http.CloseNotifier
			_, _ = io.WriteString(w, "line\n")
			lines--
			return lines > 0
		})
	})
	engine.GET("/fails", func(c *gin.Context) { c.AbortWithStatusJSON(http.StatusTeapot, "no") })
	url := listen(t, limit(engine))
	_, body := get(t, url+"/stream")
	require.Equal(t, "line\nline\nline\n", body)
	require.Equal(t, httplimit.Outcome{Estimate: 1, Reported: 1, Status: 200, Bytes: 15}, <-outcomes)
	response, _ := get(t, url+"/fails")
	require.Equal(t, http.StatusTeapot, response.StatusCode)
	require.Equal(t, httplimit.Outcome{Estimate: 1, Reported: 1, Status: http.StatusTeapot, Bytes: 4}, <-outcomes)
}

// TestPatternOnARouteOfChi: a limit on one route knows its pattern.
func TestPatternOnARouteOfChi(t *testing.T) {
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	window := ratelimit.Must(ratelimit.NewFixedWindow(client, 100, time.Minute))
	var got string
	limit := ratelimit.Must(httplimit.New(window, func(r *http.Request) (string, error) {
		key, err := httplimit.Pattern()(r)
		got = key
		return key, err
	}))
	r := NewChi(func(next http.Handler) http.Handler { return next })
	r.With(limit).Get("/users/{id}", func(http.ResponseWriter, *http.Request) {})
	response, _ := get(t, listen(t, r)+"/users/7")
	require.Equal(t, 200, response.StatusCode)
	require.Equal(t, "route:/users/%7Bid%7D", got)
}

// TestKeysOfTheFrameworksContext: a limit by the user that a middleware of the framework has found, on each route on
// its own, with a plan of the same context.
func TestKeysOfTheFrameworksContext(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	for name, framework := range map[string]struct {
		user  func(context.Context) string
		serve func(limit wrapper) http.Handler
	}{
		"gin": {
			func(ctx context.Context) string { return GinContext(ctx).GetString("user") },
			func(limit wrapper) http.Handler {
				g := gin.New()
				g.Use(func(c *gin.Context) { c.Set("user", c.GetHeader("X-User")) }, Gin(limit))
				g.GET("/users/:id", func(c *gin.Context) { c.String(200, c.Param("id")) })
				g.POST("/users/:id", func(c *gin.Context) { c.String(200, c.Param("id")) })
				return g
			},
		},
		"echo": {
			func(ctx context.Context) string { user, _ := EchoContext(ctx).Get("user").(string); return user },
			func(limit wrapper) http.Handler {
				e := echo.New()
				e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
					return func(c echo.Context) error { c.Set("user", c.Request().Header.Get("X-User")); return next(c) }
				}, Echo(limit))
				e.GET("/users/:id", func(c echo.Context) error { return c.String(200, c.Param("id")) })
				e.POST("/users/:id", func(c echo.Context) error { return c.String(200, c.Param("id")) })
				return e
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			client := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
			t.Cleanup(func() { _ = client.Close() })
			limited := ratelimit.Must(ratelimit.NewFixedWindow(client, 1, time.Hour))
			var keys []string
			plans := ratelimit.Must(ratelimit.NewChoice(func(ctx context.Context, key string) (ratelimit.Limiter, error) {
				keys = append(keys, key)
				if framework.user(ctx) == "root" {
					return ratelimit.AllowAll(), nil
				}
				return limited, nil
			}))
			key := ratelimit.Must(httplimit.Join(ratelimit.Must(httplimit.User(framework.user)), httplimit.Pattern()))
			h := framework.serve(ratelimit.Must(httplimit.New(plans, key)))
			ask := func(method, path, user string) (int, string) {
				r := httptest.NewRequest(method, path, nil)
				r.Header.Set("X-User", user)
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				return w.Code, w.Body.String()
			}
			for _, c := range []struct {
				method, path, user string
				status             int
				key                string
			}{
				{"GET", "/users/7", "ann", 200, "user:ann|route:GET /users/:id"},
				{"GET", "/users/8", "ann", 429, "user:ann|route:GET /users/:id"},
				{"POST", "/users/7", "ann", 200, "user:ann|route:POST /users/:id"},
				{"GET", "/users/7", "bob", 200, "user:bob|route:GET /users/:id"},
				{"GET", "/users/7", "root", 200, "user:root|route:GET /users/:id"},
				{"GET", "/users/7", "root", 200, "user:root|route:GET /users/:id"},
				{"GET", "/a", "ann", 404, "user:ann|route:none"},
				{"GET", "/b", "ann", 429, "user:ann|route:none"},
			} {
				status, body := ask(c.method, c.path, c.user)
				require.Equal(t, c.status, status, c)
				require.Equal(t, c.key, keys[len(keys)-1])
				if status == 200 {
					require.Equal(t, "7", body)
				}
			}
			status, _ := ask("GET", "/users/7", "")
			require.Equal(t, 400, status, "nobody")
		})
	}
	require.Nil(t, GinContext(t.Context()))
	require.Nil(t, EchoContext(t.Context()))
}

// TestTheKeyOfTheGuide is what docs/http.md shows.
func TestTheKeyOfTheGuide(t *testing.T) {
	user := ratelimit.Must(httplimit.User(func(ctx context.Context) string { return GinContext(ctx).GetString("user") }))
	key := ratelimit.Must(httplimit.Join(user, httplimit.Pattern())) // user:ann|route:GET /users/:id
	g := gin.New()
	g.Use(func(c *gin.Context) { c.Set("user", "ann") }, Gin(func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, ratelimit.Must(key(r))) })
	}))
	g.GET("/users/:id", func(*gin.Context) {})
	w := httptest.NewRecorder()
	g.ServeHTTP(w, httptest.NewRequest("GET", "/users/7", nil))
	require.Equal(t, "user:ann|route:GET /users/:id", w.Body.String())
}

// TestTheContextOutsideOfTheLimitGoesOn: that of a handler ends with its permit, but not that of the
// middlewares outside, which may still have something to store.
func TestTheContextOutsideOfTheLimitGoesOn(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { _ = client.Close() })
	limit := ratelimit.Must(httplimit.NewInFlight(ratelimit.Must(ratelimit.NewInFlight(client, 1, time.Hour)), httplimit.Everyone()))
	var inside, outside context.Context

	gin.SetMode(gin.ReleaseMode)
	g := gin.New()
	g.Use(func(c *gin.Context) { c.Next(); outside = c.Request.Context() }, Gin(limit))
	g.GET("/", func(c *gin.Context) { inside = c.Request.Context() })
	g.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	require.ErrorIs(t, inside.Err(), context.Canceled)
	require.NoError(t, outside.Err())

	e := echo.New()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error { err := next(c); outside = c.Request().Context(); return err }
	}, Echo(limit))
	e.GET("/", func(c echo.Context) error { inside = c.Request().Context(); return nil })
	e.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	require.ErrorIs(t, inside.Err(), context.Canceled)
	require.NoError(t, outside.Err())

	app := fiber.New()
	app.Use(func(c fiber.Ctx) error {
		err := c.Next()
		outside = c.Context()
		require.NoError(t, outside.Err())
		return err
	}, Fiber(limit))
	app.Get("/", func(c fiber.Ctx) error { inside = c.Context(); return nil })
	answer, err := app.Test(httptest.NewRequest("GET", "/", nil))
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, 200, answer.StatusCode)
	require.ErrorIs(t, inside.Err(), context.Canceled)
}

// TestADenialHandlerThatOnlyWrites, or does nothing at all, answers with the fields and Retry-After,
// as it does on net/http.
func TestADenialHandlerThatOnlyWrites(t *testing.T) {
	onEach(t, func(t *testing.T, client *redis.Client, start func(wrapper, *service) string) {
		for name, c := range map[string]struct {
			denied func(http.ResponseWriter, *http.Request, httplimit.Decision)
			status int
			body   string
		}{
			"writes": {func(w http.ResponseWriter, _ *http.Request, _ httplimit.Decision) {
				_, _ = io.WriteString(w, "slow down")
			}, 200, "slow down"},
			"nothing": {func(http.ResponseWriter, *http.Request, httplimit.Decision) {}, 200, ""},
			"writes twice": {func(w http.ResponseWriter, _ *http.Request, _ httplimit.Decision) {
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = io.WriteString(w, "slow ")
				w.Header().Set("X-Late", "1")
				_, _ = io.WriteString(w, "down")
			}, 503, "slow down"},
		} {
			t.Run(name, func(t *testing.T) {
				window := ratelimit.Must(ratelimit.NewFixedWindow(client, 1, time.Minute, ratelimit.WithName(strings.ReplaceAll(name, " ", "-"))))
				s := newService()
				url := start(ratelimit.Must(httplimit.New(window, httplimit.Everyone(), httplimit.WithDenialHandler(c.denied), httplimit.WithPolicy("api"))), s)
				response, _ := get(t, url+"/hello")
				require.Equal(t, 200, response.StatusCode)
				require.Equal(t, int32(1), s.served.Load())
				response, body := get(t, url+"/hello")
				require.Equal(t, c.status, response.StatusCode)
				require.Equal(t, c.body, body)
				require.Equal(t, []string{"60"}, response.Header.Values("Retry-After"))
				require.Equal(t, []string{`"api";q=1;w=60`}, response.Header.Values("RateLimit-Policy"))
				require.Equal(t, []string{`"api";r=0;t=60`}, response.Header.Values("RateLimit"))
				require.Empty(t, response.Header.Values("X-Late"))
				require.Equal(t, int32(1), s.served.Load())
			})
		}
	})
}

// TestADenialBehindAnotherMiddlewaresHeader: what is set outside for the handler's answer is not in a denial, and stays in
// the handler's.
func TestADenialBehindAnotherMiddlewaresHeader(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	outer := [][2]string{
		{"Cache-Control", "public, max-age=60"}, {"Cdn-Cache-Control", "max-age=60"}, {"Surrogate-Control", "max-age=60"},
		{"Etag", `"1"`}, {"Last-Modified", "Mon, 24 Nov 2025 09:00:00 GMT"}, {"X-Request-Id", "7"}, {"Vary", "Origin"},
	}
	set := func(to func(name, value string)) {
		for _, field := range outer {
			to(field[0], field[1])
		}
	}
	for name, start := range map[string]func(limit wrapper) func(*http.Request) *http.Response{
		"chi": func(limit wrapper) func(*http.Request) *http.Response {
			r := NewChi(func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { set(w.Header().Set); limit(next).ServeHTTP(w, r) })
			})
			r.Get("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
			return recorded(r)
		},
		"gin": func(limit wrapper) func(*http.Request) *http.Response {
			g := gin.New()
			g.Use(func(c *gin.Context) { set(c.Header) }, Gin(limit))
			g.GET("/", func(c *gin.Context) { c.String(200, "hello") })
			return recorded(g)
		},
		"echo": func(limit wrapper) func(*http.Request) *http.Response {
			e := echo.New()
			e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
				return func(c echo.Context) error { set(c.Response().Header().Set); return next(c) }
			}, Echo(limit))
			e.GET("/", func(c echo.Context) error { return c.String(200, "hello") })
			return recorded(e)
		},
		"fiber": func(limit wrapper) func(*http.Request) *http.Response {
			app := fiber.New()
			app.Use(func(c fiber.Ctx) error {
				set(c.Set)
				c.Cookie(&fiber.Cookie{Name: "a", Value: "1"})
				c.Cookie(&fiber.Cookie{Name: "b", Value: "2"})
				return c.Next()
			}, Fiber(limit))
			app.Get("/", func(c fiber.Ctx) error { return c.SendString("hello") })
			return func(r *http.Request) *http.Response {
				answer, err := app.Test(r)
				require.NoError(t, err)
				require.NoError(t, answer.Body.Close())
				require.Len(t, answer.Header.Values("Set-Cookie"), 2)
				return answer
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			client := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
			t.Cleanup(func() { _ = client.Close() })
			window := ratelimit.Must(ratelimit.NewFixedWindow(client, 1, time.Hour, ratelimit.WithName("inner")))
			hour := ratelimit.Must(ratelimit.NewFixedWindow(client, 100, time.Hour, ratelimit.WithName("outer")))
			limited := ratelimit.Must(httplimit.New(window, httplimit.Everyone(), httplimit.WithFields(httplimit.Draft11(), httplimit.XRateLimit())))
			outside := ratelimit.Must(httplimit.New(hour, httplimit.Everyone(), httplimit.WithFields(httplimit.Draft11(), httplimit.XRateLimit())))
			do := start(func(next http.Handler) http.Handler { return outside(limited(next)) })
			answer := do(httptest.NewRequest("GET", "/", nil))
			require.Equal(t, 200, answer.StatusCode)
			for _, field := range outer {
				require.Equal(t, []string{field[1]}, answer.Header.Values(field[0]))
			}
			answer = do(httptest.NewRequest("GET", "/", nil))
			require.Equal(t, 429, answer.StatusCode)
			require.Equal(t, []string{"no-store"}, answer.Header.Values("Cache-Control"))
			for _, gone := range []string{"Cdn-Cache-Control", "Surrogate-Control", "Etag", "Last-Modified"} {
				require.Empty(t, answer.Header.Values(gone), gone)
			}
			require.Equal(t, []string{"7"}, answer.Header.Values("X-Request-Id"))
			require.Equal(t, []string{"Origin"}, answer.Header.Values("Vary"))
			require.Equal(t, []string{"1"}, answer.Header.Values("X-RateLimit-Limit"))
			require.Len(t, answer.Header.Values("RateLimit"), 2)
			require.Equal(t, []string{"application/problem+json"}, answer.Header.Values("Content-Type"))
		})
	}
}

func recorded(h http.Handler) func(*http.Request) *http.Response {
	return func(r *http.Request) *http.Response {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Result()
	}
}

// TestPreflightsAreLimited: no client passes the limit by dressing its request as a CORS preflight.
func TestPreflightsAreLimited(t *testing.T) {
	onEach(t, func(t *testing.T, client *redis.Client, start func(wrapper, *service) string) {
		window := ratelimit.Must(ratelimit.NewFixedWindow(client, 1, time.Minute, ratelimit.WithName("api")))
		url := start(ratelimit.Must(httplimit.New(window, httplimit.Everyone())), newService())
		get(t, url+"/hello")
		r, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, url+"/hello", nil)
		require.NoError(t, err)
		r.Header.Set("Origin", "https://example.com")
		r.Header.Set("Access-Control-Request-Method", "POST")
		response, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.Equal(t, 429, response.StatusCode)
		require.Equal(t, problem, string(body))
	})
}
