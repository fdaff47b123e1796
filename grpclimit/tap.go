package grpclimit

import (
	"context"

	"google.golang.org/grpc/tap"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/rpclimit"
)

// NewTap returns a handle for grpc.InTapHandle, which denies a call before the server makes a
// goroutine or a stream for it, or reads its message. It is meant against floods, beside the limit
// of [NewServer] and with a limiter of its own.
//
//   - It runs in the goroutine that reads the connection, under the connection's lock: while the
//     handle asks Redis, no call of that connection goes on. So use a limiter that answers from
//     memory: a [ratelimit.LocalTokenBucket], or a [ratelimit.DenyCache] in a [ratelimit.Fallback]
//     with a small budget. It never waits.
//   - It sends no trailer: a client's retry policy backs off by its own settings, and not by the
//     limit's. The details RetryInfo and QuotaFailure are sent, by grpc-go 1.80 at the least.
//   - It sees the metadata, the peer and the deadline, but neither the message nor what an
//     interceptor has put into the context: [User] finds nobody. The method is what the client has
//     sent; whether it exists is not known yet, so [Method] is an error.
//   - Neither interceptors nor stats handlers see a call that it denies: if you need metrics of
//     these calls, count them in a denial handler.
//   - grpc.NewServer takes one handle only.
//
// The error wraps ratelimit.ErrInvalidConfig, as that of NewServer; an option is refused that is
// not for tap handles.
func NewTap(limiter ratelimit.Limiter, key KeyFunc, opts ...Option) (tap.ServerInHandle, error) {
	l, err := newLimit(rpclimit.InTap, limiter, key, opts)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, info *tap.Info) (context.Context, error) {
		_, err := l.Begin(ctx, Call{Method: info.FullMethodName, name: notYetKnown})
		return ctx, err
	}, nil
}
