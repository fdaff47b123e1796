// Command gotest runs go test in each of the modules named before "--", with the
// arguments behind it, prints what go test prints, and says at the end which tests were
// left out, and why:
//
//	go run ./internal/testing/gotest . bench/ -- -short ./...
//
// It exits with 1 if a test failed. If the environment variable CI is set, it also exits with 1 if a
// test was left out because a server is not installed. It prints one line for a package that passes.
// For a package that fails, and for every package with -v, it prints the output too. Tests of a second or
// more are named at the end, the longest first.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	begun := time.Now()
	end := slices.Index(os.Args, "--")
	if end < 2 {
		fmt.Fprintln(os.Stderr, "usage: gotest MODULE... -- ARGUMENT...")
		os.Exit(2)
	}
	modules, args := os.Args[1:end], os.Args[end+1:]
	r := newReport(os.Stdout, slices.ContainsFunc(args, func(a string) bool { return a == "-v" || a == "-test.v" }))
	for _, module := range modules {
		if len(modules) > 1 {
			fmt.Println("==", module)
		}
		if err := run(module, args, r); err != nil {
			r.failed = true
		}
	}
	if os.Getenv("CI") != "" && r.leftOut[noServer] > 0 {
		r.failed = true
	}
	fmt.Println(r.summary(time.Since(begun)))
	if r.failed {
		os.Exit(1)
	}
}

func run(module string, args []string, r *report) error {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Dir, cmd.Stderr = module, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	r.read(out)
	return cmd.Wait()
}

// An event is a line of go test -json, see go doc test2json.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64 // seconds
}

// A report collects the output and the results of all tests.
type report struct {
	out     io.Writer
	verbose bool
	failed  bool

	passed  int
	printed map[[2]string][]string // output of the tests that have not ended, by package and test
	leftOut map[reason]int         // number of tests
	longest []event                // the tests that took longest, the longest first
}

// mostLongest is how many of them are named.
const mostLongest = 12

// A reason is why a test was left out.
type reason int

const (
	noServer reason = iota // a program is not installed
	short                  // -short
	other                  // the test's own reason
)

func newReport(out io.Writer, verbose bool) *report {
	return &report{out: out, verbose: verbose, printed: map[[2]string][]string{}, leftOut: map[reason]int{}}
}

func (r *report) read(events io.Reader) {
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) == nil {
				r.add(e)
			} else {
				fmt.Fprintf(r.out, "%s", line)
			}
		}
		if err != nil {
			return
		}
	}
}

// framing matches the lines in which go test -v reports that a test begins and how it
// ends.
var framing = regexp.MustCompile(`^\s*(=== (RUN|PAUSE|CONT|NAME) |--- (PASS|SKIP|FAIL|BENCH): )`)

func (r *report) add(e event) {
	at := [2]string{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "build-fail":
		r.failed = true
	case "output":
		if e.Test != "" {
			r.printed[at] = append(r.printed[at], e.Output)
		}
		if r.verbose || strings.HasPrefix(e.Test, "Benchmark") || e.Test == "" && e.Output != "PASS\n" && e.Output != "FAIL\n" {
			fmt.Fprint(r.out, e.Output)
		}
	case "pass", "skip", "fail":
		r.end(e, at)
	}
}

func (r *report) end(e event, at [2]string) {
	printed := r.printed[at]
	delete(r.printed, at)
	if e.Test != "" && !strings.Contains(e.Test, "/") && e.Elapsed >= 1 {
		r.longest = append(r.longest, e)
		slices.SortStableFunc(r.longest, func(a, b event) int { return cmp.Compare(b.Elapsed, a.Elapsed) })
		r.longest = r.longest[:min(len(r.longest), mostLongest)]
	}
	switch {
	case e.Action == "fail":
		r.failed = true
		if e.Test == "" { // print the output of tests that did not end, too
			for unended, lines := range r.printed {
				if unended[0] == e.Package {
					printed = append(printed, lines...)
					delete(r.printed, unended)
				}
			}
		}
		for _, line := range printed {
			if !r.verbose && !strings.HasPrefix(line, "=== ") {
				fmt.Fprint(r.out, line)
			}
		}
	case e.Test == "":
	case e.Action == "pass":
		r.passed++
	case e.Action == "skip":
		r.leftOut[why(printed)]++
	}
}

// why returns why a test was left out, from what the test printed.
func why(printed []string) reason {
	for _, line := range printed {
		switch {
		case framing.MatchString(line):
		case strings.Contains(line, "redistest: install "):
			return noServer
		case strings.Contains(line, "-short"):
			return short
		}
	}
	return other
}

// summary is the last lines.
func (r *report) summary(took time.Duration) string {
	s := ""
	if len(r.longest) > 0 {
		s = "longest:"
		for _, e := range r.longest {
			s += fmt.Sprintf(" %s %.0fs", e.Test, e.Elapsed)
		}
		s += "\n"
	}
	if r.failed {
		s += "FAILED: "
	}
	s += fmt.Sprintf("%d tests passed in %v; left out: %d for lack of a server", r.passed, took.Round(time.Second), r.leftOut[noServer])
	if n := r.leftOut[short]; n > 0 {
		s += fmt.Sprintf(", %d by -short, with servers and the long ones", n)
	}
	if n := r.leftOut[other]; n > 0 {
		s += fmt.Sprintf(", %d for reasons of their own (-v prints them)", n)
	}
	return s
}
