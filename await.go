package ratelimit

import "context"

// await returns what f returns, or the context's error as soon as the context
// ends: go-redis notices a deadline while it waits for a reply only when told
// to, and a cancellation never. An abandoned f ends with the client's timeouts. A
// panic in f is an error, for it would end the process.
func await[T any](ctx context.Context, f func() (T, error)) (T, error) {
	if ctx.Done() == nil {
		return f()
	}
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		deepen()
		o := outcome{err: errEnded} // unless f returns
		defer func() {
			if r := recover(); r != nil {
				o.err = panicked(r)
			}
			done <- o
		}()
		o.value, o.err = f()
	}()
	select {
	case o := <-done:
		return o.value, o.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}
