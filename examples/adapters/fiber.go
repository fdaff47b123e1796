package adapters

import (
	"net/http"
	"slices"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
	fiberrecover "github.com/gofiber/fiber/v3/middleware/recover"
)

// Fiber returns a handler for Fiber that applies a limit. Fiber is built on fasthttp, which has
// neither the requests nor the ResponseWriter of net/http, so each request is converted for the
// limit, which costs some microseconds.
//
// Fiber's own adaptor.HTTPMiddleware is enough for a plain limit, but not for every limit. It runs
// the handlers after the middleware has returned: then no permit in flight is held, and no cost is
// settled. And if a header has several lines, the middleware sees only the last one, while Fiber's
// handlers read the first one, so that a client with two API keys could choose the one that is
// limited.
//
// Some things do not work because fasthttp does not have them: a client that goes away is not
// noticed, not even while it waits (httplimit.WithMaxWait); a body is read before the limit is
// asked; a body stream is written after the handler has returned; and httplimit.WithSettle does not
// see the status and the bytes. Instead, use httplimit.WithReportedCost with
//
//	httplimit.ReportCost(c.Context(), len(c.Response().Body()))
func Fiber(limit func(http.Handler) http.Handler) fiber.Handler {
	return func(c fiber.Ctx) error {
		r, err := adaptor.ConvertRequest(c, true)
		if err != nil {
			return err
		}
		r.Header = http.Header{}
		for name, value := range c.Request().Header.All() {
			r.Header.Add(string(name), string(value)) // copied: fasthttp uses the request's memory again
		}
		answer := newFiberWriter(c)
		limit(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			answer.sendHeader()
			defer c.SetContext(c.Context()) // the limit's context ends with the handler
			c.SetContext(r.Context())
			err = c.Next()
		})).ServeHTTP(answer, r.WithContext(c.Context()))
		answer.sendHeader()
		return err
	}
}

// A fiberWriter gets the answer of the limit, if it denies a request.
type fiberWriter struct {
	c      fiber.Ctx
	header http.Header // begins as Fiber's, as a limit removes from a denial what was set for the handler's answer
	before http.Header
	sent   bool // the header: what is set later has no effect, as in net/http
}

func newFiberWriter(c fiber.Ctx) *fiberWriter {
	w := &fiberWriter{c: c, header: http.Header{}}
	for name, value := range c.Response().Header.All() {
		w.header.Add(string(name), string(value))
	}
	w.before = w.header.Clone()
	return w
}

func (w *fiberWriter) Header() http.Header { return w.header }

func (w *fiberWriter) WriteHeader(status int) {
	if status < 200 || w.sent { // fasthttp sends no 1xx
		return
	}
	w.sendHeader()
	w.c.Status(status)
}

func (w *fiberWriter) Write(b []byte) (int, error) {
	w.sendHeader()
	w.c.Response().AppendBody(b)
	return len(b), nil
}

func (w *fiberWriter) sendHeader() {
	if w.sent {
		return
	}
	w.sent = true
	for name := range w.before {
		if _, kept := w.header[name]; !kept {
			w.c.Response().Header.Del(name)
		}
	}
	for name, values := range w.header {
		if slices.Equal(values, w.before[name]) {
			continue
		}
		w.c.Response().Header.Del(name)
		for _, value := range values {
			w.c.Response().Header.Add(name, value)
		}
	}
}

// NewFiber returns an app with a limit for all its routes.
func NewFiber(limit func(http.Handler) http.Handler) *fiber.App {
	app := fiber.New()
	app.Use(fiberrecover.New())
	app.Use(Fiber(limit))
	return app
}
