package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestProgress(t *testing.T) {
	var b bytes.Buffer
	now := time.Now()
	p := newProgress(&b)
	p.now = func() time.Time { return now }
	p.quiet = now.Add(progressAfter)
	shown := func() string {
		defer b.Reset()
		return b.String()
	}

	p.show("read %s lines", "4,096")
	p.showShare(0, 4000)
	p.clear()
	require.Empty(t, shown(), "a short run shows nothing")

	now = now.Add(progressAfter)
	p.show("read %s lines", "8,192")
	require.Equal(t, "\r\x1b[Kread 8,192 lines", shown())
	p.show("read %s lines", "9,000")
	require.Empty(t, shown(), "too soon")

	now = now.Add(9 * time.Second)
	p.showShare(1000, 4000)
	require.Equal(t, "\r\x1b[Kreplayed 1,000 of 4,000 requests (25.0 %), about 30s left", shown())
	p.clear()
	require.Equal(t, "\r\x1b[K", shown())
	p.clear()
	require.Empty(t, shown(), "cleared once")
}

func TestNoProgress(t *testing.T) {
	var p *progress // no terminal
	p.show("x")
	p.showShare(1, 2)
	p.clear()
}

func TestTerminal(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	defer f.Close()
	require.False(t, terminal(f))
	f.Close()
	require.False(t, terminal(f))
}
