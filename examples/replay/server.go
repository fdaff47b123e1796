package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/tryacquire/ratelimit"
)

// A server is an embedded Redis whose clock is the log's, and a limiter on it.
type server struct {
	redis   *miniredis.Miniredis
	client  *redis.Client
	limiter ratelimit.Limiter
	now     int64 // the server's clock, microseconds since the Unix epoch
}

// newServer starts a server. It listens on no port.
func newServer(l limit) (*server, error) {
	s := &server{redis: miniredis.NewMiniRedis(), now: -1}
	s.redis.SetTime(time.Unix(earliest, 0).UTC())
	s.redis.ClockTTL(true) // keys expire as the log's clock goes on
	s.client = newClient(s.redis.Dial)
	var err error
	if s.limiter, err = l.build(s.client); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// newClient makes a client of what dial connects to.
func newClient(dial func() (net.Conn, error)) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr:     "127.0.0.1:0", // not dialed
		Dialer:   func(context.Context, string, string) (net.Conn, error) { return dial() },
		PoolSize: 1,
		// Without deadlines: a computer that is put to sleep in between goes on.
		ReadTimeout:  -2,
		WriteTimeout: -2,
		MaintNotificationsConfig: &maintnotifications.Config{ // which would look the address up
			Mode: maintnotifications.ModeDisabled,
		},
	})
}

func (s *server) close() {
	s.client.Close()
	s.redis.Close()
}

// tryAcquire takes one permit from key at the time at, which never goes back.
func (s *server) tryAcquire(ctx context.Context, at int64, key string) (allowed bool, err error) {
	if at != s.now { // each change makes miniredis look at all its keys
		s.now = at
		s.redis.SetTime(time.UnixMicro(at).UTC())
	}
	r, err := s.limiter.TryAcquire(ctx, key)
	if err != nil {
		return false, fmt.Errorf("deciding at %v: %w", time.UnixMicro(at).UTC(), err)
	}
	return r.Allowed, nil
}
