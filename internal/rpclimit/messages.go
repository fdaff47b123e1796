package rpclimit

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
)

// Messages limits the messages of one stream; nil limits none. One goroutine may receive while
// another sends.
type Messages[C any] struct {
	limit  *Limit[C]
	call   C // without a message
	key    string
	ended  atomic.Pointer[error] // why the stream is over; nil while it goes on
	denied atomic.Bool
}

// LimitsMessages reports whether messages take permits.
func (l *Limit[C]) LimitsMessages() bool { return l.received.limiter != nil || l.sent.limiter != nil }

// messages is nil where messages are free.
func (l *Limit[C]) messages(call C, key string) *Messages[C] {
	if !l.LimitsMessages() {
		return nil
	}
	return &Messages[C]{limit: l, call: call, key: key}
}

// Receive receives a message by recv, and then takes its permit: whether there is a message
// is known only afterwards.
func (s *Messages[C]) Receive(ctx context.Context, m any, recv func(any) error) error {
	if s == nil {
		return recv(m)
	}
	if ended := s.ended.Load(); ended != nil {
		return *ended
	}
	if err := recv(m); err != nil {
		if ended := s.ended.Load(); ended != nil { // while it waited, a message to send was denied
			return *ended
		}
		return s.end(err)
	}
	return s.take(ctx, m, s.limit.received)
}

// Send takes the permit of a message, and then sends it.
func (s *Messages[C]) Send(ctx context.Context, m any, send func(any) error) error {
	if s == nil {
		return send(m)
	}
	if ended := s.ended.Load(); ended != nil {
		return *ended
	}
	if err := s.take(ctx, m, s.limit.sent); err != nil {
		return err
	}
	return s.end(send(m))
}

func (s *Messages[C]) take(ctx context.Context, m any, t taker) error {
	if t.limiter == nil {
		return nil
	}
	err := s.limit.take(ctx, s.limit.WithMessage(s.call, m), s.key, t, 1)
	if err != nil {
		s.ended.CompareAndSwap(nil, &err)
		s.denied.Store(true)
	}
	return err
}

// end keeps an error of the stream itself, so that nothing further is limited after it. io.EOF
// ends one direction only.
func (s *Messages[C]) end(err error) error {
	if err != nil && !errors.Is(err, io.EOF) {
		s.ended.CompareAndSwap(nil, &err)
	}
	return err
}

// Ended returns why the stream is over, or nil while it goes on.
func (s *Messages[C]) Ended() error {
	if s == nil {
		return nil
	}
	if ended := s.ended.Load(); ended != nil {
		return *ended
	}
	return nil
}

// Denied reports whether the stream is over because a message was denied, or not decided.
func (s *Messages[C]) Denied() bool { return s != nil && s.denied.Load() }
