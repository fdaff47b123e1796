package ratelimittest

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// An Env is an embedded Redis with a client, and the outages that a test needs. Its methods are
// safe for concurrent use.
type Env struct {
	t      testing.TB
	server *miniredis.Miniredis
	link   *link
	client *redis.Client
	bubble bool // New was called in one
}

// New starts a miniredis whose clock is time.Now, and closes it when the test ends. It does not
// use the network.
//
// Call New within synctest.Test, and build everything that is tested there too: clients,
// limiters, decorators, the service itself. New also works outside of a bubble, for tests that
// need real sockets; the clock is then the real one, and [Env.Advance] fails the test.
func New(t testing.TB) *Env {
	t.Helper()
	e := &Env{t: t, server: miniredis.NewMiniRedis(), bubble: inBubble()}
	e.server.ClockTTL(true)
	first, err := e.server.Dial() // starts the server
	if err != nil {
		t.Fatalf("ratelimittest: New: miniredis does not start: %v", err)
	}
	_ = first.Close()
	e.link = newLink(e.server.Server())
	e.client = redis.NewClient(e.Options())
	t.Cleanup(func() {
		e.Up() // nobody is served late
		_ = e.client.Close()
		e.server.Close()
	})
	return e
}

// Client is the client for the limiters of the test. It is closed when the test ends.
func (e *Env) Client() *redis.Client { return e.client }

// mostCallers have a connection each. Those who wait for one share go-redis's timers, also with other bubbles, where a
// timer of this one ends the process.
const mostCallers = 1000

// Options returns the options of the Env's own client, for a client of another kind. Close such
// a client before the test ends. If you make options of your own, set Dialer to [Env.Dial] and
// Addr to an IP address: go-redis looks up host names, which a bubble does not allow. Also
// disable maintenance notifications, as here: go-redis holds a mutex while it asks the server for
// them, and time in a bubble stands still while another connection waits for a mutex.
//
// No command is tried twice, so that a call during [Env.Down] takes no time. A call that gets no
// answer ends after 5 seconds, the ReadTimeout.
func (e *Env) Options() *redis.Options {
	return &redis.Options{
		Addr:        "127.0.0.1:6379",
		Dialer:      e.Dial,
		MaxRetries:  -1,
		PoolSize:    mostCallers,
		ReadTimeout: 5 * time.Second,

		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// Dial connects to the Env's Redis, whatever address it gets. It is the Dialer of [Env.Options].
func (e *Env) Dial(_ context.Context, _, _ string) (net.Conn, error) { return e.link.dial() }

// Miniredis returns the server, so that a test can look at keys or set states. Its SetTime
// changes only the time of Redis, and not that of decorators; in a bubble use [Env.Advance].
func (e *Env) Miniredis() *Miniredis { return &Miniredis{e.server, e.t} }

// Advance lets d pass, for everything in the bubble: the server's clock and TTLs, denials in
// memory, breakers and their probes, budgets, leases, local limiters, reservations, callers that
// wait, deadlines of contexts, and the service's own timers. Everything that is due within d
// happens in order, at its instant. When Advance returns, all goroutines of the bubble have done
// everything that they can do at the new time. It takes no real time.
//
// It fails the test outside of a bubble, because there only some of these clocks would move.
func (e *Env) Advance(d time.Duration) {
	e.t.Helper()
	const remedy = "call New and Advance within synctest.Test(t, func(t *testing.T) { … })"
	switch {
	case d < 0:
		e.t.Fatalf("ratelimittest: Advance(%v): time does not go back", d)
	case !e.bubble && !inBubble():
		e.t.Fatalf("ratelimittest: Advance(%v): the test is in no bubble of testing/synctest, in which all clocks are one; %s", d, remedy)
	case !e.bubble:
		e.t.Fatalf("ratelimittest: Advance(%v): New was called outside of the bubble, so that its Redis has the real clock; %s", d, remedy)
	}
	time.Sleep(d)
	synctest.Wait()
}

// inBubble reports whether the caller is in a bubble. Wait panics if it is not, and if another
// goroutine of the bubble is in Wait.
func inBubble() (in bool) {
	defer func() {
		if p := recover(); p != nil {
			in = !strings.Contains(fmt.Sprint(p), "not in a bubble")
		}
	}()
	synctest.Wait()
	return true
}
