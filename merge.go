package ratelimit

import "context"

type merger struct{ c *core }

func newMerger(c *core) *merger { return nil }

func (m *merger) acquire(ctx context.Context, key string, n int) (Result, error) {
	return m.c.alone(ctx, m.c.one, key, n)
}
