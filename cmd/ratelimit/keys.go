package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/keyname"
	"github.com/tryacquire/ratelimit/internal/state"
)

// keyFlags say which limiter's keys are meant.
type keyFlags struct {
	prefix, name, algorithm string
}

func (f *keyFlags) define(fs *pflag.FlagSet, algorithm bool) {
	fs.StringVar(&f.prefix, "prefix", "ratelimit", "the limiter's prefix (WithPrefix)")
	fs.StringVar(&f.name, "name", "default", "the limiter's name (WithName)")
	if algorithm {
		fs.StringVar(&f.algorithm, "algorithm", "", "only the state of this algorithm: "+strings.Join(algorithms.IDs(), ", ")+" (all)")
	}
}

const namingKeys = `A key is a caller's, such as user:42, of the limiter that --prefix and --name say; then it is
looked for under every algorithm. Or it is a key's whole name in Redis, such as
"ratelimit:api:tokenbucket{user:42}".`

// candidates are the names in Redis that a key may have: all in one slot.
func (f *keyFlags) candidates(key string) ([]string, error) {
	if _, ok := keyname.Parse(key); ok {
		return []string{key}, nil
	}
	if key == "" {
		return nil, usagef("a key is empty")
	}
	ids := algorithms.IDs()
	if f.algorithm != "" {
		if !algorithms.IsID(f.algorithm) {
			return nil, usagef("--algorithm %q: choose one of %s", f.algorithm, strings.Join(ids, ", "))
		}
		ids = []string{f.algorithm}
	}
	var names []string
	for _, id := range ids {
		name := keyname.NewHead(f.prefix, f.name, id).Of(key)
		if parts, ok := keyname.Parse(name); !ok || parts.Prefix != f.prefix || parts.Name != f.name {
			return nil, usagef("--prefix %q, --name %q: no limiter has these, because of an empty part, a brace, a colon in the name or an algorithm's id", f.prefix, f.name)
		}
		names = append(names, name)
	}
	return names, nil
}

// states are those that the key has.
func (f *keyFlags) states(ctx context.Context, s *server, key string) ([]state.State, error) {
	names, err := f.candidates(key)
	if err != nil {
		return nil, err
	}
	c, err := s.of(ctx, names[0])
	if err != nil {
		return nil, err
	}
	all, err := state.Read(ctx, c, names, maxEntries)
	if err != nil {
		return nil, err
	}
	var there []state.State
	for _, one := range all {
		if one.Exists || one.Err != nil {
			there = append(there, one)
		}
	}
	return there, nil
}

// maxEntries is how many entries of a log that have left its window are read of a key that is named.
const maxEntries = 5000

// nobody says that a key is not there.
func (f *keyFlags) nobody(key string) string {
	if _, ok := keyname.Parse(key); ok {
		return fmt.Sprintf("%s: there is no such key: nothing is used\n", printable(key, 200))
	}
	return fmt.Sprintf("%s: no limiter %q with the prefix %q has such a key: nothing is used\n", printable(key, 200), f.name, f.prefix)
}
