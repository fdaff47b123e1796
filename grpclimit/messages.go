package grpclimit

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
)

func (l *limit) limitsMessages() bool { return l.received.limiter != nil || l.sent.limiter != nil }

// messages limits the messages of one stream. One goroutine may receive while another sends.
type messages struct {
	limit *limit
	call  Call // without a message
	key   string
	ended atomic.Pointer[error] // why the stream is over; nil while it goes on
}

// receive receives a message by recv, and then takes its permit: whether there is a message
// is known only afterwards.
func (s *messages) receive(ctx context.Context, m any, recv func(any) error) error {
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

// send takes the permit of a message, and then sends it.
func (s *messages) send(ctx context.Context, m any, send func(any) error) error {
	if ended := s.ended.Load(); ended != nil {
		return *ended
	}
	if err := s.take(ctx, m, s.limit.sent); err != nil {
		return err
	}
	return s.end(send(m))
}

func (s *messages) take(ctx context.Context, m any, t taker) error {
	if t.limiter == nil {
		return nil
	}
	call := s.call
	call.Message = m
	err := s.limit.take(ctx, call, s.key, t, 1)
	if err != nil {
		s.ended.CompareAndSwap(nil, &err)
	}
	return err
}

// end keeps an error of the stream itself, so that nothing further is limited after it. io.EOF
// ends one direction only.
func (s *messages) end(err error) error {
	if err != nil && !errors.Is(err, io.EOF) {
		s.ended.CompareAndSwap(nil, &err)
	}
	return err
}
