// Package yamlfile reads a YAML file (JSON is YAML) field by field, and collects every mistake in it with its line and
// the remedy. It is for the modules of this repository.
package yamlfile

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/tryacquire/ratelimit"
)

// A File collects the mistakes of one file.
type File struct {
	name     string
	mistakes []mistake
	merges   int // fields that were looked at for <<
}

type mistake struct {
	line int
	text string
}

// Parse returns a file, and what is in it: a map, which has no fields if the text is no YAML or no map.
func Parse(name string, text []byte) (*File, Map) {
	f := &File{name: name}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document, next yaml.Node
	switch err := decoder.Decode(&document); {
	case err == io.EOF:
		f.Errorf(1, "the file is empty")
		return f, Map{file: f, line: 1}
	case err != nil:
		f.syntax(err)
		return f, Map{file: f, line: 1}
	}
	if err := decoder.Decode(&next); err == nil {
		f.Errorf(max(next.Line, 1), "the file has a second document; write all in one")
	} else if err != io.EOF {
		f.syntax(err)
	}
	root := &document
	if root.Kind == yaml.DocumentNode && len(root.Content) == 1 {
		root = root.Content[0]
	}
	if f.checkAliases(root); f.Mistakes() > 0 {
		return f, Map{file: f, line: 1}
	}
	return f, Value{file: f, node: root, line: max(root.Line, 1), what: "the file"}.Map()
}

// Errorf notes a mistake in a line.
func (f *File) Errorf(line int, format string, args ...any) {
	f.mistakes = append(f.mistakes, mistake{line, fmt.Sprintf(format, args...)})
}

var lineOfError = regexp.MustCompile(`(?s)line (\d+)(?:, column \d+)?:? ?(.*)`)

// syntax notes an error of the parser, which names its line.
func (f *File) syntax(err error) {
	line, text := 1, strings.TrimPrefix(err.Error(), "yaml: ")
	if found := lineOfError.FindStringSubmatch(text); found != nil {
		line, _ = strconv.Atoi(found[1])
		text = found[2]
	}
	f.Errorf(max(line, 1), "this is no YAML: %s", strings.Join(strings.Fields(text), " "))
}

// Mistakes is how many have been noted.
func (f *File) Mistakes() int { return len(f.mistakes) }

// Err returns nil if nothing was noted, else an error with a line for each mistake, such as "limits.yaml:12: …", in the
// order of the file. It wraps ratelimit.ErrInvalidConfig.
func (f *File) Err() error {
	if len(f.mistakes) == 0 {
		return nil
	}
	sorted := slices.Clone(f.mistakes)
	slices.SortStableFunc(sorted, func(a, b mistake) int { return cmp.Compare(a.line, b.line) })
	var lines []string
	for _, m := range sorted {
		lines = append(lines, fmt.Sprintf("%s:%d: %s", f.name, m.line, m.text))
	}
	return &invalid{strings.Join(slices.Compact(lines), "\n")}
}

// An invalid is the error of a file.
type invalid struct{ text string }

func (e *invalid) Error() string { return e.text }
func (e *invalid) Unwrap() error { return ratelimit.ErrInvalidConfig }
