package main

import (
	"context"

	"github.com/tryacquire/ratelimit"
)

// A call is one call of a model: what it has used so far, and what it has reserved for that.
type call struct {
	*account
	id    string
	model string
	price price
	used  usage // as counted, and at the end as the upstream reports it

	parts    []ratelimit.PartResult
	reserved [len(budgets)]int // micro-dollars
	slice    int               // micro-dollars that it takes at once while it streams
	short    error             // why it gets no more

	pieces, length int // of the answer so far, see chunk.size
}

// count adds a part to the answer. Most upstreams send each token as a piece; of those that send more at once, the length
// says how many tokens there are. When half a slice is left of what is reserved, count takes a further slice from each
// budget. If one denies, the answer goes on until its reserve is used up; then count returns why it has to be cut.
func (c *call) count(ctx context.Context, part chunk) error {
	pieces, length := part.size()
	c.pieces, c.length = c.pieces+pieces, c.length+length
	c.used.Output = max(c.used.Output, c.pieces, c.length/bytesOfToken)
	if part.Usage != nil {
		c.used = part.Usage.checked()
	}
	if pieces == 0 { // the answer is complete
		return nil
	}
	cost := c.price.of(c.used)
	for i, at := range budgets {
		if c.short == nil && c.reserved[i] < cost+c.slice/2 {
			c.short = c.more(ctx, i, c.parts[at])
		}
	}
	for _, reserved := range c.reserved {
		if cost > reserved {
			return c.short
		}
	}
	return nil
}

// more takes a slice from a budget. It has its answer even if the client leaves: without it, nobody would know of the slice
// until its lease ends.
func (c *call) more(ctx context.Context, i int, part ratelimit.PartResult) error {
	r, err := part.Ticket.More(context.WithoutCancel(ctx), c.slice)
	switch {
	case err != nil:
		return noDecision(err)
	case !r.Allowed:
		part.Result = r
		return denied([]ratelimit.PartResult{part})
	}
	c.reserved[i] += c.slice
	return nil
}

// cost settles a part: in tokens or in micro-dollars.
func (c *call) cost(p ratelimit.PartResult) int {
	if p.Name == c.tokens.Name() {
		return c.used.total()
	}
	return c.price.of(c.used)
}
