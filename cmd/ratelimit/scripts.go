package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tryacquire/ratelimit/internal/scripts"
)

const scriptsLong = `The Lua scripts that limiters run on Redis, by their SHA-1 digests, as SLOWLOG,
MONITOR and error messages name them.

With the name of a limiter its own scripts. The names:
%s

"bucket,many" is one script of bucket. These run:

  one         for a call on its own
  many        for the calls of several callers: a busy service runs it most
  operations  for operations other than taking (of inflight: holds)
  peek        for a Peek or a Look

--print with a limiter only prints many (of inflight: holds).

With several names: the scripts of limiters that decide together (NewAll,
TryAcquireAll). There, slidinglog,2 is a log of two rules, and bucket,estimate one
whose claim is an estimate.`

func (p program) scriptsCommand() *cobra.Command {
	var find string
	var line int
	var whole bool
	digest := scripts.Index()[0].Digest()[:6] // an example that this version finds
	names := scripts.Names()
	cmd := &cobra.Command{
		Use:   "scripts [flags] [limiter ...]",
		Short: "The scripts that Redis runs: lists, prints and finds them",
		Long:  fmt.Sprintf(scriptsLong, strings.Join(names[:5], ", ")+",\n"+strings.Join(names[5:], ", ")),
		Example: fmt.Sprintf(`  ratelimit scripts bucket
  ratelimit scripts --print bucket,many
  ratelimit scripts --print bucket fixedwindow
  ratelimit scripts --find %[1]s --line 3    for "user_script:3 … script: %[1]s…"`, digest),
		ValidArgsFunction: cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, limiters []string) error {
			all, err := scriptsOf(limiters, whole && find == "")
			if err == nil && line != 0 && find == "" {
				err = errors.New("--line is for the script of --find")
			}
			if err == nil {
				all, err = found(all, find)
			}
			var at *scriptLine
			if err == nil && line != 0 {
				at, err = lineOf(all[0], line)
			}
			if err != nil {
				return usageError{err}
			}
			return p.writeScripts(all, at, whole, asJSON(cmd))
		},
	}
	cmd.Flags().StringVar(&find, "find", "", "only the script whose `digest` begins so")
	cmd.Flags().IntVar(&line, "line", 0, "with --find: this line of the script, and the block that it is in")
	cmd.Flags().BoolVar(&whole, "print", false, "the texts too")
	return cmd
}

// scriptsOf are the scripts of limiters: of one its own, of several those that they run together.
// most leaves only the one that runs most.
func scriptsOf(limiters []string, most bool) ([]scripts.Named, error) {
	if len(limiters) == 0 {
		return scripts.Index(), nil
	}
	of, which, chosen := strings.Cut(limiters[0], ",")
	together := which == "estimate" || chosen && strings.Trim(which, "0123456789") == ""
	if len(limiters) > 1 || together || !slices.Contains(scripts.Names(), of) {
		return scripts.Group(limiters)
	}
	var all []scripts.Named
	var names []string
	for _, s := range scripts.Index() {
		if name, own := strings.CutPrefix(s.Name, of+", "); own {
			if name == strings.TrimSpace(which) || !chosen && most && (name == "many" || name == "holds") {
				return []scripts.Named{s}, nil
			}
			names = append(names, name)
		}
		if strings.HasPrefix(s.Name, of+", ") || strings.HasPrefix(s.Name, of+" by ") {
			all = append(all, s)
		}
	}
	if chosen {
		return nil, fmt.Errorf("%q is no script of %s; those are %s", which, of, strings.Join(names, ", "))
	}
	if alone, err := scripts.Group(limiters); err == nil {
		for _, s := range alone {
			all = append(all, scripts.Named{Name: "NewAll of " + s.Name, Script: s.Script})
		}
	}
	return all, nil
}

// A scriptLine is a line of a script, with those around it.
type scriptLine struct {
	Line   int      `json:"line"`
	Block  string   `json:"block"`
	First  int      `json:"first_line_of_text"`
	Around []string `json:"text"`
}

// writeScripts lists scripts, or shows the line of the only one.
func (p program) writeScripts(all []scripts.Named, at *scriptLine, whole, asJSON bool) error {
	type entry struct {
		Digest      string `json:"digest"`
		Name        string `json:"name"`
		Source      string `json:"source,omitempty"`
		*scriptLine        // of --line
	}
	entries := []entry{}
	var b strings.Builder
	for _, s := range all {
		e := entry{Digest: s.Digest(), Name: s.Name, scriptLine: at}
		fmt.Fprintf(&b, "%s  %s", e.Digest, e.Name)
		if at != nil {
			fmt.Fprintf(&b, ", line %d, %s", at.Line, at.Block)
		}
		b.WriteString("\n")
		if at != nil {
			for i, text := range at.Around {
				mark := " "
				if at.First+i == at.Line {
					mark = ">"
				}
				fmt.Fprintf(&b, "%s%5d  %s\n", mark, at.First+i, text)
			}
		} else if whole {
			e.Source = s.Source()
			fmt.Fprintf(&b, "%s\n", s.Source())
		}
		entries = append(entries, e)
	}
	if asJSON {
		return p.writeJSON(entries)
	}
	_, err := io.WriteString(p.stdout, b.String())
	return err
}

// found is the script whose digest begins so, or all for an empty digest. A script that has several names, as it uses no
// clock, is one.
func found(all []scripts.Named, digest string) ([]scripts.Named, error) {
	if digest == "" {
		return all, nil
	}
	all = slices.DeleteFunc(all, func(s scripts.Named) bool { return !strings.HasPrefix(s.Digest(), strings.ToLower(digest)) })
	for len(all) > 1 && all[1].Digest() == all[0].Digest() {
		all[0].Name += "; " + all[1].Name
		all = slices.Delete(all, 1, 2)
	}
	switch len(all) {
	case 0:
		return nil, fmt.Errorf("no script of these has a digest that begins with %q; name the limiters that decide together, or use the program of the version that runs", digest)
	case 1:
		return all, nil
	}
	return nil, fmt.Errorf("%d scripts have digests that begin with %q; give more of it", len(all), digest)
}

// lineOf is a line of a script.
func lineOf(s scripts.Named, line int) (*scriptLine, error) {
	lines := strings.Split(strings.TrimSuffix(s.Source(), "\n"), "\n")
	if line < 1 || line > len(lines) {
		return nil, fmt.Errorf("%s has %d lines, and no line %d", s.Name, len(lines), line)
	}
	first := max(line-3, 1)
	return &scriptLine{line, blockOf(lines, line), first, lines[first-1 : min(line+3, len(lines))]}, nil
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
