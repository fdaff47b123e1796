package script

import (
	"fmt"
	"maps"
	"strings"
)

// A File is a Lua file with marked blocks, which may hold blocks themselves:
//
//	-- <load>
//	-- needs: key now
//	-- sets: missing
//	local missing = 0
//	-- </load>
//
// An algorithm's file is a complete script for one request. The other scripts of the
// algorithm are made from its blocks: a template names the blocks that it needs, see
// [File.Fill].
type File struct {
	name   string
	text   string
	blocks map[string]string // without the lines that mark them
}

// Parse reads the blocks of text, the contents of the file of that name. It panics if
// the marks do not match or a name is used twice: that is a mistake in the program,
// which any test finds.
func Parse(name, text string) *File {
	f := &File{name: name, text: text, blocks: map[string]string{}}
	type open struct {
		name string
		body strings.Builder
	}
	var stack []*open
	for line := range strings.Lines(text) {
		mark, kind := parseMark(line)
		if kind == markEnd {
			if len(stack) == 0 || stack[len(stack)-1].name != mark {
				panic(fmt.Sprintf("script: %s: </%s> does not end the block before it", name, mark))
			}
			f.blocks[mark] = stack[len(stack)-1].body.String()
			stack = stack[:len(stack)-1]
		}
		for _, o := range stack {
			o.body.WriteString(line)
		}
		if kind == markBegin {
			if _, ok := f.blocks[mark]; ok {
				panic(fmt.Sprintf("script: %s: two blocks <%s>", name, mark))
			}
			f.blocks[mark] = ""
			stack = append(stack, &open{name: mark})
		}
	}
	if len(stack) > 0 {
		panic(fmt.Sprintf("script: %s: <%s> has no end", name, stack[len(stack)-1].name))
	}
	return f
}

// Include returns text with the blocks of other, and their marks, in place of the lines that name
// them: "-- <name/>". So files share what is the same in each. A line that names a block of text
// itself stays.
func Include(text string, other *File) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		name, kind := parseMark(line)
		body, ok := other.blocks[name]
		if kind != markPlace || !ok || strings.Contains(text, "-- <"+name+">\n") {
			out.WriteString(line)
			continue
		}
		indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
		for line := range strings.Lines("-- <" + name + ">\n" + body + "-- </" + name + ">\n") {
			if line != "\n" {
				out.WriteString(indent)
			}
			out.WriteString(line)
		}
	}
	return out.String()
}

// Name is the file's name.
func (f *File) Name() string { return f.name }

// Script is the whole file as a script.
func (f *File) Script() *Script { return New(f.text) }

// Blocks are the texts of the blocks, by their names.
func (f *File) Blocks() map[string]string { return maps.Clone(f.blocks) }

// Has reports whether f has a block of that name.
func (f *File) Has(block string) bool {
	_, ok := f.blocks[block]
	return ok
}

// With returns f with the blocks of other in place of its own blocks of the same names.
func (f *File) With(other *File) *File {
	changed := &File{name: f.name, blocks: maps.Clone(f.blocks)}
	maps.Copy(changed.blocks, other.blocks)
	var text strings.Builder
	skip := ""
	for line := range strings.Lines(f.text) {
		mark, kind := parseMark(line)
		if skip == "" || kind == markEnd && mark == skip {
			text.WriteString(line)
			skip = ""
		}
		if body, ok := other.blocks[mark]; skip == "" && kind == markBegin && ok {
			text.WriteString(body)
			skip = mark
		}
	}
	changed.text = text.String()
	return changed
}

// Wrap returns f with text before and behind what is in the block of that name, if it has one.
func (f *File) Wrap(block, before, behind string) *File {
	inside, ok := f.blocks[block]
	if !ok {
		return f
	}
	wrapped := before
	for line := range strings.Lines(inside) {
		wrapped += "  " + line
	}
	parsed := Parse(f.name, f.With(&File{blocks: map[string]string{block: wrapped + behind}}).text)
	for name, text := range f.blocks { // those that are not in its text
		if _, ok := parsed.blocks[name]; !ok {
			parsed.blocks[name] = text
		}
	}
	return parsed
}

// Set returns f with one block more, or another text for it, for [File.Fill].
func (f *File) Set(block, text string) *File {
	set := &File{name: f.name, text: f.text, blocks: maps.Clone(f.blocks)}
	set.blocks[block] = text
	return set
}

// Named returns f with another name.
func (f *File) Named(name string) *File { return &File{name: name, text: f.text, blocks: f.blocks} }

// MoveArguments returns f with blocks that find their arguments so many places further
// back in ARGV: a number, or a variable of the script. The clock's stay where they are, at the end.
func (f *File) MoveArguments(by any) *File {
	moved := &File{name: f.name, text: f.text, blocks: map[string]string{}}
	for name, text := range f.blocks {
		if name != "clock" {
			text = strings.ReplaceAll(text, "ARGV[", fmt.Sprintf("ARGV[%v + ", by))
		}
		moved.blocks[name] = text
	}
	return moved
}

// Move returns f with another name for a block.
func (f *File) Move(block, to string) *File {
	moved := f.Set(to, f.blocks[block])
	delete(moved.blocks, block)
	return moved
}

// AnswerInWords returns f with the words of a run as its answer: an array of integers,
// instead of one integer that holds all words.
func (f *File) AnswerInWords() *File {
	answer := "local out, size = {}, 0\n" + f.blocks["words"] + "return out\n"
	return f.With(&File{blocks: map[string]string{"answer": answer}})
}

// Fill puts the block of its name behind every line "-- <name/>" of template, which then is
// "-- <name>": so a line of a script leads to its block. A line
// "-- <name?/>" is removed if f has no such block. Without the question mark Fill panics
// if there is no such block, so that the first test finds a mistyped name.
//
// The lines between "-- <if name>" and "-- </if name>" stay only if f has a block of that name, and
// those between "-- <unless name>" and "-- </unless name>" only if it has none.
//
// The blocks are spliced, not called: a function for each block would cost Redis a
// closure in every execution.
func (f *File) Fill(template string) *Script { return New(f.Text(template)) }

// Text is the source of the script that [File.Fill] makes.
func (f *File) Text(template string) string {
	var out strings.Builder
	f.fillTo(&out, template, "")
	return out.String()
}

// fillTo writes the filled template, with indent in front of each line that is not empty.
func (f *File) fillTo(out *strings.Builder, template, indent string) {
	out.Grow(len(template))
	skip := ""
	for line := range strings.Lines(template) {
		mark, kind := parseMark(line)
		if word, block, ok := strings.Cut(mark, " "); ok && (skip == "" || skip == mark) {
			skip = ""
			if _, has := f.blocks[block]; kind == markBegin && has != (word == "if") {
				skip = mark
			}
			continue
		}
		if skip != "" {
			continue
		}
		if kind != markPlace {
			if line != "\n" {
				out.WriteString(indent)
			}
			out.WriteString(line)
			continue
		}
		name, optional := strings.CutSuffix(mark, "?")
		body, ok := f.blocks[name]
		if !ok && !optional {
			panic(fmt.Sprintf("script: %s has no block <%s>", f.name, name))
		}
		deeper := line[:len(line)-len(strings.TrimLeft(line, " "))]
		if body != "" {
			out.WriteString(indent + deeper + "-- <" + name + ">\n")
		}
		f.fillTo(out, body, indent+deeper)
	}
}

type markKind int

const (
	markNone  markKind = iota
	markBegin          // -- <name>
	markEnd            // -- </name>
	markPlace          // -- <name/>
)

// parseMark returns the name in a line that marks a block, and the kind of the mark.
func parseMark(line string) (name string, kind markKind) {
	name, ok := strings.CutPrefix(strings.TrimSpace(line), "-- <")
	if !ok {
		return "", markNone
	}
	name, ok = strings.CutSuffix(name, ">")
	if !ok {
		return "", markNone
	}
	if end, ok := strings.CutPrefix(name, "/"); ok {
		return end, markEnd
	}
	if place, ok := strings.CutSuffix(name, "/"); ok {
		return place, markPlace
	}
	return name, markBegin
}
