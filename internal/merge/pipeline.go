package merge

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit/internal/redisexec"
)

// A command is one of several in a pipeline.
type command struct {
	*redisexec.Command
	of int // what it is for: the index of a key's first run
}

// sendPipelined executes b with one execution for each key, in one pipeline for each
// server.
func (s *sender) sendPipelined(ctx context.Context, b *batch, keys []int) {
	commands := make([]command, len(keys))
	for i, key := range keys {
		c, err := s.command(b, key)
		if err != nil { // the caller's clock is out of range
			b.fail(err)
			return
		}
		commands[i] = command{c, key}
	}
	var failed []int
	kept := make([]int64, 0, len(b.runs)*b.limits[0].Exec.Words) // of the replies, whose memory is the commands'
	s.sendCommands(ctx, commands, func(key int, words []int64, err error) {
		first := len(kept)
		kept = append(kept, words...)
		if _, err = s.answer(b, key, kept[first:], err); err != nil {
			failed = append(failed, key)
		}
	})
	for _, c := range commands {
		c.Release()
	}
	s.askAgain(ctx, b, failed)
}

// command returns the command of a key.
func (s *sender) command(b *batch, key int) (*redisexec.Command, error) {
	exec := b.limitOf(key).Exec
	if b.single(key) && b.firstOf(key).op != redisexec.Release { // which on its own is no script
		return exec.Command(b.runs[key].key, b.firstOf(key).operation())
	}
	return exec.CommandMany(b.scriptOf(exec), 1, func(int) (*string, any) { return &b.runs[key].key, b.requests(key) })
}

// sendCommands sends the commands in a pipeline, and those that were not executed again in
// another. replied gets the reply to each, and what the command is for.
func (s *sender) sendCommands(ctx context.Context, commands []command, replied func(of int, words []int64, err error)) {
	for len(commands) > 0 {
		cmds := make([]redis.Cmder, len(commands))
		for i, c := range commands {
			cmds[i] = c.Cmd(ctx)
		}
		unsent := s.client.ProcessAll(ctx, cmds)
		var unknown, again []command
		for _, c := range commands {
			words, err := c.Reply(unsent)
			switch {
			case c.Unknown(err):
				unknown = append(unknown, c)
			case c.Outside(err), c.Beside(err):
				again = append(again, c)
			default:
				replied(c.of, words, err)
			}
		}
		// None of these has taken anything. The first unknown one now carries its script's source;
		// the commands behind it in its server's pipeline find the script there.
		if len(unknown) > 0 {
			unknown[0].SendSource()
		}
		commands = append(unknown, again...)
	}
}
