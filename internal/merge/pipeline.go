package merge

import (
	"context"

	"github.com/tryacquire/ratelimit/internal/redisexec"
)

// A command is the execution for one key of a batch whose keys are on several
// servers.
type command struct {
	*redisexec.Command
	key  int  // index of its first run
	many bool // it runs the script for many requests
}

// sendPipelined executes b with one execution for each key, in one pipeline for each
// server.
func (s *sender) sendPipelined(ctx context.Context, b *batch, keys []int) {
	commands := make([]command, len(keys))
	for i, key := range keys {
		var err error
		if commands[i], err = s.command(b, key); err != nil { // the caller's clock is out of range
			b.fail(err)
			return
		}
	}
	var failed []int
	for len(commands) > 0 {
		unsent := s.sendCommands(ctx, commands)
		var unknown, outside []command
		for _, c := range commands {
			words, err := c.Reply(unsent)
			switch {
			case c.Unknown(err):
				unknown = append(unknown, c)
			case c.Outside(err):
				outside = append(outside, c)
			case err == nil && c.many && keyFailed(words):
				failed = append(failed, c.key)
			default:
				s.answer(b, c.key, words, err)
			}
		}
		// None of these was executed. The first unknown one now carries its script's source;
		// the commands behind it in its server's pipeline find the script there.
		if len(unknown) > 0 {
			unknown[0].SendSource()
		}
		commands = append(unknown, outside...)
	}
	s.askAgain(ctx, b, failed)
}

// command returns the command of a key.
func (s *sender) command(b *batch, key int) (c command, err error) {
	c.key, c.many = key, !b.single(key)
	if c.many {
		c.Command, err = s.exec.CommandMany(1, func(int) (*string, any) { return &b.runs[key].key, b.requests(key) })
	} else {
		c.Command, err = s.exec.Command(b.runs[key].key, int(b.firstOf(key).n))
	}
	return c, err
}

// sendCommands sends the commands, which then have their replies. The error is the
// reason that a command has none.
func (s *sender) sendCommands(ctx context.Context, commands []command) error {
	pipe := s.pipelines.Pipeline()
	for _, c := range commands {
		c.Queue(ctx, pipe)
	}
	_, err := pipe.Exec(ctx)
	return err
}
