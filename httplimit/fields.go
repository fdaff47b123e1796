package httplimit

import (
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"time"
)

// Fields is a way to tell clients about their limit: which fields an answer gets, and their
// values. [Draft11] and [XRateLimit] return Fields; [NewFields] makes others.
type Fields struct {
	names []string // canonical
	write func(http.Header, Decision)
}

// NewFields returns fields of your own. write is called for each decision, before the handler
// or the denial handler runs, and sets the fields.
// It is called for a decision without a limit
// too (Result.Limit is 0). names are the fields that it may set; browsers are
// allowed to read these. The error wraps ratelimit.ErrInvalidConfig: write is nil, or a name is
// not that of a field.
func NewFields(write func(http.Header, Decision), names ...string) (Fields, error) {
	if write == nil {
		return Fields{}, invalidConfig("NewFields: write is nil")
	}
	f := Fields{write: write}
	for _, name := range names {
		if !isToken(name) {
			return Fields{}, invalidConfig("NewFields: %q is not the name of a field", name)
		}
		f.names = append(f.names, textproto.CanonicalMIMEHeaderKey(name))
	}
	return f, nil
}

// Draft11 writes RateLimit-Policy and RateLimit as draft-ietf-httpapi-ratelimit-headers-11 has
// them, for a limit of 20 in 2 s with 17 left:
//
//	RateLimit-Policy: "api";q=20;w=2
//	RateLimit: "api";r=17;t=2
//
// q is the limit and w its window in whole seconds, rounded up, and left out if the window is
// shorter than a second; qu is the unit, if that is not requests ([WithUnit]). r is Remaining and t
// [Decision.EffectiveWindow]. For requests in flight there is no w, and a t only in a denial. Each
// limit of [NewAll] has an item of its own. Draft11 writes nothing where there is no limit
// (Result.Limit is 0), and adds to the fields that nested limits have written. It is the default.
//
// A later draft will get a function of its own, so that no update of this package changes the
// fields that a service sends.
func Draft11() Fields {
	return Fields{[]string{nameRateLimit, namePolicy}, writeDraft11}
}

// The canonical names of fields.
const (
	nameRateLimit  = "Ratelimit"
	namePolicy     = "Ratelimit-Policy"
	nameXLimit     = "X-Ratelimit-Limit"
	nameXRemaining = "X-Ratelimit-Remaining"
	nameXReset     = "X-Ratelimit-Reset"
	nameRetryAfter = "Retry-After"
	nameExpose     = "Access-Control-Expose-Headers"
)

// Set sets the fields of a decision, for answers that this package does not write: those of a service's own format, to which
// [Deny] does not fit, and of calls for which a handler has asked limiters itself. It does not set Retry-After.
func (f Fields) Set(h http.Header, d Decision) {
	if f.write != nil {
		f.write(h, d)
	}
}

// writeDraft11 writes the values of each limit.
func writeDraft11(h http.Header, d Decision) {
	if d.Parts == nil {
		writeDraft11Of(h, d)
	}
	for _, part := range d.Parts {
		writeDraft11Of(h, part)
	}
}

// writeDraft11Of is all that knows the draft's syntax. It allocates twice: the text of both
// values, and their slices.
func writeDraft11Of(h http.Header, d Decision) {
	if d.Result.Limit < 1 {
		return
	}
	var space [160]byte
	b := appendString(space[:0], d.Policy)
	b = append(b, ";q="...)
	b = appendInteger(b, d.Result.Limit)
	if d.Unit != "" {
		b = append(b, ";qu="...)
		b = appendString(b, d.Unit)
	}
	if d.Result.Window >= time.Second && !d.InFlight { // whose Window is a lease
		b = append(b, ";w="...)
		b = appendInteger(b, wholeSeconds(d.Result.Window))
	}
	end := len(b)
	b = appendString(b, d.Policy)
	b = append(b, ";r="...)
	b = appendInteger(b, d.Result.Remaining)
	if !d.InFlight || !d.Result.Allowed {
		b = append(b, ";t="...)
		b = appendInteger(b, d.EffectiveWindow())
	}

	text := string(b)
	values := []string{text[:end], text[end:]}
	addField(h, namePolicy, values[:1:1])
	addField(h, nameRateLimit, values[1:])
}

// addField keeps what an outer limit has written: the fields are lists.
func addField(h http.Header, name string, values []string) {
	if before := h[name]; len(before) > 0 {
		values = append(before, values...)
	}
	h[name] = values
}

// appendString appends a String of RFC 9651. s is printable ASCII.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, s[i])
	}
	return append(b, '"')
}

// appendInteger appends a non-negative Integer of RFC 9651, which has at most 15 digits.
func appendInteger(b []byte, n int) []byte {
	const most = 999_999_999_999_999
	return strconv.AppendInt(b, min(max(int64(n), 0), most), 10)
}

// XRateLimit writes X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset, for clients
// that know no others. No standard defines them. Reset is in seconds from now:
// [Decision.EffectiveWindow]. It writes nothing where there is no limit. Of the limits of [NewAll]
// it writes the one that governs (see [Decision]); of nested limits, the innermost one's values
// remain.
func XRateLimit() Fields {
	return Fields{[]string{nameXLimit, nameXRemaining, nameXReset}, writeXRateLimit}
}

func writeXRateLimit(h http.Header, d Decision) {
	if d.Result.Limit < 1 {
		return
	}
	var space [64]byte
	b := strconv.AppendInt(space[:0], int64(d.Result.Limit), 10)
	limit := len(b)
	b = strconv.AppendInt(b, int64(max(d.Result.Remaining, 0)), 10)
	remaining := len(b)
	b = strconv.AppendInt(b, int64(d.EffectiveWindow()), 10)

	text := string(b)
	values := []string{text[:limit], text[limit:remaining], text[remaining:]}
	h[nameXLimit] = values[0:1:1]
	h[nameXRemaining] = values[1:2:2]
	h[nameXReset] = values[2:3:3]
}

// isToken reports whether s is a token of RFC 9110, as the name of a field is.
func isToken(s string) bool {
	if s == "" {
		return false
	}
	for i := range len(s) {
		if !isTokenByte(s[i]) {
			return false
		}
	}
	return true
}

func isTokenByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}
