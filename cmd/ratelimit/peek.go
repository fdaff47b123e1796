package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/state"
)

func (p program) peekCommand() *cobra.Command {
	var redis redisFlags
	var keys keyFlags
	limits := given{}
	cmd := &cobra.Command{
		Use:   "peek [flags] key ...",
		Short: "Would a call of this limiter be allowed now?",
		Long: `Would a call for one permit be allowed now, how many are left, and when? It asks as the limiter
itself does (Peek), and takes nothing. A key does not hold its limit, so the flags have to say it as the
service does. The exit code is 3 if a key would be denied.
` + connecting,
		Example: `  ratelimit peek --name api --rate 10/m --burst 20 user:42
  ratelimit peek --algorithm fixed-window --rate 1000/h --json user:42`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.peek(cmd.Context(), &redis, &keys, limits, args, asJSON(cmd))
		},
	}
	limits.define(cmd.Flags())
	keys.define(cmd.Flags(), false)
	redis.define(cmd.Flags())
	complete(cmd, "algorithm", algorithmNames...)
	complete(cmd, "storage", storageNames()...)
	return cmd
}

// A look is what a limiter says of a key.
type look struct {
	Key        string  `json:"key"`
	Allowed    bool    `json:"allowed"`
	Limit      int     `json:"limit"`
	Remaining  int     `json:"remaining"`
	RetryAfter float64 `json:"retry_after_seconds"`
	ResetAfter float64 `json:"reset_after_seconds"`
	Words      string  `json:"words"`
}

func (p program) peek(ctx context.Context, flags *redisFlags, keys *keyFlags, g given, args []string, asJSON bool) error {
	if !g.hasRate() && !g.has("rule") {
		return usagef("say the limit as the service does, for example --algorithm token-bucket --rate 10/m --burst 20")
	}
	limits, err := parseLimits(g, nil)
	if err != nil {
		return usageError{err}
	}
	if len(limits) > 1 {
		return usagef("peek asks one limiter: give one --algorithm")
	}
	s, err := flags.connect(ctx, p.environ)
	if err != nil {
		return err
	}
	defer s.Close()
	limiter, err := limits[0].on(s.UniversalClient, ratelimit.WithPrefix(keys.prefix), ratelimit.WithName(keys.name))
	if err != nil {
		return usageError{err}
	}
	looks := []look{}
	denied := false
	for _, key := range args {
		r, err := limiter.Peek(ctx, key)
		if err != nil {
			return err
		}
		l := look{key, r.Allowed, r.Limit, r.Remaining, r.RetryAfter.Seconds(), r.ResetAfter.Seconds(), state.Result(r)}
		looks = append(looks, l)
		denied = denied || !r.Allowed
		if !asJSON {
			fmt.Fprintf(p.stdout, "%s: %s\n", printable(key, 4200), l.Words)
		}
	}
	if asJSON {
		if err := p.writeJSON(looks); err != nil {
			return err
		}
	}
	if denied {
		return errNo
	}
	return nil
}

// on makes the limiter on Redis.
func (l limit) on(c ratelimit.Client, opts ...ratelimit.Option) (ratelimit.Limiter, error) {
	switch l.algorithm {
	case fixedWindow:
		if l.aligned {
			opts = append(opts, ratelimit.WithAlignment(l.offset))
		}
		return ratelimit.NewFixedWindow(c, l.rate.Count, l.rate.Period, opts...)
	case slidingWindow:
		opts = append(opts, ratelimit.WithStorage(l.storage))
		if l.buckets > 0 {
			opts = append(opts, ratelimit.WithSubWindows(l.buckets))
		}
		return ratelimit.NewSlidingWindow(c, l.rate.Count, l.rate.Period, opts...)
	case slidingLog:
		if l.resolution > 0 {
			opts = append(opts, ratelimit.WithResolution(l.resolution))
		}
		return ratelimit.NewSlidingLog(c, l.rules, opts...)
	case leakyBucket:
		return ratelimit.NewLeakyBucket(c, l.rate, l.capacity, opts...)
	case tokenBucket:
		if l.every > 0 {
			opts = append(opts, ratelimit.WithRefillEvery(l.every))
		}
		if l.aligned {
			opts = append(opts, ratelimit.WithAlignment(l.offset))
		}
		return ratelimit.NewTokenBucket(c, l.rate, l.burst, opts...)
	}
	return nil, fmt.Errorf("the algorithm %q is not one of %s", l.algorithm, strings.Join(algorithmNames, ", "))
}
