package httplimit

import (
	"context"
	"net/http"
	"sync"

	"github.com/tryacquire/ratelimit"
)

// WithSettle settles what a request has cost when its handler has returned. The permits of
// [WithCost], 1 if it is not given, are an estimate, which decides whether the request is allowed.
// settle returns the true cost, 0 or more. If the estimate was higher, the rest is given back; if
// it was lower, the difference is charged, even if fewer permits are left: later requests are then
// denied until it is repaid. See ratelimit.Settler, and ratelimit.Ticket for what is given back
// when. It is about one limit.
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
// To count only failures, such as wrong passwords, return 0 for a success: its permit is given back. Each
// request has taken it before the handler runs, so that attempts at the same time are counted too.
//
// The limiter is any ratelimit.Settler: those on Redis, LocalTokenBucket, AllowAll and DenyAll, and the
// policies around one of them. [New] refuses any other.
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
// report counts. ctx is that of the request. It returns whether there is a limit that uses the
// report ([WithReportedCost], [WithSettle]): handlers may call it without a limit around them. All
// limits around the handler get the report; use [ReportCostOf] for one of several.
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

// run serves an allowed request, and settles its estimates. answer has their tickets, in the order of estimates, and the
// holds of permits in flight. begin is called before the handler.
func (m *middleware) run(w http.ResponseWriter, r *http.Request, next http.Handler, answer ratelimit.AllResult, estimates []estimate, begin func()) {
	k := newMeter(r.Context(), estimates)
	var seen *watcher
	for _, e := range estimates {
		if e.limit.watched && seen == nil {
			w, seen = watch(w, r)
		}
	}
	began, returned, settled := false, false, 0
	err := answer.Do(r.Context(), func(ctx context.Context) error {
		began = true
		begin()
		switch {
		case len(estimates) > 0:
			serveWith(context.WithValue(ctx, meterKey{}, k), w, r, next)
		case m.holds():
			serveWith(ctx, w, r, next)
		default:
			next.ServeHTTP(w, r)
		}
		returned = true
		return nil
	}, func(ratelimit.PartResult) int {
		i := settled // once for each estimate, in their order
		settled++
		o := Outcome{Estimate: estimates[i].n, Reported: k.of(i), Panicked: !returned}
		if seen != nil {
			o.Status, o.Bytes, o.Hijacked = seen.outcome(!returned)
		}
		return estimates[i].limit.settle(r, o)
	})
	switch {
	case err == nil:
	case began:
		m.late(r, err)
	default: // the lease was over before the handler could begin
		m.fail(w, r, err, next)
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
