package redisexec

import (
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Instants are arguments that change with time: when windows of calendars begin around the
// clock that decides. That clock is read in the script, so they are made for what this
// process takes it to be. If they are too far off, the script replies OUTSIDE with what its
// clock reads, and has done nothing; the command is then sent again, once, with the instants
// around that time.
type Instants struct {
	Of []Calendar

	// Here reads this process's clock. If it is nil, that is [time.Now].
	Here func() int64

	// ahead is what the server's clock was ahead of this process's when a script last
	// replied OUTSIDE, so that a process whose clock is far off asks once and not twice.
	ahead atomic.Int64
}

// A Calendar gives five of the algorithm's ARGV.
type Calendar struct {
	At     int                      // the index of the first in the executor's Args
	Around func(now int64) [5]int64 // in microseconds; it must not block
}

func (i *Instants) here() int64 {
	if i.Here != nil {
		return i.Here()
	}
	return time.Now().UnixMicro()
}

// addConfig adds the algorithm's ARGV. setInstants sets the instants among them.
func (c *Command) addConfig() {
	at := len(c.args)
	c.args = append(c.args, c.exec.Args...)
	i := c.exec.Instants
	if i == nil {
		return
	}
	if len(c.around) < len(i.Of) {
		c.around = make([][5]int64, len(i.Of))
	}
	for n, calendar := range i.Of {
		for j := range c.around[n] {
			c.args[at+calendar.At+j] = &c.around[n][j]
		}
	}
}

// setInstants sets the instants: around the caller's clock, or around what the server's
// is taken to be.
func (c *Command) setInstants() {
	i := c.exec.Instants
	if i == nil {
		return
	}
	now := c.now
	if c.exec.Now == nil {
		now = i.here() + i.ahead.Load()
	}
	c.setAround(now)
	c.moved = false
}

func (c *Command) setAround(now int64) {
	for n, calendar := range c.exec.Instants.Of {
		c.around[n] = calendar.Around(now)
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
	c.setAround(now)
	c.moved = true
	return true
}
