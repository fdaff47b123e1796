package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"
)

func TestQuickstart(t *testing.T) {
	server := miniredis.RunT(t)
	server.ClockTTL(true)
	now := time.Unix(1_763_670_000, 0)
	server.SetTime(now)
	var out bytes.Buffer
	require.NoError(t, run(context.Background(), &out, server.Addr(), func(d time.Duration) {
		now = now.Add(d)
		server.SetTime(now)
	}))
	require.Contains(t, out.String(), `
Token bucket: a burst of 3, then 4 a second
  request 1: allowed, 2 of 3 left
  request 2: allowed, 1 of 3 left
  request 3: allowed, 0 of 3 left
  request 4: denied, retry after 250ms
  250ms later: allowed is true, 0 of 3 left
`)
	require.Equal(t, 7, strings.Count(out.String(), "later: allowed is true"))
	require.Empty(t, server.Keys(), "it leaves nothing behind")
}

func TestQuickstartNeedsNoServer(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(context.Background(), &out, "", time.Sleep))
	require.Equal(t, 7, strings.Count(out.String(), "later: allowed is true"))
}

func TestQuickstartReportsThatRedisIsDown(t *testing.T) {
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	require.ErrorContains(t, run(ctx, &out, "127.0.0.1:1", time.Sleep), `key "user:42"`)
}
