package main

import (
	"io"
	"os"
	"strings"
	_ "time/tzdata" // time zones in a file, on a system that has none

	"github.com/spf13/cobra"

	"github.com/tryacquire/ratelimit/limits"
)

func (p program) checkCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check file ...",
		Short: "Checks files of limits, in CI",
		Long: `Checks files of limits, as module limits reads them, in YAML or JSON; - is standard input. It writes a line for
each mistake, with the file, the line in it and the remedy, and then exits with 3.`,
		Example: `  ratelimit check limits.yaml
  ratelimit check --json deploy/*/limits.yaml`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return p.check(args, asJSON(cmd)) },
	}
}

// A checkedFile is what was found in a file.
type checkedFile struct {
	File     string   `json:"file"`
	Mistakes []string `json:"mistakes"`
}

func (p program) check(files []string, asJSON bool) error {
	all, wrong := []checkedFile{}, false
	for _, file := range files {
		text, err := p.contentOf(file)
		if err != nil {
			return err
		}
		found := checkedFile{file, []string{}}
		if err := limits.Check(file, text); err != nil {
			found.Mistakes, wrong = strings.Split(err.Error(), "\n"), true
		}
		all = append(all, found)
	}
	switch {
	case asJSON:
		if err := p.writeJSON(all); err != nil {
			return err
		}
	default:
		for _, found := range all {
			for _, line := range found.Mistakes {
				if _, err := io.WriteString(p.stdout, printable(line, 1000)+"\n"); err != nil {
					return err
				}
			}
		}
	}
	if wrong {
		return errNo
	}
	return nil
}

// contentOf reads a file; - is standard input.
func (p program) contentOf(file string) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(p.stdin)
	}
	return os.ReadFile(file)
}
