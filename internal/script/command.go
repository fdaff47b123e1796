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
type Once struct{ redis.Cmder }

// NoRetry tells go-redis not to send the command again.
func (*Once) NoRetry() bool { return true }

// Clone returns a copy that is sent at most once too.
func (o *Once) Clone() redis.Cmder { return &Once{o.Cmder.Clone()} }

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
