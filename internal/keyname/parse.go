package keyname

import (
	"strings"

	"github.com/tryacquire/ratelimit/internal/algorithms"
)

// Parts are what a name is made of.
type Parts struct {
	Prefix, Name, Algorithm string // of the limiter; Algorithm is an id, with its number if it has one
	Key                     string // the caller's
}

// Parse returns the parts of a name, and whether it is one: whether a limiter with this
// prefix, name and algorithm gives it to this key.
func Parse(name string) (Parts, bool) {
	begin, end := idIn(name)
	if end == 0 {
		return Parts{}, false
	}
	return split(name, begin, end)
}

// idIn is where the first algorithm's id of a name stands; end is 0 if there is none.
func idIn(name string) (begin, end int) {
	for begin < len(name) {
		end = len(name)
		if size := strings.IndexAny(name[begin:], ":{"); size >= 0 {
			end = begin + size
		}
		if id := strings.TrimSuffix(name[begin:end], ";"); algorithms.IsID(id) && (len(id) == end-begin || strings.HasPrefix(name[end:], "{")) {
			return begin, begin + len(id)
		}
		if !strings.HasPrefix(name[end:], ":") {
			break
		}
		begin = end + 1
	}
	return 0, 0
}

// split parses a name whose algorithm is name[begin:end].
func split(name string, begin, end int) (Parts, bool) {
	head, ok := strings.CutSuffix(name[:begin], ":")
	colon := strings.LastIndexByte(head, ':')
	if !ok || colon < 1 || colon == len(head)-1 { // no name, no prefix, or an empty one of them
		return Parts{}, false
	}
	p := Parts{Prefix: head[:colon], Name: head[colon+1:], Algorithm: name[begin:end]}
	rest := name[end:]
	for _, before := range []string{":", ";{;", "{"} {
		if key, ok := strings.CutPrefix(rest, before); ok {
			p.Key = key
			if before != ":" {
				p.Key = strings.TrimSuffix(key, "}")
			}
			break
		}
	}
	if p.Key == "" || strings.ContainsAny(head, "{}") || Head(name[:end]).Of(p.Key) != name {
		return Parts{}, false
	}
	return p, true
}
