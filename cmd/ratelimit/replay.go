package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/tryacquire/ratelimit/cmd/ratelimit/internal/report"
)

func (p program) replayCommand() *cobra.Command {
	f := newReplayFlags()
	cmd := &cobra.Command{
		Use:     "replay [flags] [log ...]",
		Short:   "What would this limit have done to yesterday's traffic?",
		Long:    replayLong,
		Example: replayExamples,
		RunE: func(cmd *cobra.Command, files []string) error {
			cfg, err := f.config(files)
			if err != nil {
				return usageError{err}
			}
			if p.typing && cfg.readsStdin() {
				return usagef("no log to read: name a file, or pipe one in, as in: ratelimit replay access.log")
			}
			return p.runReplay(cmd.Context(), cfg, asJSON(cmd))
		},
	}
	f.define(cmd.Flags())
	complete(cmd, "algorithm", algorithmNames...)
	complete(cmd, "storage", storageNames()...)
	complete(cmd, "key", slices.Sorted(maps.Keys(keyers))...)
	return cmd
}

// runReplay replays, and writes the reports.
func (p program) runReplay(ctx context.Context, cfg config, asJSON bool) error {
	began := time.Now()
	found, err := p.replay(ctx, cfg)
	p.progress.clear()
	if err != nil {
		return err
	}
	took := time.Since(began)
	if cfg.page != "" {
		if err := found.writePage(cfg.page, took); err != nil {
			return fmt.Errorf("writing the page: %w", err)
		}
	}
	if asJSON {
		d := found.data(took)
		err = p.writeJSON(struct {
			report.Data
			BucketSeconds float64 `json:"bucket_seconds"`
			TookSeconds   float64 `json:"took_seconds"`
		}{d, d.BucketWidth.Seconds(), d.Took.Seconds()})
	} else if _, err = io.WriteString(p.stdout, found.String()); err != nil {
		err = fmt.Errorf("writing the report: %w", err)
	}
	if err == nil && found.requests == 0 && found.skipped > 0 {
		return fmt.Errorf("no line of %d could be read", found.skipped) // not an access log at all
	}
	return err
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
