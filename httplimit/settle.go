package httplimit

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/tryacquire/ratelimit"
)

// WithSettle settles what a request has cost when its handler has returned. The permits of
// [WithCost], 1 if it is not given, are an estimate, which decides whether the request is allowed.
// settle returns the true cost, 0 or more. If the estimate was higher, the rest is given back; if
// it was lower, the difference is charged, whatever is left: later requests are then denied until
// it is repaid. See ratelimit.Settler, and ratelimit.Ticket for what is given back when. It is
// about one limit.
//
// settle is called for each request that was allowed and has an estimate, even if the handler
// panicked or hijacked the connection: [Outcome] says so. If settle itself panics, the estimate
// stays taken. The settlement is one round trip, before the last bytes of the answer are sent; it
// goes on if the client has gone away, and ends after a second at most. Its error goes to
// [WithLateErrorHandler].
//
// The handler gets a ResponseWriter that counts. It has Unwrap, for http.ResponseController, and
// each of Flush, Hijack, ReadFrom and Push that the server's has. Where the handler itself reports
// the cost, [WithReportedCost] wraps nothing.
//
// The limiter is one that decides on Redis, or a DenyCache around one.
func WithSettle(settle func(*http.Request, Outcome) int) Option {
	return aboutLimit("WithSettle", func(l *limit) error {
		switch {
		case settle == nil:
			return invalidConfig("WithSettle: the function is nil")
		case l.settle != nil:
			return errTwoSettle
		}
		l.settle, l.watched = settle, true
		return nil
	})
}

// WithReportedCost settles a request as [WithSettle] does, by what the handler has reported with
// [ReportCost]. If it has reported nothing, even because it panicked, the estimate stays. The
// ResponseWriter is passed on as it is. It is about one limit.
func WithReportedCost() Option {
	return aboutLimit("WithReportedCost", func(l *limit) error {
		if l.settle != nil {
			return errTwoSettle
		}
		l.settle = func(_ *http.Request, o Outcome) int { return o.Reported }
		return nil
	})
}

// An Outcome is what a handler has done with a request, for [WithSettle].
type Outcome struct {
	Estimate int   // the permits that were taken before
	Reported int   // what the handler has reported with ReportCost; Estimate if it has not
	Status   int   // of the answer, 200 if the handler has set none; 0 if it hijacked or panicked before it set one
	Bytes    int64 // of the body that the handler has written; 0 for HEAD, whose body is not sent
	Hijacked bool  // the handler has taken over the connection: Status and Bytes are of before that
	Panicked bool  // the handler has panicked, which goes on after the settlement
}

// ReportCost is for handlers: it reports what the request has cost so far, 0 or more. The last
// report counts. ctx is that of the request. It reports whether there is a limit that takes note
// ([WithReportedCost], [WithSettle]): handlers may call it without a limit around them. All limits
// around the handler take note; [ReportCostOf] is for one of several.
func ReportCost(ctx context.Context, n int) bool { return report(ctx, "", n) }

// ReportCostOf is [ReportCost] for the limit of that policy only: where requests are limited by
// input and by output, for example.
func ReportCostOf(ctx context.Context, policy string, n int) bool {
	return policy != "" && report(ctx, policy, n)
}

func report(ctx context.Context, policy string, n int) (noted bool) {
	if n < 0 {
		return false
	}
	k, _ := ctx.Value(meterKey{}).(*meter)
	for ; k != nil; k = k.outer {
		k.mu.Lock()
		for i, e := range k.estimates {
			if policy == "" || e.limit.decision.Policy == policy {
				k.reported[i], noted = n, true
			}
		}
		k.mu.Unlock()
	}
	return noted
}

type meterKey struct{}

// A meter has what a handler reports.
type meter struct {
	estimates []estimate
	outer     *meter // of a limit outside of this one

	mu       sync.Mutex // guards reported: a handler may report from several goroutines
	reported []int      // of each estimate, -1 if nothing was
}

// An estimate is the permits that one limit has taken for a request.
type estimate struct {
	limit  *limit
	ticket *ratelimit.Ticket
	n      int
}

func newMeter(ctx context.Context, estimates []estimate) *meter {
	k := &meter{estimates: estimates, reported: make([]int, len(estimates))}
	k.outer, _ = ctx.Value(meterKey{}).(*meter)
	for i := range k.reported {
		k.reported[i] = -1
	}
	return k
}

func (k *meter) of(i int) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.reported[i] < 0 {
		return k.estimates[i].n
	}
	return k.reported[i]
}

const settleTime = time.Second

// run serves an allowed request with ctx, and settles the estimates. ctx is another one than the
// request's if permits in flight are held.
func (m *middleware) run(ctx context.Context, w http.ResponseWriter, r *http.Request, next http.Handler, estimates []estimate) {
	if len(estimates) == 0 {
		if m.holds() {
			serveWith(ctx, w, r, next)
		} else {
			next.ServeHTTP(w, r)
		}
		return
	}
	k := newMeter(ctx, estimates)
	var seen *watcher
	for _, e := range estimates {
		if e.limit.watched && seen == nil {
			w, seen = watch(w, r)
		}
	}
	returned := false
	defer func() { m.settleAll(r, seen, estimates, k, !returned) }()
	serveWith(context.WithValue(ctx, meterKey{}, k), w, r, next)
	returned = true
}

// settleAll settles what the request has cost each limit.
func (m *middleware) settleAll(r *http.Request, seen *watcher, estimates []estimate, k *meter, panicked bool) {
	m.settleEach(r, estimates, func(i int, e estimate) int {
		o := Outcome{Estimate: e.n, Reported: k.of(i), Panicked: panicked}
		if seen != nil {
			o.Status, o.Bytes, o.Hijacked = seen.outcome(panicked)
		}
		return e.limit.settle(r, o)
	})
}

// giveBack settles a request that was not served.
func (m *middleware) giveBack(r *http.Request, estimates []estimate) {
	m.settleEach(r, estimates, func(int, estimate) int { return 0 })
}

// settleEach settles the estimates in their order. A panic of the service's functions goes on when
// the others are settled too.
func (m *middleware) settleEach(r *http.Request, estimates []estimate, cost func(int, estimate) int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), settleTime)
	defer cancel()
	for i, e := range slices.Backward(estimates) {
		defer func() {
			if err := e.ticket.Settle(ctx, cost(i, e)); err != nil {
				m.late(r, err)
			}
		}()
	}
}

func (m *middleware) late(r *http.Request, err error) {
	if m.failedLate != nil {
		m.failedLate(r, err)
	}
}

// serveWith serves r with another context, in a copy. What the server and the middlewares outside
// read from a request afterwards is handed back: the server removes the files of a form, and a
// log has the pattern.
func serveWith(ctx context.Context, w http.ResponseWriter, r *http.Request, next http.Handler) {
	inner := r.WithContext(ctx)
	defer func() {
		r.Pattern = inner.Pattern
		if r.MultipartForm == nil {
			r.MultipartForm = inner.MultipartForm
		}
	}()
	next.ServeHTTP(w, inner)
}
