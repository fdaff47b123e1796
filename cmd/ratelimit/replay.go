package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"
)

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

	began := time.Now()
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
	if cfg.page != "" {
		if err := rep.writePage(cfg.page, time.Since(began)); err != nil {
			fmt.Fprintf(p.stderr, "replay: writing the page: %v\n", err)
			return exitFailed
		}
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
