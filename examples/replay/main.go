// Replay answers "what would this limit have done to yesterday's traffic?"
//
// It reads access logs, takes one permit for every request at the time that the
// request was made, and reports what would have been allowed and denied:
//
//	go run ./examples/replay access.log
//	go run ./examples/replay -rate 10/m -burst 20 access.log
//	go run ./examples/replay -algorithm sliding-window -limit 1000 -window 1h access.log
//	go run ./examples/replay -algorithm sliding-log -rule 10/s,100/m -key ip+path access.log
//	zcat access.log.*.gz | go run ./examples/replay -key user-agent -
//
// No Redis is needed: the limiters run their scripts on an embedded miniredis
// whose clock is the log's.
//
// # Logs
//
// Logs are in the common or combined format of Apache and nginx, plain or gzipped;
// several logs are read as one. Without a file, or for the file "-", replay reads
// standard input. Lines without a request are counted, and the first three of them are
// shown; blank lines are ignored.
//
// Requests are replayed in the order of their times, whatever their order in
// the file: servers write a line when a request ends, and logs of several
// servers are often simply joined. Requests of the same second keep the order
// of the file.
//
// # Keys
//
// Every client address has a limit of its own; -key chooses another key: path (without
// the query), user-agent, or ip+path. A request without that part (no path, or no user
// agent in the common format) counts for the key "-".
//
// # Limits
//
// The default is a token bucket of 20 requests per minute and a burst of 20.
// -algorithm chooses token-bucket, leaky-bucket, fixed-window, sliding-window or
// sliding-log. With any of them, -rate 10/m gives the limit: permits per s, m, h, d, or
// a duration, as in 10/90s; -limit 10 -window 1m means the same. Without -burst or
// -capacity, a bucket's is the count of the rate. With -h the program lists all flags.
//
// # Comparing two limits
//
// Two algorithms with the same flags:
//
//	go run ./examples/replay -algorithm token-bucket,fixed-window -rate 10/m access.log
//
// Any two limits: -vs takes the flags of the second limit that differ, after its
// algorithm if that differs too.
//
//	go run ./examples/replay -rate 10/m -burst 20 -vs '-burst 40' access.log
//	go run ./examples/replay -rate 10/m -burst 20 -vs 'fixed-window -rate 600/h' access.log
//
// The report then has a column for each limit, and says how many requests the two
// decided differently.
//
// # What it cannot know
//
// Replay knows only the requests that were made. Clients would have made other requests
// after a denial: some wait, some retry at once, some leave. And a log with times in
// whole seconds does not say in which order requests came within a second.
//
// # Time and memory
//
// Each decision runs a script on miniredis: ten thousand take seconds, a million
// minutes. The keys are spread over several instances, which work side by side.
//
// Memory does not grow with the log: 150 MiB are enough for any log. Requests are sorted in
// chunks of 16 MiB; a log that needs more (a million requests by client address
// fill two) goes through temporary files in the directory of os.TempDir, which
// take about 40 bytes a request and are removed at the end, after an error and
// when interrupted.
//
// The state that Redis would hold takes memory in addition: about a kilobyte for each key
// whose state has not expired, and more where a limiter keeps every permit. These are the
// keys of the last minute for a limit per minute, and the keys of the last day for a limit
// per day. A long window over many keys is also slower, because miniredis visits all keys
// that have not expired whenever the clock moves.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

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
	os.Exit(p.run(ctx, os.Args[1:]))
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

// run does what args say and returns the exit code.
func (p program) run(ctx context.Context, args []string) int {
	cfg, err := parseArgs(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(p.stdout, usage())
		return exitDone
	case err != nil:
		fmt.Fprintf(p.stderr, "replay: %v\n(replay -h explains every flag)\n", err)
		return exitUsage
	case p.typing && cfg.readsStdin():
		fmt.Fprintln(p.stderr, "replay: no log to read: name a file, or pipe one in, as in: replay access.log")
		return exitUsage
	}

	rep, err := p.replay(ctx, cfg)
	p.progress.clear()
	switch {
	case err != nil && ctx.Err() != nil:
		fmt.Fprintln(p.stderr, "replay: interrupted, nothing is left behind")
		return exitInterrupted
	case err != nil:
		fmt.Fprintf(p.stderr, "replay: %v\n", err)
		return exitFailed
	}
	if _, err := io.WriteString(p.stdout, rep.String()); err != nil {
		fmt.Fprintf(p.stderr, "replay: writing the report: %v\n", err)
		return exitFailed
	}
	if rep.requests == 0 && rep.skipped > 0 {
		return exitFailed // not an access log at all
	}
	return exitDone
}

// interruptible reads from r until ctx ends, also while r has nothing to give. A
// read that it leaves behind then lasts until the program ends.
type interruptible struct {
	ctx context.Context
	r   io.Reader
}

func (i interruptible) Read(p []byte) (int, error) {
	type result struct {
		n   int
		err error
	}
	done := make(chan result, 1)
	go func() {
		n, err := i.r.Read(p)
		done <- result{n, err}
	}()
	select {
	case r := <-done:
		return r.n, r.err
	case <-i.ctx.Done():
		return 0, i.ctx.Err()
	}
}
