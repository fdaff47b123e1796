package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Exit codes.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNo          = 3 // the answer is no
	exitInterrupted = 130
)

const about = `Exit codes: 0 done; 1 failed; 2 wrong usage; 3 the answer is no (peek: a call would
be denied; inspect, reset and lift: there is no such key; check: there is a mistake); 130 interrupted.`

// errNo is the answer no, which has been written.
var errNo = errors.New("no")

// A usageError is a mistake on the command line.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// command runs the command that args name, and returns the exit code.
func (p program) command(ctx context.Context, args []string) int {
	started := false
	root := p.root()
	root.PersistentPreRun = func(*cobra.Command, []string) { started = true }
	root.SetArgs(append([]string{}, args...)) // nil would be those of the process
	root.SetIn(p.stdin)
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	cmd, err := root.ExecuteContextC(ctx)
	p.progress.clear()
	var usage usageError
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errNo):
		return exitNo
	case ctx.Err() != nil:
		fmt.Fprintf(p.stderr, "%s: interrupted, nothing is left behind\n", cmd.CommandPath())
		return exitInterrupted
	case !started || errors.As(err, &usage):
		fmt.Fprintf(p.stderr, "%s: %s\n(%s --help explains every flag)\n", cmd.CommandPath(), strings.TrimSpace(err.Error()), cmd.CommandPath())
		return exitUsage
	}
	fmt.Fprintf(p.stderr, "%s: %v\n", cmd.CommandPath(), err)
	return exitFailed
}

func (p program) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "ratelimit",
		Short:         "A program for those who operate limiters",
		Long:          "A program for those who operate limiters.\n\n" + about,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(*cobra.Command, []string) error { return usagef("name a command") },
	}
	root.PersistentFlags().Bool("json", false, "write JSON")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		if strings.HasPrefix(err.Error(), "unknown shorthand flag") {
			err = fmt.Errorf("%w; flags have two dashes", err)
		}
		return err
	})
	root.AddCommand(p.topCommand(), p.inspectCommand(), p.peekCommand(), p.resetCommand(), p.pauseCommand(), p.liftCommand(), p.replayCommand(), p.scriptsCommand(), p.checkCommand(), p.serveCommand())
	return root
}

// asJSON reports whether --json is given.
func asJSON(cmd *cobra.Command) bool {
	on, _ := cmd.Flags().GetBool("json")
	return on
}

// writeJSON writes v for people and programs.
func (p program) writeJSON(v any) error {
	e := json.NewEncoder(p.stdout)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return wroteJSON(e.Encode(v))
}

func wroteJSON(err error) error {
	if err != nil {
		return fmt.Errorf("writing JSON: %w", err)
	}
	return nil
}

// complete offers words for the value of a flag.
func complete(cmd *cobra.Command, flag string, words ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) // an error is an unknown flag: TestCompletion
}
