package redisexec

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit/internal/redisclient"
)

// Once is a command that go-redis sends at most once. go-redis sends any other
// command again, up to three times, when a reply is lost or late, although the command
// may have been executed. go-redis still follows a cluster's redirection, which says
// that the command was not executed.
type Once struct{ redis.Cmder }

// NoRetry keeps go-redis from sending the command again.
func (*Once) NoRetry() bool { return true }

// Clone returns a copy that is sent at most once too.
func (o *Once) Clone() redis.Cmder { return &Once{o.Cmder.Clone()} }

// Send sends o and waits for its reply, even on a deferred AutoPipeliner, whose
// Process does not wait.
func (o *Once) Send(ctx context.Context, client redisclient.Client) error {
	if err := client.Process(ctx, o); err != nil {
		return err
	}
	return o.Err()
}

// Send sends a command that may be executed several times, and waits for its reply.
func Send(ctx context.Context, client redisclient.Client, cmd redis.Cmder) error {
	if err := client.Process(ctx, cmd); err != nil {
		return err
	}
	return cmd.Err()
}
