package script

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// Client sends one command. ratelimit.Client is the same interface.
type Client interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// Once is a command that go-redis sends at most once. Any other it would send
// again, up to three times, when a reply is lost or late, though the first may
// have been executed. A cluster's redirection is still followed: it tells that
// the command was not.
type Once struct {
	redis.Cmder
	settled bool
}

// NoRetry tells go-redis not to send the command again.
func (*Once) NoRetry() bool { return true }

// Clone returns a copy that is sent at most once too.
func (o *Once) Clone() redis.Cmder { return &Once{Cmder: o.Cmder.Clone()} }

// SetErr is how go-redis tells a command of a pipeline its outcome, also if that
// is no error.
func (o *Once) SetErr(err error) {
	o.settled = true
	o.Cmder.SetErr(err)
}

// Outcome is the error of a command of a pipeline whose Exec returned err. A
// pipeline that was not sent, as when a hook of the client refuses it, leaves its
// commands without any.
func (o *Once) Outcome(err error) error {
	switch {
	case o.settled:
		return o.Err()
	case err == nil || errors.As(err, new(redis.Error)): // that is the reply to another
		return errors.New("the client did not send the command")
	}
	return err
}

// Send sends o and waits for its reply, on a deferred AutoPipeliner too, whose
// Process does not.
func (o *Once) Send(ctx context.Context, client Client) error {
	if err := client.Process(ctx, o); err != nil {
		return err
	}
	return o.Err()
}

// IsUnknown reports whether err says that Redis did not know the script, and so
// did not run it.
func IsUnknown(err error) bool {
	return err != nil && (errors.Is(err, redis.ErrNoScript) || redis.HasErrorPrefix(err, "NOSCRIPT"))
}
