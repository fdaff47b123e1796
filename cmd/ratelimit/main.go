// Ratelimit is a program for those who operate limiters.
//
//	ratelimit top                        the keys that are limited now, and how close others are
//	ratelimit inspect user:42            what a key holds, in words
//	ratelimit replay access.log          what would this limit have done to that traffic?
//	ratelimit scripts --find 2c03c4      the script that SLOWLOG or an error names
//	ratelimit check limits.yaml          the mistakes in a file of limits
//	ratelimit serve --config folder      limits for Envoy
//
// Each command explains its flags with --help.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	p := program{
		stdin:      interruptible{ctx, os.Stdin},
		stdout:     os.Stdout,
		stderr:     os.Stderr,
		typing:     terminal(os.Stdin),
		environ:    os.Getenv,
		pause:      pause,
		tempDir:    os.TempDir(),
		chunkBytes: defaultChunkBytes,
	}
	if terminal(os.Stdout) {
		p.screen = func() (width, height int) {
			width, height, err := term.GetSize(int(os.Stdout.Fd()))
			if err != nil {
				return 80, 24
			}
			return width, height
		}
	}
	if terminal(os.Stderr) {
		p.progress = newProgress(os.Stderr)
	}
	os.Exit(p.command(ctx, os.Args[1:]))
}

// A program is a run's surroundings.
type program struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	typing         bool                       // stdin is a terminal
	screen         func() (width, height int) // of stdout, nil if that is no terminal
	environ        func(name string) string
	pause          func(context.Context, time.Duration) error
	progress       *progress
	tempDir        string
	chunkBytes     int
}

// pause waits, or returns the context's error when that ends.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
