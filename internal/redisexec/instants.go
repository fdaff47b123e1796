package redisexec

import (
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Instants are arguments that change with time: the instants around the clock that decides,
// behind the algorithm's ARGV. That clock is read in the script, so they are made for what
// this process takes it to be. If they are too far off, the script replies OUTSIDE with what
// its clock reads, and has done nothing; the command is then sent again, once, with the
// instants around that time.
type Instants struct {
	// Around returns the instants around now, in microseconds. It must not block.
	Around func(now int64) [5]int64

	// Here reads this process's clock. If it is nil, that is [time.Now].
	Here func() int64

	// ahead is what the server's clock was ahead of this process's when a script last
	// replied OUTSIDE, so that a process whose clock is far off asks once and not twice.
	ahead atomic.Int64
}

func (i *Instants) here() int64 {
	if i.Here != nil {
		return i.Here()
	}
	return time.Now().UnixMicro()
}

// addInstants makes room for the instants, which setInstants sets.
func (c *Command) addInstants() {
	if c.exec.Instants == nil {
		return
	}
	if c.instants == nil {
		c.instants = new([5]int64)
	}
	for i := range c.instants {
		c.args = append(c.args, &c.instants[i])
	}
}

// setInstants sets the instants: around the caller's clock, or around what the server's
// is taken to be.
func (c *Command) setInstants() {
	if i := c.exec.Instants; i != nil {
		now := c.now
		if c.exec.Now == nil {
			now = i.here() + i.ahead.Load()
		}
		*c.instants, c.moved = i.Around(now), false
	}
}

// Outside reports whether err says that the instants were too far off, so that nothing was
// executed, and c now has others and can be sent again.
func (c *Command) Outside(err error) bool {
	if err == nil || c.exec.Instants == nil || c.moved || !redis.HasErrorPrefix(err, "OUTSIDE") {
		return false
	}
	var reply redis.Error
	if !errors.As(err, &reply) {
		return false
	}
	_, text, _ := strings.Cut(reply.Error(), "OUTSIDE ")
	now, failed := strconv.ParseInt(text, 10, 64)
	if failed != nil {
		return false
	}
	i := c.exec.Instants
	i.ahead.Store(now - i.here())
	*c.instants, c.moved = i.Around(now), true
	return true
}
