package main

import (
	"context"
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
	client *redis.Client
	share  float64
	most   int // keys of limiters that are read
	wants  func(keyname.Parts) bool
	pause  func(context.Context, time.Duration) error
	now    func() time.Time

	looked  int  // keys of the server, limiters' or not
	read    int  // keys of limiters; SCAN may have returned one twice
	damaged int  // of them, those that hold no state
	cut     bool // there were more than most
}

// each visits the states of all keys that the scan wants.
func (s *scan) each(ctx context.Context, visit func(state.State), progress func()) error {
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
		wanted := names[:0]
		for _, name := range names {
			if parts, ok := keyname.Parse(name); ok && s.wants(parts) {
				wanted = append(wanted, name)
			}
		}
		if room := s.most - s.read; len(wanted) > room {
			wanted, s.cut = wanted[:room], true
		}
		for len(wanted) > 0 {
			now := wanted[:min(len(wanted), readAtOnce)]
			wanted = wanted[len(now):]
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
		progress()
		if cursor == 0 || s.cut || s.read >= s.most {
			s.cut = s.cut || cursor != 0
			return nil
		}
	}
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
