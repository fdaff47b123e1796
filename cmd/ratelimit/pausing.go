package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/keyname"
	"github.com/tryacquire/ratelimit/internal/state"
)

const namingPauses = `--prefix and --name are those of the service's pause (NewPause), or of that of its Bans.
`

// pausing are the flags of a command about pauses.
type pausing struct {
	redis  redisFlags
	keys   keyFlags
	length time.Duration
	probe  time.Duration
}

func (p program) pauseCommand() *cobra.Command {
	var f pausing
	cmd := &cobra.Command{
		Use:   "pause [flags] key ...",
		Short: "Stops a key for all processes until an instant",
		Long: `Stops a key of a pause, for all processes, until an instant from now. A key that is paused for longer
stays so: the instant is only ever moved later, and lift ends it.

` + namingPauses + connecting,
		Example: `  ratelimit pause --name banned --for 24h user:42`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.stop(cmd.Context(), &f, args, asJSON(cmd))
		},
	}
	cmd.Flags().DurationVar(&f.length, "for", 0, "how long, such as 90s or 24h")
	cmd.Flags().DurationVar(&f.probe, "probe", 0, "how long the others wait afterwards for the call that goes first, if the service has WithProbe (0: it does not)")
	f.keys.define(cmd.Flags(), false)
	f.redis.define(cmd.Flags())
	return cmd
}

func (p program) liftCommand() *cobra.Command {
	var f pausing
	cmd := &cobra.Command{
		Use:   "lift [flags] key ...",
		Short: "Ends the pause of a key, and forgets its strikes",
		Long: `Ends the pause of a key, and forgets its strikes. Processes that remember the pause (DenyCache) keep it
until it would have ended. The exit code is 3 if a key was not paused and had no strikes.

` + namingPauses + connecting,
		Example: `  ratelimit lift --name banned user:42`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.lift(cmd.Context(), &f, args, asJSON(cmd))
		},
	}
	f.keys.define(cmd.Flags(), false)
	f.redis.define(cmd.Flags())
	return cmd
}

// A pausedKey is what has become of a key.
type pausedKey struct {
	Key    string  `json:"key"`
	Paused float64 `json:"seconds_paused"`
	Lifted bool    `json:"lifted,omitempty"`
}

// stop pauses keys. Each is reported as soon as it is paused, because a later one may fail.
func (p program) stop(ctx context.Context, f *pausing, args []string, asJSON bool) error {
	if f.length <= 0 {
		return usagef("--for %v: say how long the key is to be paused, such as --for 24h", f.length)
	}
	s, err := f.redis.connect(ctx, p.environ)
	if err != nil {
		return err
	}
	defer s.Close()
	opts := []ratelimit.Option{ratelimit.WithPrefix(f.keys.prefix), ratelimit.WithName(f.keys.name)}
	if f.probe != 0 {
		opts = append(opts, ratelimit.WithProbe(f.probe))
	}
	pause, err := ratelimit.NewPause(s.UniversalClient, opts...)
	if err != nil {
		return usageError{err}
	}
	all := []pausedKey{}
	for _, key := range args {
		r, err := pause.Pause(ctx, key, f.length)
		if err != nil {
			return err
		}
		all = append(all, pausedKey{Key: key, Paused: r.RetryAfter.Seconds()})
		if !asJSON {
			fmt.Fprintf(p.stdout, "%s is paused for %s\n", printable(key, 4200), state.Brief(r.RetryAfter))
		}
	}
	if asJSON {
		return p.writeJSON(all)
	}
	return nil
}

// lift ends the pauses of keys. Each is reported as soon as it is lifted, because a later one may fail.
func (p program) lift(ctx context.Context, f *pausing, args []string, asJSON bool) error {
	f.keys.algorithm = algorithms.Pause
	for _, key := range args { // before anything is lifted
		names, err := f.keys.candidates(key)
		if err != nil {
			return err
		}
		if parts, _ := keyname.Parse(names[0]); parts.Algorithm != algorithms.Pause {
			return usagef("%s is no key of a pause; ratelimit reset is for the others", printable(key, 200))
		}
	}
	s, err := f.redis.connect(ctx, p.environ)
	if err != nil {
		return err
	}
	defer s.Close()
	all := []pausedKey{}
	missing := false
	for _, key := range args {
		states, err := f.keys.states(ctx, s, key)
		if err != nil {
			return err
		}
		words := "it was not paused"
		lifted := pausedKey{Key: key, Lifted: len(states) > 0}
		for _, one := range states {
			if err := s.Unlink(ctx, one.Name).Err(); err != nil {
				return fmt.Errorf("%s: %w", printable(one.Name, 200), err)
			}
			words = "lifted. Before: " + one.Words()
		}
		missing = missing || !lifted.Lifted
		all = append(all, lifted)
		if !asJSON {
			fmt.Fprintf(p.stdout, "%s: %s\n", printable(key, 4200), words)
		}
	}
	if asJSON {
		if err := p.writeJSON(all); err != nil {
			return err
		}
	}
	if missing {
		return errNo
	}
	return nil
}
