package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/tryacquire/ratelimit/internal/page"
)

//go:embed assets/index.html
var indexHTML []byte

//go:embed assets/playground.css
var styleCSS string

//go:embed assets/playground.js
var scriptJS string

const (
	refresh  = 250 * time.Millisecond
	maxBurst = 100
	maxPause = 3600 // seconds
)

// handler is the page, what it may do, and what it watches.
func handler(w *world) http.Handler {
	mux := http.NewServeMux()
	for path, file := range map[string]struct {
		kind string
		text []byte
	}{
		"/{$}":            {"text/html; charset=utf-8", indexHTML},
		"/playground.css": {"text/css; charset=utf-8", []byte(page.CSS() + styleCSS)},
		"/playground.js":  {"text/javascript; charset=utf-8", []byte(page.JS() + scriptJS)},
	} {
		mux.HandleFunc("GET "+path, func(out http.ResponseWriter, _ *http.Request) {
			out.Header().Set("Content-Type", file.kind)
			_, _ = out.Write(file.text)
		})
	}
	mux.HandleFunc("POST /settings", func(out http.ResponseWriter, r *http.Request) {
		var s settings
		answer(out, read(r, &s), func() error { return w.set(s) })
	})
	mux.HandleFunc("POST /burst", func(out http.ResponseWriter, r *http.Request) {
		var burst struct{ N int }
		answer(out, read(r, &burst), func() error {
			if burst.N < 1 || burst.N > maxBurst {
				return fmt.Errorf("a burst of %d; it can be 1 to %d", burst.N, maxBurst)
			}
			w.burst(burst.N)
			return nil
		})
	})
	mux.HandleFunc("POST /pause", func(out http.ResponseWriter, r *http.Request) {
		var pause struct{ Seconds int }
		answer(out, read(r, &pause), func() error {
			if pause.Seconds < 1 || pause.Seconds > maxPause {
				return fmt.Errorf("a pause of %d seconds; it can be 1 to %d", pause.Seconds, maxPause)
			}
			return w.pause(r.Context(), time.Duration(pause.Seconds)*time.Second)
		})
	})
	mux.HandleFunc("POST /lift", func(out http.ResponseWriter, r *http.Request) {
		answer(out, nil, func() error { return w.lift(r.Context()) })
	})
	mux.HandleFunc("POST /reset", func(out http.ResponseWriter, r *http.Request) {
		answer(out, nil, func() error { w.reset(r.Context()); return nil })
	})
	mux.HandleFunc("GET /events", w.events)
	return guarded(http.NewCrossOriginProtection().Handler(mux))
}

// guarded serves requests for this machine or for an address, and no others: the page of a stranger
// whose name leads here (DNS rebinding) cannot use it. The page loads nothing from elsewhere.
func guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		if _, err := netip.ParseAddr(host); err != nil && host != "localhost" {
			http.Error(out, "use localhost or an address, not a name", http.StatusForbidden)
			return
		}
		out.Header().Set("Content-Security-Policy", "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src data:; frame-ancestors 'none'")
		out.Header().Set("X-Content-Type-Options", "nosniff")
		next.ServeHTTP(out, r)
	})
}

func read(r *http.Request, into any) error {
	decoder := json.NewDecoder(http.MaxBytesReader(nil, r.Body, 4096))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}

func answer(out http.ResponseWriter, err error, do func() error) {
	if err == nil {
		err = do()
	}
	if err != nil {
		http.Error(out, err.Error(), http.StatusBadRequest)
		return
	}
	out.WriteHeader(http.StatusNoContent)
}

// A view is what the page shows.
type view struct {
	Where    string   `json:"where"`
	Settings settings `json:"settings"`
	Now      int64    `json:"now"`
	Seconds  []second `json:"seconds"`
	Outages  []outage `json:"outages"`
	Totals   counts   `json:"totals"`
	Callers  []caller `json:"callers"`
	Waiting  int      `json:"waiting"`
	Breaker  string   `json:"breaker"` // empty without a policy
	Lines    []line   `json:"lines"`
	States   []state  `json:"states"`
	Unread   string   `json:"unread"` // why the states could not be read
	Format   string   `json:"format"`
}

func (w *world) view(ctx context.Context) view {
	states, err := w.states(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	v := view{
		Where: w.where, Settings: w.settings, Now: time.Now().Unix(), Seconds: append([]second{}, w.seconds...),
		Outages: append([]outage{}, w.outages...), Totals: w.totals,
		Callers: w.callers(time.Now().Unix()), Waiting: w.waiting, Lines: append([]line{}, w.lines...), States: states, Format: formats[w.settings.Algorithm].words,
	}
	if err != nil {
		v.Unread = err.Error()
	}
	if w.built.breaker != nil {
		v.Breaker = w.built.breaker.State().String()
	}
	return v
}

// events sends a view four times a second, as server-sent events.
func (w *world) events(out http.ResponseWriter, r *http.Request) {
	out.Header().Set("Content-Type", "text/event-stream")
	out.Header().Set("Cache-Control", "no-store")
	ticker := time.NewTicker(refresh)
	defer ticker.Stop()
	for {
		text, err := json.Marshal(w.view(r.Context()))
		if err != nil {
			return
		}
		if _, err := fmt.Fprintf(out, "data: %s\n\n", text); err != nil {
			return
		}
		if http.NewResponseController(out).Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-ticker.C:
		}
	}
}
