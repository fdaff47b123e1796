// Ratelimit is a program for those who operate limiters.
//
//	ratelimit replay access.log          what would this limit have done to that traffic?
//	ratelimit scripts                    the scripts that Redis runs, and their digests
//	ratelimit scripts -find 2c6b27 -line 143
//
// Each command explains its flags with -h.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

const help = `Usage: ratelimit COMMAND [flags] [arguments]

  replay   what would this limit have done to yesterday's traffic?
  scripts  the scripts that Redis runs: lists, prints and finds them

ratelimit COMMAND -h explains the flags of a command.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	p := program{
		stdin:      interruptible{ctx, os.Stdin},
		stdout:     os.Stdout,
		stderr:     os.Stderr,
		typing:     terminal(os.Stdin),
		tempDir:    os.TempDir(),
		chunkBytes: defaultChunkBytes,
	}
	if terminal(os.Stderr) {
		p.progress = newProgress(os.Stderr)
	}
	os.Exit(p.command(ctx, os.Args[1:]))
}

// Exit codes.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

// A program is a run's surroundings.
type program struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	typing         bool // stdin is a terminal
	progress       *progress
	tempDir        string
	chunkBytes     int
}

// command runs the command that args name, and returns the exit code.
func (p program) command(ctx context.Context, args []string) int {
	if len(args) == 0 {
		fmt.Fprint(p.stderr, help)
		return exitUsage
	}
	switch args[0] {
	case "replay":
		return p.run(ctx, args[1:])
	case "scripts":
		return p.scripts(args[1:])
	case "help", "-h", "-help", "--help":
		fmt.Fprint(p.stdout, help)
		return exitDone
	}
	fmt.Fprintf(p.stderr, "ratelimit: %q is no command; there are replay and scripts (ratelimit -h)\n", args[0])
	return exitUsage
}
