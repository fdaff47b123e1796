package main

import (
	"net"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"
)

// A run that is suspended for a while, by a shell or with the computer, must not
// fail by a timeout when it goes on.
func TestClientSetsNoDeadlines(t *testing.T) {
	m := miniredis.NewMiniRedis()
	defer m.Close()
	c := newClient(func() (net.Conn, error) {
		conn, err := m.Dial()
		return withoutDeadlines{conn, t}, err
	})
	defer c.Close()
	require.NoError(t, c.Ping(t.Context()).Err())
	require.NoError(t, c.Set(t.Context(), "a", 1, 0).Err())
}

type withoutDeadlines struct {
	net.Conn
	t *testing.T
}

func (w withoutDeadlines) SetDeadline(at time.Time) error      { return w.refuse(at) }
func (w withoutDeadlines) SetReadDeadline(at time.Time) error  { return w.refuse(at) }
func (w withoutDeadlines) SetWriteDeadline(at time.Time) error { return w.refuse(at) }

func (w withoutDeadlines) refuse(at time.Time) error {
	require.Zero(w.t, at)
	return nil
}

func TestServersClockIsTheLogs(t *testing.T) {
	cfg, err := parseArgs([]string{"-algorithm", "fixed-window", "-rate", "1/m"})
	require.NoError(t, err)
	s, err := newServer(cfg.limits[0])
	require.NoError(t, err)
	defer s.close()
	start := logStart.UnixMicro()
	for _, tt := range []struct {
		after   time.Duration
		allowed bool
	}{
		{0, true}, {0, false}, {time.Minute - time.Millisecond, false}, {time.Minute, true}, {2 * time.Minute, true},
	} {
		allowed, err := s.tryAcquire(t.Context(), start+tt.after.Microseconds(), "key")
		require.NoError(t, err)
		require.Equal(t, tt.allowed, allowed, tt.after)
		if allowed {
			require.Equal(t, time.Minute, s.redis.TTL(s.redis.Keys()[0]), "keys live by the log's clock")
		}
	}
	s.redis.SetTime(logStart.Add(time.Hour))
	require.Empty(t, s.redis.Keys())
}
