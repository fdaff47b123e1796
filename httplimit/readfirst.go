package httplimit

import (
	"bytes"
	"io"
	"net/http"
)

// WithReadFirst reads the body of a request that has to wait (see [WithMaxWait]) before it waits, up to
// most bytes. Over HTTP/1.1, net/http notices that a client has gone away only when the body has been
// read to its end. Without this option, a request with a body, whose client goes away while it waits,
// keeps its turn, and its handler runs for nobody. Over HTTP/2, and for requests without a body, the
// option is not needed.
//
// The handler reads the whole body as without the option. A body that is longer than most is not read
// to its end, so that its client's going is not noticed. A request that is allowed at once is not read.
// One whose body cannot be read is denied at once. Each request that waits keeps up to most bytes in
// memory. The time that a client takes to send the body counts towards the wait, and only the server's
// ReadTimeout ends it. most is 1 or more.
func WithReadFirst(most int) Option {
	return aboutWhole("WithReadFirst", func(m *middleware) error {
		if most < 1 {
			return invalidConfig("WithReadFirst: %d bytes; give 1 or more", most)
		}
		m.readFirst = most
		return nil
	})
}

// readBody reads up to most bytes of r's body, and puts them back. It reports whether it could.
func readBody(r *http.Request, most int) bool {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength > int64(most) {
		return true
	}
	// One byte more than most: to see the end of a body of just that length.
	read, err := io.ReadAll(io.LimitReader(r.Body, int64(most)+1))
	r.Body = &readAhead{io.MultiReader(bytes.NewReader(read), r.Body), r.Body}
	return err == nil
}

// A readAhead is a body whose first bytes were read before.
type readAhead struct {
	io.Reader
	io.Closer
}
