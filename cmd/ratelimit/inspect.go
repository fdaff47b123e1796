package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/state"
)

// maxElements is how many elements of a key are shown as they stand.
const maxElements = 20

func (p program) inspectCommand() *cobra.Command {
	var redis redisFlags
	var keys keyFlags
	cmd := &cobra.Command{
		Use:   "inspect [flags] key ...",
		Short: "What a key holds, in words",
		Long: "What a key holds, in words, and as it stands in Redis. It takes nothing, and runs no script.\n\n" +
			namingKeys + "\n" + connecting,
		Example: `  ratelimit inspect user:42
  ratelimit inspect --name api --json user:42
  ratelimit inspect 'ratelimit:api:tokenbucket{user:42}'`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.inspect(cmd.Context(), &redis, &keys, args, asJSON(cmd))
		},
	}
	keys.define(cmd.Flags(), true)
	redis.define(cmd.Flags())
	complete(cmd, "algorithm", algorithms.IDs()...)
	return cmd
}

// A keyReport is what is known of a key.
type keyReport struct {
	Name      string   `json:"name"`
	Prefix    string   `json:"prefix"`
	Limiter   string   `json:"limiter"`
	Algorithm string   `json:"algorithm"`
	Key       string   `json:"key"`
	Used      int64    `json:"used"`
	AtMost    bool     `json:"used_is_at_most,omitempty"`
	Empty     float64  `json:"seconds_until_nothing_is_used"`
	Expires   *float64 `json:"seconds_until_it_expires"` // null: never
	Words     string   `json:"words"`
	Type      string   `json:"type,omitempty"`
	Elements  []string `json:"elements,omitempty"`
	More      bool     `json:"more_elements,omitempty"`
	Error     string   `json:"error,omitempty"`
}

func newKeyReport(s state.State) keyReport {
	r := keyReport{
		Name: s.Name, Prefix: s.Parts.Prefix, Limiter: s.Parts.Name, Algorithm: s.Parts.Algorithm, Key: s.Parts.Key,
		Used: s.Used, AtMost: s.AtMost, Empty: s.Empty.Seconds(), Words: s.Words(),
	}
	if seconds := s.Expires.Seconds(); s.Expires >= 0 {
		r.Expires = &seconds
	}
	if s.Err != nil {
		r.Error = s.Err.Error()
	}
	return r
}

func (p program) inspect(ctx context.Context, redis *redisFlags, keys *keyFlags, args []string, asJSON bool) error {
	for _, key := range args { // before Redis is asked
		if _, err := keys.candidates(key); err != nil {
			return err
		}
	}
	s, err := redis.connect(ctx, p.environ)
	if err != nil {
		return err
	}
	defer s.Close()
	reports := []keyReport{}
	var b strings.Builder
	var damaged error
	for _, key := range args {
		states, err := keys.states(ctx, s, key)
		if err != nil {
			return err
		}
		if len(states) == 0 {
			b.WriteString(keys.nobody(key))
		}
		for _, one := range states {
			r := newKeyReport(one)
			if r.Type, r.Elements, r.More, err = state.Raw(ctx, s, one.Name, maxElements); err != nil {
				return err
			}
			if one.Err != nil {
				damaged = fmt.Errorf("%s cannot be read as a state", printable(one.Name, 200))
			}
			reports = append(reports, r)
			r.write(&b, one)
		}
	}
	if asJSON {
		err = p.writeJSON(reports)
	} else {
		_, err = io.WriteString(p.stdout, b.String())
	}
	switch {
	case err != nil:
		return err
	case damaged != nil:
		return damaged
	case len(reports) == 0:
		return errNo
	}
	return nil
}

// write is the report as a person reads it.
func (r keyReport) write(b *strings.Builder, s state.State) {
	fmt.Fprintf(b, "%s\n", printable(r.Name, 4200))
	fmt.Fprintf(b, "  %s %s, key %s\n", state.Kind(r.Algorithm), quoteShown(r.Limiter), quoteShown(r.Key))
	fmt.Fprintf(b, "  %s\n", r.Words)
	if r.Expires != nil {
		fmt.Fprintf(b, "  Redis deletes it in %s.\n", state.Brief(s.Expires))
	}
	elements := make([]string, len(r.Elements))
	for i, e := range r.Elements {
		elements[i] = printable(e, 200)
	}
	if r.More {
		elements = append(elements, "…")
	}
	fmt.Fprintf(b, "  As it stands (%s): %s\n", r.Type, strings.Join(elements, " "))
}

// quoteShown is a name between quotes, fit for a terminal.
func quoteShown(s string) string { return `"` + printable(s, 200) + `"` }
