package httplimit

import (
	"net/http"
	"time"

	"github.com/tryacquire/ratelimit/internal/integration"
)

// An Option is what the functions With… of this package return, and what [Limit] and [InFlight]
// return for [NewAll]. Some options are about one limit: [New], [Limit] and [InFlight] accept
// them. The others are about the whole middleware: New and [NewAll] accept them. An option in the
// wrong place is an error that says where it belongs.
type Option struct {
	name  string
	limit func(*limit) error      // about one limit
	whole func(*middleware) error // about the whole
	many  bool                    // may be given several times
}

// apply sets the options: what is about one limit in l, what is about the whole in m. Where one
// of the two is nil, its options are refused.
func apply(what string, opts []Option, l *limit, m *middleware) error {
	given := map[string]bool{}
	for i, o := range opts {
		var err error
		switch {
		case o.limit == nil && o.whole == nil:
			return invalidConfig("%s: option %d is empty", what, i+1)
		case o.many && (l != nil || m == nil):
			return invalidConfig("%s: %s is one of several limits; give it to NewAll", what, o.name)
		case given[o.name] && !o.many:
			return invalidConfig("%s is given twice", o.name)
		case o.limit != nil && l == nil:
			return invalidConfig("%s: %s is about one limit; give it to Limit or InFlight", what, o.name)
		case o.whole != nil && m == nil:
			return invalidConfig("%s: %s is about all limits; give it to NewAll", what, o.name)
		case o.limit != nil:
			err = o.limit(l)
		default:
			err = o.whole(m)
		}
		if err != nil {
			return err
		}
		given[o.name] = true
	}
	return nil
}

// aboutLimit is an option about one limit.
func aboutLimit(name string, set func(*limit) error) Option { return Option{name: name, limit: set} }

// aboutWhole is an option about the whole.
func aboutWhole(name string, set func(*middleware) error) Option {
	return Option{name: name, whole: set}
}

// WithPolicy names the limit for clients, in the fields and in the body of a denial. Without it,
// that is the limiter's own name (see ratelimit.WithName), and "default" for a limiter that has
// none, as a decorator. name is 1 to 128 printable ASCII characters. It is about one limit.
func WithPolicy(name string) Option {
	return aboutLimit("WithPolicy", func(l *limit) error {
		if err := checkPrintable("WithPolicy", name); err != nil {
			return err
		}
		l.decision.Policy = name
		return nil
	})
}

// WithUnit says what the limit counts, where that is not requests: "content-bytes", for example,
// which the draft defines, or a name with the service's own prefix, such as "acme-tokens". Clients
// see it as the parameter qu of RateLimit-Policy. unit is 1 to 128 printable ASCII characters. It is
// about one limit.
func WithUnit(unit string) Option {
	return aboutLimit("WithUnit", func(l *limit) error {
		if err := checkPrintable("WithUnit", unit); err != nil {
			return err
		}
		l.decision.Unit = unit
		return nil
	})
}

// checkPrintable refuses what a String of RFC 9651 cannot hold.
func checkPrintable(what, name string) error {
	if name == "" || len(name) > integration.MostPolicyName {
		return invalidConfig("%s: a name of %d bytes; give 1 to %d", what, len(name), integration.MostPolicyName)
	}
	if !integration.IsPrintable(name) {
		return invalidConfig("%s: %q holds a character that is not printable ASCII, which the fields cannot hold", what, name)
	}
	return nil
}

// WithBucket says that the limiter's answers are those of a token or leaky bucket, for
// [Decision.EffectiveWindow]. A bucket inside a decorator (DenyCache, Fallback, Choice) needs it;
// one that is given to New itself is known as such. Without it, clients that spread their requests
// evenly are slower than they have to be, and never denied. It is about one limit.
func WithBucket() Option {
	return aboutLimit("WithBucket", func(l *limit) error {
		l.decision.Bucket = true
		return nil
	})
}

// WithServiceUnavailable is for a limit that protects the service, where the client has done
// nothing wrong: a denial is then 503 with the problem type temporary-reduced-capacity, and not
// 429. Where several limits deny, the answer is 503 if all of them have this option. It is about
// one limit.
func WithServiceUnavailable() Option {
	return aboutLimit("WithServiceUnavailable", func(l *limit) error {
		l.decision.Unavailable = true
		return nil
	})
}

// WithCost says how many permits a request takes; without it, 1. A request of cost 0 takes no
// permits of this limit, and its answer has no fields of it; if there is no other limit, the
// request is served without asking the limiter. A cost below 0 is an error, and so is one above
// what the limiter can ever allow. The function cost must not read the body, unless it replaces
// the body by another one. It is about one limit.
//
// With [WithSettle] or [WithReportedCost] it is an estimate.
func WithCost(cost func(*http.Request) int) Option {
	return aboutLimit("WithCost", func(l *limit) error {
		if cost == nil {
			return invalidConfig("WithCost: the function is nil")
		}
		l.cost = cost
		return nil
	})
}

// WithRetryAfter sets the Retry-After of a denial by an [InFlight]; 1 s if not given, because a
// request can end at any moment, and nobody knows when. Choose about the time that a request
// takes. The option is refused for other limits, whose Retry-After is exact. d is more than 0.
func WithRetryAfter(d time.Duration) Option {
	return aboutLimit("WithRetryAfter", func(l *limit) error {
		if d <= 0 {
			return invalidConfig("WithRetryAfter: %v is not more than 0", d)
		}
		l.retryAfter = d
		return nil
	})
}

// WithFields chooses the fields that tell clients about their limit, in place of [Draft11]:
// several kinds, or none. Retry-After is always in a denial.
func WithFields(fields ...Fields) Option {
	return aboutWhole("WithFields", func(m *middleware) error {
		for i, f := range fields {
			if f.write == nil {
				return invalidConfig("WithFields: fields %d are empty; NewFields makes such", i+1)
			}
		}
		m.setFields(fields...)
		return nil
	})
}

// WithSkip serves the requests for which skip is true without a limit and without fields:
// health checks, for example. It is asked before the key function. It must not depend on anything that
// a client can forge, such as a method or a header that makes a request look like a CORS preflight.
func WithSkip(skip func(*http.Request) bool) Option {
	return aboutWhole("WithSkip", func(m *middleware) error {
		if skip == nil {
			return invalidConfig("WithSkip: the function is nil")
		}
		m.skip = skip
		return nil
	})
}

// WithDenialHandler answers denied requests, in place of [DefaultDenialHandler]. Retry-After,
// the fields and Cache-Control: no-store are set when it is called; what a middleware outside has set about the
// handler's answer, such as an ETag, is removed.
func WithDenialHandler(denied func(http.ResponseWriter, *http.Request, Decision)) Option {
	return aboutWhole("WithDenialHandler", func(m *middleware) error {
		if denied == nil {
			return invalidConfig("WithDenialHandler: the function is nil")
		}
		m.denied = denied
		return nil
	})
}

// WithErrorHandler answers the requests for which there is no decision, in place of
// [DefaultErrorHandler]: without a key, or while Redis is down. next is the handler behind
// the limit: calling it serves the request without a limit. [ServeInOutages] does so during an
// outage. To log, and answer as usual:
//
//	httplimit.WithErrorHandler(func(w http.ResponseWriter, r *http.Request, err error, next http.Handler) {
//		log.Print(err)
//		httplimit.DefaultErrorHandler(w, r, err, next)
//	})
//
// err is that of the key function or of the limiter. It is for the log, and not for clients.
func WithErrorHandler(failed func(w http.ResponseWriter, r *http.Request, err error, next http.Handler)) Option {
	return aboutWhole("WithErrorHandler", func(m *middleware) error {
		if failed == nil {
			return invalidConfig("WithErrorHandler: the function is nil")
		}
		m.failed = failed
		return nil
	})
}

// WithOutageRetryAfter gives the 503 of [DefaultErrorHandler] a Retry-After, in whole seconds, rounded up. Without the
// option it has none, because nobody knows when Redis is back: a client that has no Retry-After usually tries again
// after a random time, and longer each time, while all clients that have one come back when it has passed. So choose a
// time after which the service can bear them all. Denials have a Retry-After of their own, also those of a
// [ratelimit.Fallback] to [ratelimit.DenyAll]. d is more than 0. It is about the whole middleware.
func WithOutageRetryAfter(d time.Duration) Option {
	return aboutWhole("WithOutageRetryAfter", func(m *middleware) error {
		if d <= 0 {
			return invalidConfig("WithOutageRetryAfter: %v is not more than 0; leave it out to send no Retry-After", d)
		}
		m.outageRetryAfter = d
		return nil
	})
}

// WithRetrySpread makes the Retry-After of each denial longer by a random time up to most, which is more than 0, so that
// clients that were denied together do not come back together. Choose twice to three times what all of them need: of 50
// clients under a limit of 50 a second, 2 to 3 seconds. Retry-After is in whole seconds. It is about the whole
// middleware; docs/pausing.md has figures.
func WithRetrySpread(most time.Duration) Option {
	return aboutWhole("WithRetrySpread", func(m *middleware) error {
		if most <= 0 {
			return invalidConfig("WithRetrySpread: %v is not more than 0; leave it out for an exact Retry-After", most)
		}
		m.spread = integration.NewSpread(most)
		return nil
	})
}

// WithLateErrorHandler learns of errors that come when the handler has run, and the answer cannot
// change any more: a cost that could not be settled, or a lease that was lost, which wraps
// ratelimit.ErrLeaseLost. Without it they are ignored: the estimate stays taken.
func WithLateErrorHandler(failed func(r *http.Request, err error)) Option {
	return aboutWhole("WithLateErrorHandler", func(m *middleware) error {
		if failed == nil {
			return invalidConfig("WithLateErrorHandler: the function is nil")
		}
		m.failedLate = failed
		return nil
	})
}
