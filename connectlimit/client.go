package connectlimit

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"

	"connectrpc.com/connect"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/rpclimit"
)

// NewClient returns an interceptor for clients: each call takes a permit of the key that key
// returns, before anything is sent, and fails as a call that a server denies, with the same
// error. With [WithMaxWait] it waits for the permit instead.
//
//	connect.WithInterceptors(limit)
//
// A stream takes its permits with what first sends something: Send or CloseRequest. Its header is
// complete then. The error is that of this method, and of all later ones.
//
// The error wraps ratelimit.ErrInvalidConfig: limiter or key is nil, or an option cannot work,
// is not for clients, or is given twice. Redis is not asked.
func NewClient(limiter ratelimit.Limiter, key KeyFunc, opts ...Option) (connect.Interceptor, error) {
	return newInterceptor(rpclimit.Client, limiter, key, opts)
}

func (i *interceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		cancel := func() {}
		if i.limit.LimitsMessages() {
			ctx, cancel = context.WithCancel(ctx)
		}
		c := &clientConn{StreamingClientConn: next(ctx, spec), ctx: ctx, cancel: cancel, interceptor: i, begun: make(chan struct{})}
		c.begin = sync.OnceValue(c.start)
		return c
	}
}

// A clientConn limits a client's stream.
type clientConn struct {
	connect.StreamingClientConn
	ctx         context.Context
	cancel      context.CancelFunc
	interceptor *interceptor

	begin    func() error  // takes the stream's permits, once
	begun    chan struct{} // closed when it has
	messages *messages     // set by begin
	opened   atomic.Bool   // the request was made
	aborted  sync.Once
}

// start is called by the side that sends, which alone may read the request's header.
func (c *clientConn) start() (err error) {
	defer close(c.begun)
	c.messages, err = c.interceptor.begin(c.ctx, Call{Spec: c.Spec(), Peer: c.Peer(), Header: c.RequestHeader()})
	if err != nil {
		c.cancel()
	}
	return err
}

func (c *clientConn) Send(m any) error {
	if err := c.begin(); err != nil {
		return err
	}
	if m == nil { // sends the header alone
		return c.sendNow(nil)
	}
	err := c.messages.Send(c.ctx, m, c.sendNow)
	c.abortIfDenied()
	return err
}

func (c *clientConn) sendNow(m any) error {
	c.opened.Store(true)
	return c.StreamingClientConn.Send(m)
}

// wait waits until the stream has begun: the side that receives does not begin it.
func (c *clientConn) wait() error {
	select {
	case <-c.begun:
		return c.begin()
	case <-c.ctx.Done():
	}
	select {
	case <-c.begun: // a denial ends the context too
		return c.begin()
	default:
		code, text := rpclimit.CodeOf(c.ctx, nil)
		return connect.NewError(connect.Code(code), errors.New(text))
	}
}

func (c *clientConn) Receive(m any) error {
	if err := c.wait(); err != nil {
		return err
	}
	err := c.messages.Receive(c.ctx, m, c.StreamingClientConn.Receive)
	c.abortIfDenied()
	if err != nil && c.Spec().StreamType != connect.StreamTypeBidi {
		c.cancel() // of bidi, Send may still go on; CloseResponse cancels it
	}
	return err
}

// abortIfDenied resets the stream after a message was denied: callers of Send and Receive take an
// error for its end. The request is not closed, because the server would take the messages so far
// for all of them; and the end of the context alone has no effect in net/http while it waits for
// the request's next bytes. If there is no request yet, connect makes one, whose context has ended,
// so that net/http sends nothing of it: a Receive that waits for the answer would go on for ever.
func (c *clientConn) abortIfDenied() {
	if c.messages.Denied() {
		c.aborted.Do(func() {
			c.cancel()
			if !c.opened.Load() {
				_ = c.StreamingClientConn.CloseRequest()
			}
			_ = c.StreamingClientConn.CloseResponse()
		})
	}
}

// The other methods would send the stream's header, or wait for the answer to it. Of a stream that
// was denied at its start nothing is sent.

func (c *clientConn) CloseRequest() error {
	if err := c.begin(); err != nil {
		return err
	}
	if c.messages.Denied() {
		return c.messages.Ended()
	}
	c.opened.Store(true)
	return c.StreamingClientConn.CloseRequest()
}

func (c *clientConn) CloseResponse() error {
	defer c.cancel()
	select {
	case <-c.begun:
	default:
		return nil
	}
	if c.begin() != nil || c.messages.Denied() {
		return nil // nothing is open
	}
	return c.StreamingClientConn.CloseResponse()
}

func (c *clientConn) ResponseHeader() http.Header {
	if c.wait() != nil {
		return http.Header{}
	}
	return c.StreamingClientConn.ResponseHeader()
}

func (c *clientConn) ResponseTrailer() http.Header {
	if c.wait() != nil {
		return http.Header{}
	}
	return c.StreamingClientConn.ResponseTrailer()
}
