package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// visit runs the program, makes a burst on its page, and ends it.
func visit(t *testing.T, redisAddr string) (said string) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, in, "127.0.0.1:0", redisAddr) }()
	said, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	url := regexp.MustCompile(`^http://127\.0\.0\.1:\d+`).FindString(said)
	require.NotEmpty(t, url, said)

	reply, err := http.Get(url)
	require.NoError(t, err)
	body, err := io.ReadAll(reply.Body)
	require.NoError(t, err)
	require.NoError(t, reply.Body.Close())
	require.Equal(t, http.StatusOK, reply.StatusCode)
	require.Contains(t, string(body), "<title>Rate limit playground</title>")

	events, err := http.Get(url + "/events") // a page that watches does not keep the program
	require.NoError(t, err)
	defer events.Body.Close()
	lines := bufio.NewScanner(events.Body)
	for _, algorithm := range []string{"token-bucket", "fixed-window", fair} {
		for _, ask := range [][2]string{
			{"/settings", `{"algorithm": "` + algorithm + `", "limit": 10, "window": 60, "plan": "basic", "callers": 2, "rate": 9, "policy": "deny"}`},
			{"/pause", `{"seconds": 60}`},
			{"/burst", `{"n": 5}`},
		} {
			reply, err := http.Post(url+ask[0], "application/json", strings.NewReader(ask[1]))
			require.NoError(t, err)
			require.NoError(t, reply.Body.Close())
			require.Equal(t, http.StatusNoContent, reply.StatusCode)
		}
		held := strings.ReplaceAll(algorithm, "-", "") + map[string]string{fair: `:{all}:user:2`}[algorithm]
		if algorithm != fair {
			held += `{user:2} (string): `
		}
		for lines.Scan() && !strings.Contains(lines.Text(), held) {
		}
		require.NoError(t, lines.Err())
	}
	stop()
	require.NoError(t, <-ended)
	return said
}

func TestPlaygroundHasARedisOfItsOwn(t *testing.T) {
	require.Contains(t, visit(t, ""), "(a Redis inside this process; Ctrl-C ends it)")
}

func TestPlaygroundLeavesNothingInARealRedis(t *testing.T) {
	server := redistest.Start(t)
	require.Contains(t, visit(t, server.Addr()), "(Redis at "+server.Addr()+"; Ctrl-C ends it)")
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	require.Zero(t, client.DBSize(t.Context()).Val())
}

func TestPlaygroundNamesTheRemedyForATakenAddress(t *testing.T) {
	require.ErrorContains(t, run(t.Context(), io.Discard, "127.0.0.1:1x", ""), "; -listen localhost:0 takes any free port")
}
