package redistest

import (
	"bytes"
	"strconv"
)

// longestLine bounds a header line. A stream with a longer line is not the Redis protocol.
const longestLine = 64 << 10

// frames finds the ends of requests and replies in a stream of RESP2 or RESP3. It understands just enough of the protocol
// to count them, in whatever chunks they arrive.
type frames struct {
	line   []byte // a header line whose end has not arrived yet
	skip   int    // bytes of a bulk string still to come, with the line end after it
	need   int    // values still to come until the frame is complete
	kind   byte   // the first byte of the frame
	opaque bool   // the stream is something else, such as TLS
}

// next consumes p up to the end of the current frame. It returns how many bytes that were, and whether the frame is
// complete with them. In an opaque stream all of p belongs to a frame that never ends.
func (f *frames) next(p []byte) (n int, done bool) {
	for n < len(p) && !f.opaque {
		if f.skip == 0 && f.need == 0 && len(f.line) == 0 {
			f.kind = p[n]
		}
		if f.skip > 0 {
			k := min(f.skip, len(p)-n)
			f.skip -= k
			n += k
		} else {
			end := bytes.IndexByte(p[n:], '\n')
			if end < 0 {
				f.line = append(f.line, p[n:]...)
				f.opaque = len(f.line) > longestLine
				return len(p), false
			}
			f.line = append(f.line, p[n:n+end]...)
			n += end + 1
			f.header(bytes.TrimSuffix(f.line, []byte("\r")))
			f.line = f.line[:0]
		}
		if f.skip == 0 && f.need == 0 && !f.opaque {
			return n, true
		}
	}
	return len(p), false
}

// header takes one line, without its end.
func (f *frames) header(line []byte) {
	if len(line) == 0 || line[0] < ' ' || line[0] > '~' {
		f.opaque = true
		return
	}
	if f.need == 0 {
		f.need = 1
	}
	count := func() int {
		n, err := strconv.Atoi(string(line[1:]))
		f.opaque = f.opaque || err != nil
		return max(n, 0) // -1 is a nil, with nothing after it
	}
	f.need--
	switch line[0] {
	case '*', '~', '>':
		f.need += count()
	case '%':
		f.need += 2 * count()
	case '|': // attributes come before the value that they belong to
		f.need += 2*count() + 1
	case '$', '!', '=':
		if n := count(); n > 0 || line[1] == '0' {
			f.skip = n + len("\r\n")
		}
	}
}

// push reports whether the current frame is a push message: the server sent it unasked, so it is no reply.
func (f *frames) push() bool { return f.kind == '>' }
