package yamlfile

import (
	"math"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// Any is whatever it is, as JSON has it: nil, a bool, number or string, a []any or a map[string]any. The words of YAML 1.1 for
// truth values (yes, no, on, off, y, n) are truth values, unless they are in quotes.
func (v Value) Any() any {
	n := resolved(v.node)
	switch {
	case n == nil:
		return nil
	case n.Kind == yaml.MappingNode:
		all := map[string]any{}
		for _, f := range v.Map().Fields() {
			all[f.Name] = f.Value.Any()
		}
		return all
	case n.Kind == yaml.SequenceNode:
		all := []any{}
		for _, element := range v.List() {
			all = append(all, element.Any())
		}
		return all
	}
	if n.Style == 0 && n.ShortTag() == "!!str" {
		switch word := strings.ToLower(n.Value); {
		case slices.Contains([]string{"y", "yes", "on"}, word):
			return true
		case slices.Contains([]string{"n", "no", "off"}, word):
			return false
		}
	}
	var value any
	if err := n.Decode(&value); err != nil {
		v.Errorf("cannot be read: %v", err)
		return nil
	}
	switch value := value.(type) {
	case time.Time:
		return n.Value
	case float64:
		if math.IsNaN(value) || math.IsInf(value, 0) {
			v.Errorf("is %s, which is no number in JSON; write it in quotes", n.Value)
		}
	}
	return value
}
