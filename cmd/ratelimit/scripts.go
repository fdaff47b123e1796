package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	_ "github.com/tryacquire/ratelimit" // whose scripts these are
	"github.com/tryacquire/ratelimit/internal/script"
)

const scriptsUsage = `The Lua scripts that limiters run on Redis, by their SHA-1 digests, as SLOWLOG,
MONITOR and error messages name them.

Usage: ratelimit scripts [flags] [limiter ...]

Without a limiter: the scripts of each limiter on its own. With one or more: those
that they run when they decide together (NewAll, AcquireAll), each by the name of its
file: bucket, steppedbucket, fixedwindow, datedwindow, calendarwindow,
slidingwindow_hash, slidingwindow_list, slidingwindow_zset, slidinglog,2 (of two
rules) or inflight; with ",estimate" if its claim is one.

  -find DIGEST  only the script whose digest begins so
  -line N       with -find: the line of the script, and the block that it is in
  -print        the texts too

Examples:
  ratelimit scripts
  ratelimit scripts -print bucket fixedwindow
  ratelimit scripts -find 2c6b27 -line 143    for "user_script:143 … script: 2c6b27…"
`

// scripts lists scripts, or finds one, and returns the exit code.
func (p program) scripts(args []string) int {
	fs := flag.NewFlagSet("scripts", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	find, line, whole := fs.String("find", "", ""), fs.Int("line", 0, ""), fs.Bool("print", false, "")
	limiters, err := parseMixed(fs, args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(p.stdout, scriptsUsage)
		return exitDone
	}
	all := script.Index()
	if err == nil && len(limiters) > 0 {
		all, err = script.Together(limiters)
	}
	if err == nil && *line != 0 && *find == "" {
		err = errors.New("-line is for the script of -find")
	}
	if err == nil {
		all, err = found(all, *find)
	}
	if err == nil && *line != 0 {
		err = p.showLine(all[0], *line)
		if err == nil {
			return exitDone
		}
	}
	if err != nil {
		fmt.Fprintf(p.stderr, "ratelimit scripts: %v\n(ratelimit scripts -h explains every flag)\n", err)
		return exitUsage
	}
	for _, s := range all {
		fmt.Fprintf(p.stdout, "%s  %s\n", s.Digest(), s.Name)
		if *whole {
			fmt.Fprintf(p.stdout, "%s\n", s.Source)
		}
	}
	return exitDone
}

// found is the script whose digest begins so, or all for an empty digest.
func found(all []script.Named, digest string) ([]script.Named, error) {
	if digest == "" {
		return all, nil
	}
	all = slices.DeleteFunc(all, func(s script.Named) bool { return !strings.HasPrefix(s.Digest(), strings.ToLower(digest)) })
	switch len(all) {
	case 0:
		return nil, fmt.Errorf("no script of these has a digest that begins with %q; name the limiters that decide together, or use the program of the version that runs", digest)
	case 1:
		return all, nil
	}
	return nil, fmt.Errorf("%d scripts have digests that begin with %q; give more of it", len(all), digest)
}

// showLine prints a line of a script with those around it, and the block that it is in.
func (p program) showLine(s script.Named, line int) error {
	lines := strings.Split(strings.TrimSuffix(s.Source, "\n"), "\n")
	if line < 1 || line > len(lines) {
		return fmt.Errorf("%s has %d lines, and no line %d", s.Name, len(lines), line)
	}
	fmt.Fprintf(p.stdout, "%s  %s, line %d, %s\n", s.Digest(), s.Name, line, blockOf(lines, line))
	for i := max(line-3, 1); i <= min(line+3, len(lines)); i++ {
		mark := " "
		if i == line {
			mark = ">"
		}
		fmt.Fprintf(p.stdout, "%s%5d  %s\n", mark, i, lines[i-1])
	}
	return nil
}

// blockOf is the last block that begins in front of a line and is not indented deeper.
func blockOf(lines []string, line int) string {
	indent := func(s string) int { return len(s) - len(strings.TrimLeft(s, " ")) }
	deepest := indent(lines[line-1])
	for i := line - 1; i >= 0; i-- {
		text := strings.TrimSpace(lines[i])
		if name, ok := strings.CutPrefix(text, "-- <"); ok && strings.HasSuffix(name, ">") && indent(lines[i]) <= deepest {
			if name = strings.TrimSuffix(name, ">"); !strings.HasPrefix(name, "/") {
				return "block " + name
			}
		}
	}
	return "before the first block"
}
