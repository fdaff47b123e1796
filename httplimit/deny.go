package httplimit

import (
	"cmp"
	"net/http"
)

// Deny answers a request as a limit of this package does when it denies: with Retry-After, Cache-Control: no-store, the
// fields, and the body of [DefaultDenialHandler]. It is for handlers that have asked a limiter themselves:
//
//	result, err := perUser.TryAcquire(ctx, user)
//	...
//	if !result.Allowed {
//		httplimit.Deny(w, r, httplimit.Decision{Policy: "login", Result: result})
//		return
//	}
//
// Of several limits, give the decision of each in Parts: Deny finds the one that governs. Without a Policy the limit is
// called "default". The fields are those of [Draft11] if none are given. Deny denies whatever the decision says: of one that
// allows, or of Decision{}, which has no limit, Retry-After is 1.
func Deny(w http.ResponseWriter, r *http.Request, d Decision, fields ...Fields) {
	if len(d.Parts) > 0 {
		parts := make([]Decision, len(d.Parts))
		for i, p := range d.Parts {
			parts[i] = named(p)
		}
		d = together(parts)
	}
	d.Result.Allowed = false
	m := newMiddleware()
	if len(fields) > 0 {
		m.setFields(fields...)
	}
	m.deny(w, r, named(d))
}

// named gives a decision that has no policy the name that a limiter without one has.
func named(d Decision) Decision {
	d.Policy = cmp.Or(d.Policy, "default")
	return d
}
