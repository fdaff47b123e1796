package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tryacquire/ratelimit/simulate"
)

// keyers append the key of a request to dst, for each -key.
var keyers = map[string]func(dst []byte, r request) []byte{
	"ip":         func(dst []byte, r request) []byte { return append(dst, r.client...) },
	"path":       func(dst []byte, r request) []byte { return appendPath(dst, r.line) },
	"user-agent": func(dst []byte, r request) []byte { return append(dst, r.agent...) },
	"ip+path": func(dst []byte, r request) []byte {
		return appendPath(append(append(dst, r.client...), ' '), r.line)
	},
}

// Longer keys are cut and distinguished by a hash, because a path can take a line of a
// megabyte.
const maxKey = 256

func shorten(key []byte) []byte {
	if len(key) <= maxKey {
		return key
	}
	sum := sha256.Sum256(key)
	return fmt.Appendf(key[:maxKey-32], "…%x", sum[:8])
}

// The sorter of requests holds their time, in eight bytes, and their key.
const timeSize = 8

func byTime(a, b []byte) int { return bytes.Compare(a[:timeSize], b[:timeSize]) }

// The sorter of outcomes holds four bytes of bits, one for each limit that allowed the request,
// and the key.
const verdictSize = 4

func byKey(a, b []byte) int { return bytes.Compare(a[verdictSize:], b[verdictSize:]) }

// replay reads the logs, replays them and sums up what happened.
func (p program) replay(ctx context.Context, cfg config) (rep *findings, err error) {
	dir, err := os.MkdirTemp(p.tempDir, "replay-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	requests := &sorter{compare: byTime, dir: dir, chunkBytes: p.chunkBytes}
	defer requests.close()
	outcomes := &sorter{compare: byKey, dir: dir, chunkBytes: p.chunkBytes}
	defer outcomes.close()

	rep = newFindings(cfg)
	for _, name := range cfg.files {
		if err := p.read(ctx, name, cfg, rep, requests.add); err != nil {
			return nil, err
		}
	}
	if err := p.decide(ctx, cfg.limits, rep, requests, outcomes.add); err != nil {
		return nil, err
	}
	keys, err := outcomes.sorted()
	if err != nil {
		return nil, err
	}
	for {
		outcome, err := keys.next()
		if err == io.EOF {
			rep.end()
			return rep, ctx.Err()
		}
		if err != nil {
			return nil, err
		}
		rep.countKey(outcome[verdictSize:], verdicts(binary.BigEndian.Uint32(outcome)))
	}
}

// read adds the requests of one log.
func (p program) read(ctx context.Context, name string, cfg config, rep *findings, add func([]byte) error) error {
	in := p.stdin
	if name == "-" {
		name = "standard input"
	} else {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	lines, err := newLineReader(in)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	keyOf := keyers[cfg.key]
	var record []byte
	for {
		line, tooLong, err := lines.next()
		if err == io.EOF {
			return nil
		}
		if errors.Is(err, io.ErrUnexpectedEOF) && lines.number > 0 { // gzip: of a log that is still written, or was copied in part
			rep.truncated = append(rep.truncated, truncatedLog{name, lines.number})
			return nil
		}
		if err == nil && lines.number%4096 == 0 {
			p.progress.show("read %s lines", number(rep.requests+rep.skipped))
			err = ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("%s, after line %d: %w", name, lines.number, err)
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		r, err := parseLine(line)
		if tooLong {
			err = errTooLong
		}
		if err == nil {
			err = cfg.clients.resolve(&r)
		}
		if err != nil {
			rep.skip(name, lines.number, err, line)
			continue
		}
		rep.countRequest(r)
		record = binary.BigEndian.AppendUint64(record[:0], uint64(r.at))
		record = keyOf(record, r)
		if len(record) == timeSize {
			record = append(record, '-')
		}
		if err := add(append(record[:timeSize], shorten(record[timeSize:])...)); err != nil {
			return err
		}
	}
}

var errTooLong = fmt.Errorf("it is longer than %s bytes", number(maxLine))

// verdicts has a bit for each limit, set if it allowed the request.
type verdicts uint32

func (v verdicts) allowed(limit int) bool { return v>>limit&1 == 1 }

// decide asks every limit about every request, in the order of time, and passes what they say, with
// the key, to add.
func (p program) decide(ctx context.Context, limits []limit, rep *findings, requests *sorter, add func([]byte) error) error {
	var limiters []*simulate.Limiter
	for _, l := range limits {
		limiter, err := l.simulated()
		if err != nil {
			return err
		}
		limiters = append(limiters, limiter)
	}
	sorted, err := requests.sorted()
	if err != nil {
		return err
	}
	var record []byte
	for done := 0; ; done++ {
		if done%4096 == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			p.progress.showShare(done, rep.requests)
		}
		r, err := sorted.next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		micros, key := int64(binary.BigEndian.Uint64(r)), string(r[timeSize:])
		at := time.UnixMicro(micros)
		var v verdicts
		for i, limiter := range limiters {
			decision, err := limiter.TryAcquire(at, key)
			if err != nil {
				return fmt.Errorf("deciding at %v: %w", at.UTC(), err)
			}
			if decision.Allowed {
				v |= 1 << i
			}
		}
		rep.count(micros, v)
		record = append(binary.BigEndian.AppendUint32(record[:0], uint32(v)), key...)
		if err := add(record); err != nil {
			return err
		}
	}
}
