// Package keyname names the keys in Redis, and reads the names again.
//
// A name is prefix:name:algorithm, the limiter's [Head], and then the caller's key, written
// so that Redis Cluster finds the same hash tag in all names of one caller's key, whichever
// limiter they belong to. Redis takes as the tag what is between the first { and the first }
// behind it, unless that is nothing:
//
//	user:42         ratelimit:api:tokenbucket{user:42}            its tag is user:42
//	{user:42}:x     ratelimit:api:tokenbucket:{user:42}:x         its tag is user:42
//	}x              ratelimit:api:tokenbucket;{;}x}               its tag is ;
//
// A key with a tag keeps it, behind a colon. A key without one is put into braces, and then
// has a tag, unless it begins with }, which would leave nothing between the braces. Two
// keys of one limiter never get one name: what follows the algorithm's id says how the key
// was written, and each way can be undone. Nor do the keys of two limiters: a head holds no
// brace, a limiter's name no colon, and no segment of either is an algorithm's id, so the
// first segment that is an id ends the head, whatever the caller's key holds.
package keyname

import "strings"

// A Head is what all names of a limiter's keys begin with: prefix:name:algorithm.
type Head string

// NewHead returns the head of a limiter.
func NewHead(prefix, name, algorithm string) Head {
	return Head(prefix + ":" + name + ":" + algorithm)
}

// Of returns the name of a caller's key.
func (h Head) Of(key string) string {
	before, behind := around(key)
	return string(h) + before + key + behind
}

// Append appends the name of a caller's key to b.
func (h Head) Append(b []byte, key string) []byte {
	before, behind := around(key)
	return append(append(append(append(b, h...), before...), key...), behind...)
}

// Size is the length of the name of a caller's key.
func (h Head) Size(key string) int {
	before, behind := around(key)
	return len(h) + len(before) + len(key) + len(behind)
}

// around is what a name has before a caller's key, and behind it.
func around(key string) (before, behind string) {
	switch {
	case hashTag(key) != "":
		return ":", ""
	case strings.HasPrefix(key, "}"):
		return ";{;", "}"
	default:
		return "{", "}"
	}
}

// Tag is the hash tag of the names of a caller's key: names with one tag are in one slot of
// a Cluster, and on one shard of a Ring. It is empty only if key is.
func Tag(key string) string {
	if tag := hashTag(key); tag != "" {
		return tag
	}
	if strings.HasPrefix(key, "}") {
		return ";"
	}
	tag, _, _ := strings.Cut(key, "}")
	return tag
}

// HasTenant reports whether a caller's key is a hash tag and then something: a limit, and who shares it.
func HasTenant(key string) bool {
	tag := hashTag(key)
	return tag != "" && key[0] == '{' && len(key) > len(tag)+2
}

// Limit returns the name of the key {gpt-4}, given the name of {gpt-4}:tenant: a key that begins with its hash tag.
func Limit(name string) string { return name[:strings.IndexByte(name, '}')+1] }

// Tickets returns the name of the key that has the tickets of the key of this name: "/tickets" stands behind the head. It has the
// same tag. It is no name of a limiter's key, because no id ends so, unless a prefix does.
func Tickets(name string) string {
	_, end := idIn(name)
	return name[:end] + "/tickets" + name[end:]
}

// hashTag is the hash tag that a text has by Redis's rule, "" if it has none.
func hashTag(text string) string {
	begin := strings.IndexByte(text, '{') + 1
	if begin == 0 {
		return ""
	}
	return text[begin : begin+max(0, strings.IndexByte(text[begin:], '}'))]
}
