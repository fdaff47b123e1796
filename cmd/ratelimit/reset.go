package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/keyname"
	"github.com/tryacquire/ratelimit/internal/state"
)

func (p program) resetCommand() *cobra.Command {
	var redis redisFlags
	var keys keyFlags
	var dry bool
	cmd := &cobra.Command{
		Use:   "reset [flags] key ...",
		Short: "Deletes what a key has used",
		Long: `Deletes what a key has used, so that its full limit is there again, and says what that was.
Processes that remember denials (DenyCache) go on denying until these end. What is held
(InFlight) can be taken a second time while its holders go on.

` + namingKeys + "\n" + connecting,
		Example: `  ratelimit reset --dry-run user:42
  ratelimit reset --name api --algorithm tokenbucket user:42`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.reset(cmd.Context(), &redis, &keys, args, dry, asJSON(cmd))
		},
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say what would be deleted")
	keys.define(cmd.Flags(), true)
	redis.define(cmd.Flags())
	complete(cmd, "algorithm", algorithms.IDs()...)
	return cmd
}

// A deletion is what was deleted.
type deletion struct {
	keyReport
	Deleted bool `json:"deleted"`
}

// reset deletes keys. Each is reported as soon as it is gone, because a later one may fail.
func (p program) reset(ctx context.Context, redis *redisFlags, keys *keyFlags, args []string, dry, asJSON bool) error {
	for _, key := range args { // before anything is deleted
		if _, err := keys.candidates(key); err != nil {
			return err
		}
	}
	s, err := redis.connect(ctx, p.environ)
	if err != nil {
		return err
	}
	defer s.Close()
	all := []deletion{}
	for _, key := range args {
		states, err := keys.states(ctx, s, key)
		if err != nil {
			return err
		}
		if len(states) == 0 && !asJSON {
			fmt.Fprint(p.stdout, keys.nobody(key))
		}
		for _, one := range states {
			d := deletion{keyReport: newKeyReport(one)}
			what := "would delete"
			if !dry {
				n, err := s.Unlink(ctx, one.Name, keyname.Tickets(one.Name)).Result()
				if err != nil {
					return fmt.Errorf("%s: %w", printable(one.Name, 200), err)
				}
				what, d.Deleted = "deleted", n > 0
			}
			all = append(all, d)
			if !asJSON {
				fmt.Fprintf(p.stdout, "%s %s: %s of %s had %d used\n", what, printable(one.Name, 4200), state.Kind(d.Algorithm), quoteShown(d.Key), d.Used)
			}
		}
	}
	if asJSON {
		if err := p.writeJSON(all); err != nil {
			return err
		}
	}
	if len(all) == 0 {
		return errNo
	}
	return nil
}
