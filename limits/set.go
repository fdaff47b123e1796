package limits

import (
	"context"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/limits/yamlfile"
)

// Options are what a file cannot hold. The zero value works.
type Options struct {
	// PlanOf returns the plan of a key, as from a map in memory, or "" if it has none. A key of a plan that a limit does
	// not have gets the limit's own rule. It is called for each call of a limit with plans, from many goroutines. Nil:
	// no key has a plan.
	PlanOf func(ctx context.Context, key string) string

	// Limiters are given to each limiter on Redis: WithClock, WithMaxSkew, WithoutMerging.
	Limiters []ratelimit.Option

	// Observers observe all limiters, what goes around them, and the breaker.
	Observers []ratelimit.Observer
}

func (o Options) planOf() func(context.Context, string) string {
	if o.PlanOf == nil {
		return func(context.Context, string) string { return "" }
	}
	return o.PlanOf
}

// A Set is the limits of a file. It is safe for concurrent use.
type Set struct {
	client  ratelimit.Client
	file    string
	options Options
	current atomic.Pointer[state]

	mu      sync.Mutex      // guards what follows; not held by calls of limiters
	used    map[string]bool // names that the program has asked for, and whether they hold permits
	locals  locals
	probing breaker
	breaker *ratelimit.Breaker
}

// A state is what is in force.
type state struct {
	text   []byte
	limits map[string]built
}

// Load reads a file, and returns its limits. The error names each mistake in the file, see [Check], or why the file
// could not be read. Redis is not asked.
func Load(c ratelimit.Client, file string, o Options) (*Set, error) {
	s := &Set{client: c, file: file, options: o, used: map[string]bool{}, locals: locals{}}
	s.current.Store(&state{})
	if err := s.Reload(); err != nil {
		return nil, err
	}
	return s, nil
}

// Reload reads the file again, and puts it in force: calls that have begun keep their limiter, later ones get the new
// one. A limit that has not changed keeps its limiter, with the denials that it remembers. One that has changed goes on
// from what was counted, as docs/plans.md says of rules of one name.
//
// After an error everything stays as it was. A file that lacks a limit which the program has asked for is an error.
func (s *Set) Reload() error {
	text, err := os.ReadFile(s.file)
	if err != nil {
		return fmt.Errorf("ratelimit/limits: %w", err)
	}
	return s.load(text)
}

// load puts the text of the file in force.
func (s *Set) load(text []byte) error {
	conf, err := parse(s.file, text)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, holds := range s.used {
		switch l, ok := conf.limits[name]; {
		case !ok:
			return fmt.Errorf("%w: %s:1: limit %s, which the program uses, is not there; put it back, or stop the program first",
				ratelimit.ErrInvalidConfig, s.file, name)
		case l.holds() != holds:
			return fmt.Errorf("%w: %s:1: limit %s, which the program uses, cannot become in_flight or cease to be; give the new limit another name",
				ratelimit.ErrInvalidConfig, s.file, name)
		}
	}
	before := s.current.Load()
	next := &state{text: text, limits: map[string]built{}}
	kept, probing, b := maps.Clone(s.locals), s.probing, s.breaker
	for name, l := range conf.limits {
		if l.outage != nil && (b == nil || l.probing != probing) {
			probing, b = l.probing, l.probing.breaker(s.options)
		}
		if had, ok := before.limits[name]; ok && reflect.DeepEqual(had.from, l) {
			next.limits[name] = had
			continue
		}
		made, err := build(s.client, name, l, kept, s.options, b)
		if err != nil {
			return fmt.Errorf("limit %s: %w", name, err)
		}
		next.limits[name] = made
	}
	s.locals, s.probing, s.breaker = kept, probing, b
	s.current.Store(next)
	return nil
}

// Limiter returns the limiter of a name in the file. It is that of the file as it is in force when a call begins, so it
// can be kept. The error wraps ratelimit.ErrInvalidConfig: there is no such limit, or it is in_flight.
func (s *Set) Limiter(name string) (*ratelimit.Choice, error) {
	if err := s.use(name, false); err != nil {
		return nil, err
	}
	return ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) {
		return s.current.Load().limits[name].limiter, nil
	})
}

// Holder is Limiter for a limit that is in_flight.
func (s *Set) Holder(name string) (ratelimit.Holder, error) {
	if err := s.use(name, true); err != nil {
		return nil, err
	}
	return ratelimit.NewHoldChoice(func(context.Context, string) (ratelimit.Holder, error) {
		return s.current.Load().limits[name].holder, nil
	})
}

// use notes that the program needs a limit.
func (s *Set) use(name string, holds bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.current.Load().limits
	switch l, ok := of[name]; {
	case !ok:
		return fmt.Errorf("%w: %s has no limit %q; %s", ratelimit.ErrInvalidConfig, s.file, name, yamlfile.Instead(name, slices.Sorted(maps.Keys(of))))
	case l.from.holds() && !holds:
		return fmt.Errorf("%w: %s: limit %s is in_flight; use Holder", ratelimit.ErrInvalidConfig, s.file, name)
	case holds && !l.from.holds():
		return fmt.Errorf("%w: %s: limit %s is not in_flight; use Limiter", ratelimit.ErrInvalidConfig, s.file, name)
	}
	s.used[name] = holds
	return nil
}
