package script

import "strings"

// Locals is the most local variables that are in scope at once in a function of text, which
// is laid out as the scripts are: every scope is indented, and ends at the next line that is
// indented less. It never counts too few.
func Locals(text string) int {
	type scope struct{ indent, outside int } // outside: variables in scope when it began, of the same function
	var open []scope
	now, most := 0, 0
	for line := range strings.Lines(text) {
		code := strings.TrimLeft(line, " ")
		if code == "\n" || strings.HasPrefix(code, "--") {
			continue
		}
		indent := len(line) - len(code)
		for len(open) > 0 && open[len(open)-1].indent > indent {
			now = open[len(open)-1].outside
			open = open[:len(open)-1]
		}
		if len(open) == 0 || open[len(open)-1].indent < indent {
			open = append(open, scope{indent, now})
		}
		first, rest, _ := strings.Cut(strings.TrimSpace(code), " ")
		names, _, _ := strings.Cut(rest, "=")
		inside := 0 // variables of the scope that this line begins
		switch {
		case first == "local" && strings.HasPrefix(names, "function "):
			now++
		case first == "local":
			now += 1 + strings.Count(names, ",")
		case first == "for": // and three that the loop has for itself
			names, _, _ = strings.Cut(names, " in ")
			inside = 4 + strings.Count(names, ",")
		}
		begins := strings.Contains(code, "function(") || strings.Contains(code, "function ")
		if begins && !strings.HasSuffix(code, "end\n") { // its variables are its own
			open = append(open, scope{indent + 1, now})
			now = 0
			_, params, _ := strings.Cut(code[strings.Index(code, "function"):], "(")
			params, _, _ = strings.Cut(params, ")")
			if params != "" {
				inside = 1 + strings.Count(params, ",")
			}
		} else if inside > 0 {
			open = append(open, scope{indent + 1, now})
		}
		now += inside
		most = max(most, now)
	}
	return most
}
