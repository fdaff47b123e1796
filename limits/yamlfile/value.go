package yamlfile

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/tryacquire/ratelimit"
)

// A Value is the value of a field, or of an element of a list. Its methods read it as what it should be; if it is
// something else they note a mistake, and return what they return for a field that is not given: a zero value.
type Value struct {
	file *File
	node *yaml.Node // nil: not given
	line int
	what string // names the value in mistakes
}

// Given reports whether the field is there.
func (v Value) Given() bool { return v.node != nil }

// Line is where the value is, or, if it is not given, the map that has not got it.
func (v Value) Line() int { return v.line }

// Errorf notes a mistake in the value's line.
func (v Value) Errorf(format string, args ...any) {
	v.file.Errorf(v.line, "%s", v.what+" "+fmt.Sprintf(format, args...))
}

// resolved is the node that an alias stands for. An alias of an alias is not YAML.
func resolved(n *yaml.Node) *yaml.Node {
	if n != nil && n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// scalar is the text of the value; it is not ok if the value is not given, or is no text.
func (v Value) scalar(remedy string) (text string, ok bool) {
	n := resolved(v.node)
	switch {
	case n == nil:
		return "", false
	case n.Kind != yaml.ScalarNode:
		v.Errorf("is a %s; %s", kindName(n), remedy)
		return "", false
	case n.ShortTag() == "!!null":
		v.Errorf("has no value; %s", remedy)
		return "", false
	}
	return n.Value, true
}

func kindName(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "map"
	case yaml.SequenceNode:
		return "list"
	}
	return "value"
}

// IsText reports whether the value is a text, number or truth value.
func (v Value) IsText() bool {
	n := resolved(v.node)
	return n != nil && n.Kind == yaml.ScalarNode
}

// Text is a text.
func (v Value) Text() string {
	text, ok := v.scalar("write a text")
	if ok && text == "" {
		v.Errorf("is empty; write a text, or leave it out")
	}
	return text
}

// OneOf is one of these words.
func (v Value) OneOf(words ...string) string {
	text, ok := v.scalar("write " + Or(words))
	if !ok {
		return ""
	}
	if !slices.Contains(words, text) {
		v.Errorf("is %q; %s", text, Instead(text, words))
		return ""
	}
	return text
}

// Int is a whole number from least to most. Digits may be divided by underscores, as in 50_000.
func (v Value) Int(least, most int) int {
	remedy := fmt.Sprintf("write a whole number from %d to %d", least, most)
	text, ok := v.scalar(remedy)
	if !ok {
		return 0
	}
	digits := strings.ReplaceAll(text, "_", "")
	n, err := strconv.Atoi(digits)
	switch {
	case errors.Is(err, strconv.ErrRange), err == nil && (n < least || n > most):
		v.Errorf("is %s; %s", text, remedy)
	case err != nil || strings.HasPrefix(text, "_") || strings.HasSuffix(text, "_"):
		v.Errorf("is %q, which is no whole number; %s", text, remedy)
	default:
		return n
	}
	return 0
}

// Bool is true or false.
func (v Value) Bool() bool { return v.OneOf("true", "false") == "true" }

// Duration is a duration as time.ParseDuration reads it, or days, such as 7d.
func (v Value) Duration() time.Duration {
	const remedy = "write a duration such as 500ms, 90s, 15m or 7d"
	text, ok := v.scalar(remedy)
	if !ok {
		return 0
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.Atoi(days)
		if const24 := 24 * time.Hour; err == nil && n >= 0 && int64(n) <= math.MaxInt64/int64(const24) {
			return time.Duration(n) * const24
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		v.Errorf("is %q, which is no duration; %s", text, remedy)
		return 0
	}
	return d
}

// Rate is a rate as ratelimit.ParseRate reads it.
func (v Value) Rate() ratelimit.Rate {
	text, ok := v.scalar("write a rate such as 10/m, 500/h or 10/90s")
	if !ok {
		return ratelimit.Rate{}
	}
	r, err := ratelimit.ParseRate(text)
	if err != nil {
		v.Errorf("cannot work: %s", Plain(err))
		return ratelimit.Rate{}
	}
	return r
}

// List is the elements of a list.
func (v Value) List() []Value {
	n := resolved(v.node)
	switch {
	case n == nil:
		return nil
	case n.Kind != yaml.SequenceNode:
		v.Errorf("is no list; write [ … ] around its elements, or each in a line of its own after a dash")
		return nil
	}
	var all []Value
	at := strings.LastIndex(v.what, ": ") + 1
	if at > 0 {
		at++
	}
	for i, item := range n.Content {
		all = append(all, Value{v.file, item, max(item.Line, v.line), fmt.Sprintf("%selement %d of %s", v.what[:at], i+1, v.what[at:])})
	}
	return all
}

// Plain is the text of an error without the package's name and the class.
func Plain(err error) string {
	text := strings.TrimPrefix(err.Error(), "ratelimit: ")
	return strings.TrimPrefix(text, strings.TrimPrefix(ratelimit.ErrInvalidConfig.Error(), "ratelimit: ")+": ")
}

// OrNone is the value, or one that is not given if it is null.
func (v Value) OrNone() Value {
	if n := resolved(v.node); n != nil && n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		v.node = nil
	}
	return v
}

// MaybeEmpty is a text that may be empty.
func (v Value) MaybeEmpty() string {
	text, _ := v.scalar("write a text")
	return text
}

// Lower is the value in lower case.
func (v Value) Lower() Value {
	if n := resolved(v.node); n != nil && n.Kind == yaml.ScalarNode {
		lower := *n
		lower.Value = strings.ToLower(n.Value)
		v.node = &lower
	}
	return v
}
