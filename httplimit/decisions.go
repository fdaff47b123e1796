package httplimit

import (
	"context"
	"net/http"
	"slices"
	"sync"
)

// Decisions keeps what the limits inside of it decide about each request, for [DecisionsOf]: in their handlers, and in
// an access log, which goes between Decisions and the limits and reads them when the request is done.
//
//	http.Handle("/", httplimit.Decisions(accessLog(limit(handler))))
//
// It costs a copy of the request with another context.
func Decisions(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		serveWith(context.WithValue(r.Context(), decisionsKey{}, new(decisions)), w, r, next)
	})
}

// DecisionsOf returns the decisions about the request of this context so far: one for each limit that it has passed or that
// has denied it, the outermost first. It returns nil without [Decisions] around the limits, and for a request that no limit has
// decided, because it was skipped, cost nothing, or there was an error.
func DecisionsOf(ctx context.Context) []Decision {
	kept, _ := ctx.Value(decisionsKey{}).(*decisions)
	if kept == nil {
		return nil
	}
	kept.mu.Lock()
	defer kept.mu.Unlock()
	return slices.Clone(kept.all)
}

type decisionsKey struct{}

type decisions struct {
	mu  sync.Mutex // guards all: a handler of http.TimeoutHandler may still run while the log is written
	all []Decision
}

// keep adds a decision to those of the request, if anybody asks for them.
func keep(ctx context.Context, d Decision) {
	if kept, _ := ctx.Value(decisionsKey{}).(*decisions); kept != nil {
		kept.mu.Lock()
		kept.all = append(kept.all, d)
		kept.mu.Unlock()
	}
}
