package redisexec

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// A ReplyError reports a reply that no script of this module gives.
type ReplyError string

func (e ReplyError) Error() string { return string(e) }

var (
	errNoReply = ReplyError("the client reported neither an error nor a reply")
	errNotSent = errors.New("the client did not send the command")
)

// noReply is an integer that no script replies. A command starts with it, because a hook
// of the client may return no error without having asked Redis, and 0 would be the reply
// of a full bucket.
const noReply = math.MinInt64

// Beside is the reply of a One whose words one integer does not hold: nothing was taken.
const Beside = -1 << 53

var errBeside = ReplyError("a reply that is not in words")

// newCmd returns the go-redis command for c.
func (c *Command) newCmd(ctx context.Context) redis.Cmder {
	if c.exec.Unpack != nil && c.script == c.exec.One {
		return newIntCmd(ctx, c.args...)
	}
	return redis.NewIntSliceCmd(ctx, c.args...)
}

// newIntCmd returns a command that has noReply until it is answered.
func newIntCmd(ctx context.Context, args ...any) *redis.IntCmd {
	cmd := redis.NewIntCmd(ctx, args...)
	cmd.SetVal(noReply)
	return cmd
}

// unanswered reports whether c, which has no error, has no reply either.
func (c *Command) unanswered() bool {
	switch cmd := c.once.Cmder.(type) {
	case *redis.IntCmd:
		return cmd.Val() == noReply
	case *redis.IntSliceCmd:
		return cmd.Val() == nil
	}
	return false
}

// read stores the words of the reply in c.words.
func (c *Command) read() error {
	if c.unanswered() {
		return errNoReply
	}
	switch cmd := c.once.Cmder.(type) {
	case *redis.IntCmd:
		if c.exec.InWords != nil && cmd.Val() == Beside {
			return errBeside
		}
		c.clearWords()
		c.exec.Unpack(cmd.Val(), c.words)
	case *redis.IntSliceCmd:
		c.words = cmd.Val()
		if c.common > 0 {
			c.arrange()
			return nil
		}
		if c.op == 0 {
			return nil
		}
		if short := c.words; c.exec.Short && c.script == c.exec.One && len(short) > 0 && len(short) < c.exec.Words {
			c.clearWords()
			copy(c.words, short)
		}
		return c.exec.CheckWords(c.op, c.words)
	}
	return nil
}

// CheckWords returns an error if these words are no reply to such an operation.
func (e *Executor) CheckWords(op Op, words []int64) error {
	if got, want := len(words), e.WordsOf(op, words); got != want {
		return wrongSize(got, want)
	}
	return nil
}

// clearWords makes c.words those of a run, in the command's own memory, all 0.
func (c *Command) clearWords() {
	if cap(c.room) < c.exec.Words {
		c.room = make([]int64, c.exec.Words)
	}
	c.words = c.room[:c.exec.Words]
	clear(c.words)
}

func wrongSize(got, want int) error {
	return ReplyError("a reply of " + strconv.Itoa(got) + " integers, not " + strconv.Itoa(want))
}

// Reply returns the words of the reply that c got from a pipeline whose Exec returned
// err.
func (c *Command) Reply(err error) ([]int64, error) {
	if own := c.once.Err(); own != nil {
		return nil, own
	}
	if c.unanswered() {
		if err == nil || errors.As(err, new(redis.Error)) { // err is the reply to another command
			err = errNotSent
		}
		return nil, err
	}
	if err := c.read(); err != nil {
		return nil, err
	}
	return c.words, nil
}

// IsUnknown reports whether err says that Redis did not know the script, and so did not
// execute it.
func IsUnknown(err error) bool {
	return err != nil && (errors.Is(err, redis.ErrNoScript) || redis.HasErrorPrefix(err, "NOSCRIPT"))
}

// ForbidsAKey reports whether the server refused a command because its user may not touch one of the keys. The script
// was not begun: its own commands fail with an "ACL failure in script".
func ForbidsAKey(err error) bool {
	return redis.HasErrorPrefix(err, "NOPERM") && strings.Contains(err.Error(), " key") && !strings.Contains(err.Error(), "in script")
}
