// Package rueidisclient makes a client of limiters of a rueidis.Client.
//
//	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{"localhost:6379"}})
//	...
//	limits := rueidisclient.New(client) // one for all limiters
//	perUser, err := ratelimit.NewTokenBucket(limits, ratelimit.PerSecond(10), 20)
//	perTenant, err := ratelimit.NewFixedWindow(limits, 1000, time.Minute, ratelimit.WithName("tenant"))
//
// All that limiters do with go-redis they do with rueidis, on single servers, behind Sentinel, and on a Cluster: waiting
// calls are sent together, and each call is executed at most once. rueidis itself sends a script again only after a redirection.
// docs/clients.md says which of its settings matter.
package rueidisclient

import (
	"context"
	"errors"

	"github.com/redis/rueidis"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/otherclient"
)

// New returns a client for limiters. Call it once for each c, and give the result to all limiters: only limiters of one such client
// decide together and share executions. It needs no Redis, and starts nothing that has to be closed; the caller closes c when no limiter is
// in use any more. If c is nil, New returns nil, which constructors refuse.
func New(c rueidis.Client) ratelimit.Client {
	if c == nil {
		return nil
	}
	return otherclient.New(conn{c})
}

type conn struct{ rueidis.Client }

func (c conn) Do(ctx context.Context, cmd otherclient.Command) otherclient.Reply {
	return reply(c.Client.Do(ctx, build(c.Client, cmd)))
}

func (c conn) DoAll(ctx context.Context, commands []otherclient.Command) []otherclient.Reply {
	all := make(rueidis.Commands, len(commands))
	for i, cmd := range commands {
		all[i] = build(c.Client, cmd)
	}
	replies := make([]otherclient.Reply, len(commands))
	for i, r := range c.DoMulti(ctx, all...) {
		replies[i] = reply(r)
	}
	return replies
}

func (c conn) DoEach(ctx context.Context, cmd otherclient.Command) error {
	var failed error
	for _, node := range c.Nodes() { // replicas of a Cluster too, which may become masters
		failed = errors.Join(failed, reply(node.Do(ctx, build(node, cmd))).Err)
	}
	return failed
}

func (c conn) Sharded() bool { return c.Mode() == rueidis.ClientModeCluster }

func build(c rueidis.Client, cmd otherclient.Command) rueidis.Completed {
	w, end := cmd.Words, cmd.Key+cmd.Keys
	if cmd.Keys == 0 {
		return c.B().Arbitrary(w...).Build()
	}
	return c.B().Arbitrary(w[:cmd.Key]...).Keys(w[cmd.Key:end]...).Args(w[end:]...).Build()
}

func reply(r rueidis.RedisResult) otherclient.Reply {
	message, err := r.ToMessage()
	switch {
	case err == nil:
	case isServer(err):
		return otherclient.Reply{Err: otherclient.ServerError(err.Error())}
	default:
		return otherclient.Reply{Err: err}
	}
	switch {
	case message.IsInt64():
		n, err := message.AsInt64()
		return otherclient.Reply{Value: n, Err: err}
	case message.IsArray():
		all, err := message.AsIntSlice()
		return otherclient.Reply{Value: all, Err: err}
	}
	text, err := message.ToString()
	return otherclient.Reply{Value: text, Err: err}
}

func isServer(err error) bool {
	_, ok := rueidis.IsRedisErr(err)
	return ok
}
