package main

import (
	"bytes"
	"errors"
	"fmt"
	"time"
)

// A request is what one line of an access log holds. The slices point into the
// line.
type request struct {
	at     int64  // microseconds since the Unix epoch
	zone   int    // seconds east of UTC
	client []byte // as written; resolve replaces it
	line   []byte // method, target and protocol, as written
	agent  []byte // nil when the line has none

	forwarded []byte // the field behind the user agent, nil when the line has none
	format    string
}

// Times before 1970 and far ahead are damage, not traffic.
const (
	earliest = 0
	latest   = 4_000_000_000 // 2096, as Unix time
)

var (
	errNoClient  = errors.New("it does not start with a client address")
	errList      = errors.New("it starts with a list of addresses; log the connection's address there, and X-Forwarded-For behind the user agent")
	errNoTime    = errors.New(`no [time] followed by a "request"`)
	errNoRequest = errors.New("the quoted request has no end")
)

// The formats of lines that are not JSON.
const (
	formatCommon = "common or combined"
	formatVhost  = "common or combined behind a virtual host"
)

// parseLine reads a line in the common or combined log format,
//
//	client ident user [time] "request" status bytes "referer" "user agent" "forwarded for"
//
// without its line ending, or in JSON. What follows the request may be missing, and further
// fields may follow the user agent. Users may hold spaces. In front of the client
// may be a virtual host: then the second field is an address, which no ident is.
func parseLine(b []byte) (request, error) {
	if len(b) > 0 && b[0] == '{' {
		return parseJSON(b)
	}
	r := request{format: formatCommon}
	var ok bool
	if r.client, b, ok = bytes.Cut(b, []byte(" ")); !ok || len(r.client) == 0 || r.client[0] == '"' {
		return request{}, errNoClient
	}
	if second, rest, ok := bytes.Cut(b, []byte(" ")); ok && isAddress(second) && r.client[len(r.client)-1] != ',' {
		r.client, b, r.format = second, rest, formatVhost
	}

	// The first bracket that opens a time: a user's name may hold brackets, too.
	err := errNoTime
	for {
		open := bytes.IndexByte(b, '[')
		if open < 0 {
			return request{}, err
		}
		b = b[open+1:]
		text, _, ok := bytes.Cut(b[:min(len(b), 64)], []byte(`] "`))
		if !ok {
			continue
		}
		t, bad := parseTime(string(text))
		if bad != nil {
			err = bad
			continue
		}
		_, r.zone = t.Zone()
		r.at = t.UnixMicro()
		b = b[len(text)+len("] "):]
		break
	}

	switch {
	case r.client[len(r.client)-1] == ',':
		return request{}, errList
	case !isAddress(r.client) && !isHost(string(r.client)):
		return request{}, errNoClient
	}
	if r.line, b, ok = quoted(b, beforeStatus); !ok {
		return request{}, errNoRequest
	}
	if i := bytes.IndexByte(b, '"'); i >= 0 {
		_, b, _ = quoted(b[i:], beforeField) // the referer
		if i := bytes.IndexByte(b, '"'); i >= 0 {
			r.agent, b, ok = quoted(b[i:], beforeField) // a line cut short keeps what is left of it
			if i := bytes.IndexByte(b, '"'); ok && i >= 0 {
				if list, _, ok := quoted(b[i:], beforeField); ok {
					r.forwarded = list
				}
			}
		}
	}
	return r, nil
}

func parseTime(s string) (time.Time, error) {
	t, err := time.Parse("02/Jan/2006:15:04:05 -0700", s)
	if err != nil {
		return t, fmt.Errorf("the time %q is not like 17/May/2015:10:05:03 +0000", s)
	}
	return t, inRange(t, s)
}

func inRange(t time.Time, s string) error {
	if u := t.Unix(); u < earliest || u >= latest {
		return fmt.Errorf("the time %q is not between 1970 and 2096", s)
	}
	return nil
}

// quoted splits b, which starts with a quote, into what is quoted and what
// follows. A backslash escapes the character after it. Old servers do not escape
// quotes, so the end is the first quote after which ends holds, and else the
// first. Without any it is not ok, and everything is quoted.
func quoted(b []byte, ends func(after []byte) bool) (text, after []byte, ok bool) {
	first := -1
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			if ends(b[i+1:]) {
				return b[1:i], b[i+1:], true
			}
			if first < 0 {
				first = i
			}
		}
	}
	if first < 0 {
		return b[1:], nil, false
	}
	return b[1:first], b[first+1:], true
}

// beforeStatus: the end of the line, or a status of three digits or "-".
func beforeStatus(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	digit := func(c byte) bool { return '0' <= c && c <= '9' }
	return len(b) >= 2 && b[0] == ' ' && (b[1] == '-' ||
		len(b) >= 4 && digit(b[1]) && digit(b[2]) && digit(b[3]) && (len(b) == 4 || b[4] == ' '))
}

// beforeField: the end of the line, or a space.
func beforeField(b []byte) bool { return len(b) == 0 || b[0] == ' ' }

// appendPath appends the path of a request line without its query, or "-" if
// there is none: clients that speak no HTTP leave "-", nothing or raw bytes.
func appendPath(dst, line []byte) []byte {
	method, target, ok := bytes.Cut(line, []byte(" "))
	if !ok || !isMethod(method) {
		return append(dst, '-')
	}
	if i := bytes.LastIndex(target, []byte(" HTTP/")); i >= 0 { // a path may hold spaces
		target = target[:i]
	}
	if i := bytes.Index(target, []byte("://")); i >= 0 && bytes.IndexByte(target[:i], '/') < 0 { // sent to a proxy
		target = target[i+len("://"):]
		if i = bytes.IndexAny(target, "/?"); i < 0 || target[i] == '?' {
			return append(dst, '/')
		}
		target = target[i:]
	}
	if i := bytes.IndexAny(target, "?#"); i >= 0 {
		target = target[:i]
	}
	if len(target) == 0 {
		return append(dst, '-')
	}
	return append(dst, target...)
}

func isMethod(b []byte) bool {
	for _, c := range b {
		if (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && c != '-' && c != '_' {
			return false
		}
	}
	return len(b) > 0
}
