package limitertest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
)

// A Gate makes calls of a limiter wait together, so that they are merged. While it is
// closed, commands wait in front of the client's connections, and calls wait for these
// commands.
type Gate struct{ now atomic.Pointer[crowd] }

// NewGate puts a gate in front of a client's connections.
func NewGate(client *redis.Client) *Gate {
	g := &Gate{}
	client.AddHook(fakes.Hook{Command: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if c := g.now.Load(); c != nil {
			c.pass(cmd)
		}
		return next(ctx, cmd)
	}})
	return g
}

// A Reply is what one call returned.
type Reply struct {
	Key string
	ratelimit.Result
	Err error
}

// Together asks for one permit of each key, several times, in concurrent calls and behind
// the closed gate, so that one execution decides many of the calls. It fails the test if
// no execution carried several calls.
func (g *Gate) Together(t testing.TB, l ratelimit.Limiter, keys ...string) []Reply {
	t.Helper()
	const calls = 40 // sixteen commands may be in flight at a time; the other calls have to wait
	var replies []Reply
	for len(replies) < calls {
		for _, key := range keys {
			replies = append(replies, Reply{Key: key})
		}
	}
	c := &crowd{open: make(chan struct{}), met: make(chan struct{})}
	g.now.Store(c)
	var called, returned sync.WaitGroup
	for i := range replies {
		called.Add(1)
		returned.Go(func() {
			called.Done()
			replies[i].Result, replies[i].Err = l.TryAcquire(ctx, replies[i].Key)
		})
	}
	called.Wait()
	select {
	case <-c.met:
	case <-time.After(10 * time.Millisecond): // the others wait for commands of one script
	}
	close(c.open)
	returned.Wait()
	require.Less(t, c.commands, len(replies), "no two calls were decided together")
	return replies
}

// A crowd is the calls of one use of a gate.
type crowd struct {
	open chan struct{}
	met  chan struct{} // closed by the first command of another script: one of both carries several calls

	mu       sync.Mutex // guards all below
	commands int
	first    string // the script of the first command
	has      bool   // met is closed
}

func (c *crowd) pass(cmd redis.Cmder) {
	if cmd.Name() == "evalsha" {
		c.note(Text(cmd.Args()[1]))
	}
	<-c.open
}

func (c *crowd) note(script string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.commands++
	switch {
	case c.first == "":
		c.first = script
	case c.first != script && !c.has:
		c.has = true
		close(c.met)
	}
}

// Text is an argument of a command. Limiters pass it as a string or as a pointer to a
// string.
func Text(arg any) string {
	if p, ok := arg.(*string); ok {
		return *p
	}
	return arg.(string)
}
