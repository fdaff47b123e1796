package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// TestPasswords are given by the environment or a file, and no error shows them.
func TestPasswords(t *testing.T) {
	const secret = "s3cr#t@/:"
	server := redistest.Start(t, redistest.Password(secret))
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte(secret+"\n"), 0o600))
	urlFile := filepath.Join(t.TempDir(), "url")
	require.NoError(t, os.WriteFile(urlFile, []byte("redis://:s3cr%23t%40%2F%3A@"+server.Addr()+"\n"), 0o600))
	at := "asking Redis at " + server.Addr() + ": "
	for _, tt := range []struct {
		environ map[string]string
		args    []string
		code    int
		stderr  string
	}{
		{map[string]string{"REDIS_PASSWORD": secret}, []string{"--addr", server.Addr()}, exitDone, ""},
		{nil, []string{"--addr", server.Addr(), "--password-file", file}, exitDone, ""},
		{nil, []string{"--url-file", urlFile}, exitDone, ""},
		{map[string]string{"REDIS_URL": "redis://:s3cr%23t%40%2F%3A@" + server.Addr()}, nil, exitDone, ""},
		{nil, []string{"--addr", server.Addr()}, exitFailed, at + "NOAUTH Authentication required. (it wants a password: give REDIS_PASSWORD or --password-file, and --user if it is not the default user's)"},
		{map[string]string{"REDIS_PASSWORD": "wrong"}, []string{"--addr", server.Addr()}, exitFailed, at + "WRONGPASS invalid username-password pair or user is disabled. (the password or --user is wrong: see REDIS_URL, REDIS_PASSWORD and --password-file)"},
		{map[string]string{"REDIS_URL": "redis://:" + secret + "@" + server.Addr()}, nil, exitUsage, "REDIS_URL is not like redis://user@host:6379/0: "},
		{map[string]string{"REDIS_URL": "http://:secret@" + server.Addr()}, nil, exitUsage, "REDIS_URL is not like redis://user@host:6379/0: redis: invalid URL scheme: http"},
		{nil, []string{"--addr", "redis://:secret@" + server.Addr()}, exitUsage, "--addr takes host:port; put a URL into REDIS_URL or --url-file, because every user of the machine can read arguments"},
		{nil, []string{"--password-file", filepath.Join("no", "such")}, exitFailed, "such"},
	} {
		got := liveWith(t, tt.environ, append([]string{"top"}, tt.args...)...)
		require.Equal(t, tt.code, got.code, "%q: %s", tt.args, got.stderr)
		require.Contains(t, got.stderr, tt.stderr)
		require.NotContains(t, got.stderr, "s3cr")
		require.NotContains(t, got.stderr, "secret")
	}
}

// lookersRules are the ACL rules of a user who only looks, as docs/operating.md has them.
func lookersRules(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../docs/operating.md")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(text), "\nuser operator ")
	require.True(t, ok)
	rules, _, _ := strings.Cut(rest, "\n")
	return strings.Fields(rules)
}

// TestWhoeverLooksNeedsFewPermissions: exactly those of docs/operating.md.
func TestWhoeverLooksNeedsFewPermissions(t *testing.T) {
	rules := lookersRules(t)
	server := redistest.Start(t, redistest.ACL("operator", rules...))
	client := server.Client(t)
	look := func() (codes []int) {
		for _, args := range [][]string{
			{"top"}, {"inspect", "--name", "api", "user:42"}, {"inspect", "--name", "login", "user:42"}, {"inspect", "--name", "jobs", "batch"},
			{"inspect", "--name", "hash", "k"},
		} {
			got := liveWith(t, map[string]string{"REDIS_PASSWORD": "secret"}, append(args, "--addr", server.Addr(), "--user", "operator")...)
			codes = append(codes, got.code)
		}
		return codes
	}
	used(t, &limitertest.Stage{Client: client, Admin: client})
	hash := ratelimit.Must(ratelimit.NewSlidingWindow(client, 5, time.Hour, ratelimit.WithStorage(ratelimit.StorageHash), ratelimit.WithName("hash")))
	_, err := hash.TryAcquire(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, make([]int, 5), look())
	for _, rule := range rules {
		if command, ok := strings.CutPrefix(rule, "+"); ok {
			require.NoError(t, client.Do(t.Context(), "ACL", "SETUSER", "operator", "-"+command).Err())
			require.Contains(t, look(), exitFailed, "without %s", command)
			require.NoError(t, client.Do(t.Context(), "ACL", "SETUSER", "operator", "+"+command).Err())
		}
	}
	require.Equal(t, make([]int, 5), look())
}

func TestARefusedConnectionNamesTheRemedy(t *testing.T) {
	got := liveWith(t, nil, "top", "--addr", "127.0.0.1:1")
	require.Equal(t, exitFailed, got.code)
	require.Contains(t, got.stderr, "asking Redis at 127.0.0.1:1: dial tcp 127.0.0.1:1: ")
	require.Contains(t, got.stderr, "(is it running, and does REDIS_URL or --addr name it?)\n")
}

// TestTLS: without it, the error names it.
func TestTLS(t *testing.T) {
	server := redistest.Start(t, redistest.TLS())
	got := liveWith(t, nil, "top", "--addr", server.Addr())
	require.Equal(t, exitFailed, got.code)
	require.Contains(t, got.stderr, "(does it want TLS (--tls, or rediss:// in REDIS_URL)?)\n")
	got = liveWith(t, nil, "top", "--addr", server.Addr(), "--tls")
	require.Equal(t, exitFailed, got.code)
	require.Contains(t, got.stderr, "certificate", "the server's certificate is its own")
}
