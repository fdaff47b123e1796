package rpclimit_test

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/rpclimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

type call struct{}

// TestAStreamThatHasFailedTakesNoPermits: whatever the program still sends or receives. io.EOF ends
// one direction only.
func TestAStreamThatHasFailedTakesNoPermits(t *testing.T) {
	protocol := &rpclimit.Protocol[call]{Package: "test", WithMessage: func(call, any) call { return call{} }}
	key := func(context.Context, call) (string, error) { return "k", nil }
	broken := errors.New("the stream is broken")
	for name, c := range map[string]struct {
		fail          func(*rpclimit.Messages[call]) error
		err           error // of fail
		sent, ended   error // of what is sent afterwards, and the stream's
		taken, onSend int   // permits
	}{
		"send":            {func(m *rpclimit.Messages[call]) error { return m.Send(t.Context(), 1, fails(broken)) }, broken, broken, broken, 1, 0},
		"receive":         {func(m *rpclimit.Messages[call]) error { return m.Receive(t.Context(), 1, fails(broken)) }, broken, broken, broken, 0, 0},
		"end of sending":  {func(m *rpclimit.Messages[call]) error { return m.Send(t.Context(), 1, fails(io.EOF)) }, io.EOF, nil, nil, 1, 1},
		"end of messages": {func(m *rpclimit.Messages[call]) error { return m.Receive(t.Context(), 1, fails(io.EOF)) }, io.EOF, nil, nil, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			limiter := limitertest.Allowing()
			limit, err := rpclimit.New(protocol, rpclimit.Server, ratelimit.AllowAll(), key, []rpclimit.Option[call]{
				rpclimit.WithSent[call](limiter, 0), rpclimit.WithReceived[call](limiter, 0)})
			require.NoError(t, err)
			m, err := limit.Begin(t.Context(), call{})
			require.NoError(t, err)

			require.ErrorIs(t, c.fail(m), c.err)
			require.Len(t, limiter.Asked(), c.taken)
			require.Equal(t, c.ended, m.Ended())
			require.False(t, m.Denied())

			require.Equal(t, c.sent, m.Send(t.Context(), 2, fails(nil)))
			require.Len(t, limiter.Asked(), c.onSend)
		})
	}
}

func fails(err error) func(any) error { return func(any) error { return err } }
