package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"sync"
)

// keyers append the key of a request to dst, for each -key.
var keyers = map[string]func(dst []byte, r request) []byte{
	"ip":         func(dst []byte, r request) []byte { return appendClient(dst, r.client) },
	"path":       func(dst []byte, r request) []byte { return appendPath(dst, r.line) },
	"user-agent": func(dst []byte, r request) []byte { return append(dst, r.agent...) },
	"ip+path": func(dst []byte, r request) []byte {
		return appendPath(append(appendClient(dst, r.client), ' '), r.line)
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

// The sorter of outcomes holds a byte of bits, one for each limit that allowed the request,
// and the key.
func byKey(a, b []byte) int { return bytes.Compare(a[1:], b[1:]) }

// replay reads the logs, replays them and sums up what happened.
func (p program) replay(ctx context.Context, cfg config) (rep *report, err error) {
	dir, err := os.MkdirTemp(p.tempDir, "replay-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	requests := &sorter{compare: byTime, dir: dir, chunkBytes: p.chunkBytes}
	defer requests.close()
	outcomes := &sorter{compare: byKey, dir: dir, chunkBytes: p.chunkBytes}
	defer outcomes.close()

	rep = newReport(cfg)
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
		rep.countKey(outcome[1:], verdicts(outcome[0]))
	}
}

// read adds the requests of one log.
func (p program) read(ctx context.Context, name string, cfg config, rep *report, add func([]byte) error) error {
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
type verdicts byte

func (v verdicts) allowed(limit int) bool { return v>>limit&1 == 1 }

// A decision is one request and what became of it.
type decision struct {
	at       int64 // microseconds since the Unix epoch
	key      string
	verdicts [2]bool // of each limit
}

// batchSize is how many requests are decided between two looks at the progress
// and the context.
const batchSize = 2048

// maxServers is among how many servers the keys are divided. They work side by
// side, and each visits only its own keys when its clock moves, which with long
// windows and many keys costs more than the decisions. But each takes about a
// megabyte.
const maxServers = 32

// decide asks every limit about every request, in the order of time, and passes
// what they say, with the key, to add.
//
// Keys do not touch one another, so each limit's keys are divided among several
// servers. A key stays with its server.
func (p program) decide(ctx context.Context, limits []limit, rep *report, requests *sorter, add func([]byte) error) error {
	shards := maxServers / len(limits)
	servers := make([][]*server, len(limits))
	for i, l := range limits {
		for range shards {
			s, err := newServer(l)
			if err != nil {
				return err
			}
			defer s.close()
			servers[i] = append(servers[i], s)
		}
	}
	sorted, err := requests.sorted()
	if err != nil {
		return err
	}
	seed := maphash.MakeSeed()
	var (
		record []byte
		batch  []decision
		done   int
		shares = make([][]*decision, shards)
	)
	for end := false; !end; {
		batch = batch[:0]
		for len(batch) < batchSize && !end {
			r, err := sorted.next()
			switch {
			case err == io.EOF:
				end = true
			case err != nil:
				return err
			default:
				batch = append(batch, decision{
					at:  int64(binary.BigEndian.Uint64(r)),
					key: string(r[timeSize:]),
				})
			}
		}
		for i := range shares {
			shares[i] = shares[i][:0]
		}
		for i := range batch {
			shard := maphash.String(seed, batch[i].key) % uint64(shards)
			shares[shard] = append(shares[shard], &batch[i])
		}
		if err := decideBatch(ctx, servers, shares); err != nil {
			return err
		}
		for _, d := range batch {
			var v verdicts
			for i := range limits {
				if d.verdicts[i] {
					v |= 1 << i
				}
			}
			rep.count(d.at, v)
			record = append(append(record[:0], byte(v)), d.key...)
			if err := add(record); err != nil {
				return err
			}
		}
		done += len(batch)
		p.progress.showShare(done, rep.requests)
	}
	return nil
}

// decideBatch lets every server decide its share.
func decideBatch(ctx context.Context, servers [][]*server, shares [][]*decision) error {
	var wg sync.WaitGroup
	errs := make([]error, len(servers)*len(shares))
	for limit := range servers {
		for shard, share := range shares {
			wg.Go(func() {
				for _, d := range share {
					var err error
					if d.verdicts[limit], err = servers[limit][shard].tryAcquire(ctx, d.at, d.key); err != nil {
						errs[limit*len(shares)+shard] = err
						return
					}
				}
			})
		}
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err // one is enough
		}
	}
	return nil
}
