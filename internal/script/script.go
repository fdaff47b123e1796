// Package script puts Lua scripts together and runs them on Redis, each call at
// most once.
package script

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"strings"
)

// A Script is a Lua script, with the beginnings of the commands that run it. They
// are made once, for boxing a string in every call would allocate.
type Script struct {
	Source string
	BySHA  []any // EVALSHA and the digest
	Whole  []any // EVAL and the source
}

// New returns the script of source.
func New(source string) *Script {
	sum := sha1.Sum([]byte(source))
	return &Script{
		Source: source,
		BySHA:  []any{"evalsha", hex.EncodeToString(sum[:])},
		Whole:  []any{"eval", source},
	}
}

// Assemble replaces every line "--@ name" of driver by the section of that name,
// and does the same within sections. A source file holds its sections under
// lines "--- name"; what stands above the first is its header, for readers. Of
// two sections of one name the later wins; a name without a section is left out.
//
// The pieces are spliced, not called: a function for each would cost Redis a
// closure in every execution.
func Assemble(driver string, sources ...string) *Script {
	sections := map[string]string{}
	for _, source := range sources {
		name := ""
		var body strings.Builder
		for line := range strings.Lines(source) {
			if header, ok := strings.CutPrefix(line, "--- "); ok {
				sections[name] = body.String()
				name = strings.TrimSpace(header)
				body.Reset()
				continue
			}
			body.WriteString(line)
		}
		sections[name] = body.String()
	}
	return New(expand(driver, sections, 0))
}

func expand(text string, sections map[string]string, depth int) string {
	if depth > 4 {
		panic(fmt.Sprintf("script: sections include one another: %.80s", text))
	}
	var out strings.Builder
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "--@ "); ok {
			out.WriteString(expand(sections[strings.TrimSpace(name)], sections, depth+1))
			continue
		}
		out.WriteString(line)
	}
	return out.String()
}
