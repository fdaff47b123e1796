package main

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit/internal/keyname"
	"github.com/tryacquire/ratelimit/internal/state"
)

// What one request of a scan asks of a server at most. The server serves others between two requests.
const (
	scanCount   = 250 // keys that SCAN looks at, about
	readAtOnce  = 250 // keys that are read
	readEntries = 50  // entries of a log that have left its window: 25,000 elements of lists in all
)

// A scan looks at the keys of one server by SCAN, and waits between its requests so that the server works for
// it no more than a share of the time. Its requests are timed on the way there and back, which is longer than
// the server works on them.
type scan struct {
	client redis.Cmdable
	share  float64
	most   int // keys of limiters that are read; of names, those of all keys
	wants  func(keyname.Parts) bool
	pause  func(context.Context, time.Duration) error
	now    func() time.Time

	looked  int  // keys of the server, limiters' or not
	read    int  // keys of limiters that were read, or whose names were; SCAN may have returned one twice
	damaged int  // of them, those that hold no state
	cut     bool // there are more than most
}

// each visits the states of all keys that the scan wants.
func (s *scan) each(ctx context.Context, visit func(state.State), progress func()) error {
	return s.pages(ctx, func(names []string) (enough bool, err error) {
		wanted := names[:0]
		for _, name := range names {
			if parts, ok := keyname.Parse(name); ok && s.wants(parts) {
				wanted = append(wanted, name)
			}
		}
		if room := s.most - s.read; len(wanted) > room {
			wanted, s.cut = wanted[:room], true
		}
		err = s.states(ctx, wanted, visit)
		progress()
		return s.read >= s.most, err
	})
}

// names visits the names of the keys of limiters, and reads no state.
func (s *scan) names(ctx context.Context, visit func(keyname.Parts), progress func()) error {
	return s.pages(ctx, func(names []string) (enough bool, err error) {
		for _, name := range names {
			if parts, ok := keyname.Parse(name); ok {
				s.read++
				visit(parts)
			}
		}
		progress()
		return s.looked >= s.most, nil
	})
}

// pages visits the names of all keys, those of one SCAN at a time, until that is enough.
func (s *scan) pages(ctx context.Context, visit func([]string) (enough bool, err error)) error {
	var cursor uint64
	for {
		var names []string
		err := s.timed(ctx, func() (err error) {
			names, cursor, err = s.client.Scan(ctx, cursor, "", scanCount).Result()
			return err
		})
		if err != nil {
			return err
		}
		s.looked += len(names)
		enough, err := visit(names)
		if err != nil {
			return err
		}
		if cursor == 0 || enough {
			s.cut = s.cut || cursor != 0
			return nil
		}
	}
}

// states visits the states of the keys of these names that exist.
func (s *scan) states(ctx context.Context, names []string, visit func(state.State)) error {
	for now := range slices.Chunk(names, readAtOnce) {
		var states []state.State
		err := s.timed(ctx, func() (err error) {
			states, err = state.Read(ctx, s.client, now, readEntries)
			return err
		})
		if err != nil {
			return err
		}
		for _, one := range states {
			if one.Err != nil {
				s.damaged++
			}
			if one.Exists || one.Err != nil {
				s.read++
				visit(one)
			}
		}
	}
	return nil
}

// timed makes a request, and then waits as long as the share asks for.
func (s *scan) timed(ctx context.Context, request func() error) error {
	began := s.now()
	if err := request(); err != nil {
		return err
	}
	took := s.now().Sub(began)
	if s.share >= 1 {
		return ctx.Err()
	}
	return s.pause(ctx, time.Duration(float64(took)*(1-s.share)/s.share))
}
