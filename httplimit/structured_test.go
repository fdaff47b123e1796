package httplimit_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A structuredItem is a String with parameters that are Integers, which is all of RFC 9651 that
// the fields use.
type structuredItem struct {
	Value      string
	Parameters map[string]int64
}

// parseStructured reads a List of such items as RFC 9651, section 4.2, says, and refuses
// everything else. It was written from the RFC, and shares nothing with the code that it checks.
func parseStructured(field string) (items []structuredItem, err error) {
	p := structuredParser{strings.Trim(field, " ")}
	if p.rest == "" {
		return nil, nil
	}
	for {
		item, err := p.item()
		if err != nil {
			return nil, err
		}
		items = append(items, item)
		p.rest = strings.TrimLeft(p.rest, " \t")
		if p.rest == "" {
			return items, nil
		}
		if p.next() != ',' {
			return nil, fmt.Errorf("no comma before %q", p.rest)
		}
		if p.rest = strings.TrimLeft(p.rest, " \t"); p.rest == "" {
			return nil, fmt.Errorf("a comma at the end")
		}
	}
}

type structuredParser struct{ rest string }

func (p *structuredParser) next() byte {
	if p.rest == "" {
		return 0
	}
	c := p.rest[0]
	p.rest = p.rest[1:]
	return c
}

func (p *structuredParser) item() (structuredItem, error) {
	item := structuredItem{Parameters: map[string]int64{}}
	if p.next() != '"' {
		return item, fmt.Errorf("no quote before %q", p.rest)
	}
	for {
		switch c := p.next(); {
		case c == '"':
			return item, p.parameters(item.Parameters)
		case c == '\\':
			if c = p.next(); c != '"' && c != '\\' {
				return item, fmt.Errorf("%q is escaped", c)
			}
			item.Value += string(c)
		case c < 0x20 || c > 0x7e:
			return item, fmt.Errorf("%q in a String, or its end is missing", c)
		default:
			item.Value += string(c)
		}
	}
}

func (p *structuredParser) parameters(into map[string]int64) error {
	for strings.HasPrefix(p.rest, ";") {
		p.rest = strings.TrimLeft(p.rest[1:], " ")
		name := p.rest[:len(p.rest)-len(strings.TrimLeft(p.rest, "abcdefghijklmnopqrstuvwxyz0123456789_-.*"))]
		if name == "" || strings.Contains("0123456789_-.", name[:1]) {
			return fmt.Errorf("%q is no name of a parameter", name)
		}
		p.rest = p.rest[len(name):]
		if p.next() != '=' {
			return fmt.Errorf("the parameter %s has no value", name)
		}
		sign := ""
		if strings.HasPrefix(p.rest, "-") {
			sign, p.rest = "-", p.rest[1:]
		}
		digits := p.rest[:len(p.rest)-len(strings.TrimLeft(p.rest, "0123456789"))]
		if p.rest = p.rest[len(digits):]; len(digits) > 15 || strings.HasPrefix(p.rest, ".") {
			return fmt.Errorf("%q is no Integer", digits+p.rest)
		}
		n, err := strconv.ParseInt(sign+digits, 10, 64)
		if err != nil {
			return err
		}
		into[name] = n
	}
	return nil
}

// TestTheParserOfTheTests: on the examples of the draft, and on what is wrong.
func TestTheParserOfTheTests(t *testing.T) {
	for field, want := range map[string][]structuredItem{
		`"burst";q=100;w=60,"daily";q=1000;w=86400`: {{"burst", map[string]int64{"q": 100, "w": 60}}, {"daily", map[string]int64{"q": 1000, "w": 86400}}},
		`"default";r=50;t=30`:                       {{"default", map[string]int64{"r": 50, "t": 30}}},
		`"a\"b\\" ,	"c"; r=-1`:                      {{`a"b\`, map[string]int64{}}, {"c", map[string]int64{"r": -1}}},
		`"x";q=999999999999999`:                     {{"x", map[string]int64{"q": 999_999_999_999_999}}},
		"":                                          nil,
	} {
		items, err := parseStructured(field)
		require.NoError(t, err, field)
		require.Equal(t, want, items, field)
	}
	for _, field := range []string{
		`default;r=1`, `"a`, `"a\`, `"a\x"`, `"a";`, `"a";r`, `"a";r=`, `"a";R=1`, `"a";1=1`, `"a";r=1.5`, `"a";r=1000000000000000`,
		`"a",`, `"a" "b"`, `"a";r =1`, "\"\x7f\"", `"é"`, `"a";r=x`,
	} {
		_, err := parseStructured(field)
		require.Error(t, err, field)
	}
}
