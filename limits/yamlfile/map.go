package yamlfile

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v4"
)

// A Map is the fields of a map, in the order of the file.
type Map struct {
	file   *File
	line   int
	what   string // names the map in mistakes, "" for the file
	fields []Field
}

// A Field is one of a Map.
type Field struct {
	Name  string
	Line  int
	Value Value
}

// most merged fields of a file: aliases of aliases multiply.
const mostMerged = 10_000

// Map is the fields of a map. The fields of "<<", which are those of other maps, come last, without those that the map
// has itself.
func (v Value) Map() Map {
	m := Map{file: v.file, line: v.line, what: v.what}
	if m.what == "the file" {
		m.what = ""
	}
	n := resolved(v.node)
	switch {
	case n == nil:
	case n.Kind != yaml.MappingNode:
		v.Errorf("is no map; write fields, such as \"name: value\"")
	default:
		m.add(n, 0)
	}
	return m
}

// add adds the fields of a node that is a map. Depth counts maps that are merged.
func (m *Map) add(n *yaml.Node, depth int) {
	var merged []*yaml.Node
	own := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := resolved(n.Content[i]), n.Content[i+1]
		switch {
		case key.Kind != yaml.ScalarNode || key.ShortTag() == "!!null":
			m.file.Errorf(max(key.Line, m.line), "%sa field's name is a text", m.in())
		case key.Value == "<<" && key.ShortTag() == "!!merge":
			merged = append(merged, value)
		case own[key.Value]:
			m.file.Errorf(key.Line, "%s%s is given twice", m.in(), Shown(key.Value))
		default:
			own[key.Value] = true
			if depth == 0 || !m.has(key.Value) {
				m.fields = append(m.fields, Field{key.Value, key.Line, Value{m.file, value, max(key.Line, m.line), m.in() + Shown(key.Value)}})
			}
		}
	}
	for _, value := range merged {
		maps := []*yaml.Node{value}
		if list := resolved(value); list.Kind == yaml.SequenceNode {
			maps = list.Content
		}
		for _, from := range maps {
			from = resolved(from)
			m.file.merges += 1 + len(from.Content)/2
			switch {
			case from.Kind != yaml.MappingNode:
				m.file.Errorf(value.Line, "%s<< is no map", m.in())
			case depth > 10 || m.file.merges > mostMerged:
				m.file.Errorf(value.Line, "%s<< merges too many maps", m.in())
				return
			default:
				m.add(from, depth+1)
			}
		}
	}
}

var plainName = regexp.MustCompile(`^[\pL\d_./:*-]+$`)

// Shown is a name as mistakes have it: in quotes if it is no word.
func Shown(name string) string {
	if plainName.MatchString(name) {
		return name
	}
	return strconv.Quote(name)
}

func (m *Map) in() string {
	if m.what == "" {
		return ""
	}
	return m.what + ": "
}

func (m *Map) has(name string) bool {
	return slices.ContainsFunc(m.fields, func(f Field) bool { return f.Name == name })
}

// Line is where the map begins.
func (m Map) Line() int { return m.line }

// Errorf notes a mistake in the line where the map begins.
func (m Map) Errorf(format string, args ...any) {
	m.file.Errorf(m.line, "%s", m.in()+fmt.Sprintf(format, args...))
}

// Called is the map under another name for mistakes.
func (m Map) Called(what string) Map {
	m.what = what
	m.fields = slices.Clone(m.fields)
	for i, f := range m.fields {
		m.fields[i].Value.what = m.in() + Shown(f.Name)
	}
	return m
}

// Name is what mistakes call the map.
func (m Map) Name() string { return m.what }

// Fields are all of them.
func (m Map) Fields() []Field { return m.fields }

// Get is the value of a field; if it is not given, the line of the map.
func (m Map) Get(name string) Value {
	for _, f := range m.fields {
		if f.Name == name {
			return f.Value
		}
	}
	return Value{file: m.file, line: m.line, what: m.in() + Shown(name)}
}

// Must is Get for a field that has to be given. The remedy says what to write.
func (m Map) Must(name, remedy string) Value {
	v := m.Get(name)
	if !v.Given() {
		v.Errorf("is missing; %s", remedy)
	}
	return v
}

// Only notes a mistake for each other field, with the name that was meant if one is near.
func (m Map) Only(names ...string) {
	for _, f := range m.fields {
		if !slices.Contains(names, f.Name) {
			m.file.Errorf(f.Line, "%s%s is no field here; %s", m.in(), Shown(f.Name), Instead(f.Name, names))
		}
	}
}
