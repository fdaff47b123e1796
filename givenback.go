package ratelimit

import "context"

// A hearer must hear of permits that are given back: the memory of a [DenyCache] forgets the key's denials, the trial
// of a [Shadow] gives back as much, a secondary that follows its primary begins an outage with them.
type hearer interface {
	// givesBack is called before permits of key that a call took are given back or charged: actual stays of n. done
	// is called after it, with its error.
	givesBack(ctx context.Context, key string, n, actual int) (done func(error))
}

// hearers are all that hear of what a claim takes and gives back, at once or late, by the caller or by the library for
// one who left. A policy that remembers denials adds itself to the claim before the call is decided; so also what no
// caller gets to know of is heard. A trial and a secondary add themselves to the ticket or the reservation. It is a list,
// of which the end is shared; nil is nobody.
type hearers struct {
	hearer
	others *hearers
}

// and is h, and x.
func (h *hearers) and(x hearer) *hearers { return &hearers{x, h} }

// with is h, and all others.
func (h *hearers) with(others *hearers) *hearers {
	if h == nil {
		return others
	}
	for ; others != nil; others = others.others {
		h = h.and(others.hearer)
	}
	return h
}

// givesBack is that of all of them.
func (h *hearers) givesBack(ctx context.Context, key string, n, actual int) (done func(error)) {
	if h == nil {
		return func(error) {}
	}
	last, others := h.hearer.givesBack(ctx, key, n, actual), h.others.givesBack(ctx, key, n, actual)
	return func(err error) {
		others(err)
		last(err)
	}
}
