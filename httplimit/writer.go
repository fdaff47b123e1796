package httplimit

import (
	"bufio"
	"io"
	"net"
	"net/http"
)

// A watcher is a ResponseWriter that notes the status and counts the bytes. Unwrap is for
// http.ResponseController. What a server's ResponseWriter may have beside the interface's methods
// is added by watch, if it does have it, because handlers ask for that by a type assertion.
type watcher struct {
	http.ResponseWriter
	request  *http.Request
	status   int // the final one, 0 as long as there is none
	bytes    int64
	hijacked bool
}

// Unwrap is for http.ResponseController.
func (w *watcher) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader notes the first final status. Others are passed on as they are: several 1xx may come
// before it, from another goroutine (httputil.ReverseProxy), and for one that comes after it the
// server has its own complaint.
func (w *watcher) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.note(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *watcher) note(status int) {
	if w.status == 0 {
		w.status = status
	}
}

func (w *watcher) Write(b []byte) (int, error) {
	w.note(http.StatusOK)
	n, err := w.ResponseWriter.Write(b)
	w.bytes += int64(n)
	return n, err
}

// WriteString keeps io.WriteString from copying.
func (w *watcher) WriteString(s string) (int, error) {
	w.note(http.StatusOK)
	n, err := io.WriteString(w.ResponseWriter, s)
	w.bytes += int64(n)
	return n, err
}

// CloseNotify is what gin asks every ResponseWriter for. It does what http.CloseNotifier, which is
// deprecated, does.
func (w *watcher) CloseNotify() <-chan bool {
	if inner, ok := w.ResponseWriter.(interface{ CloseNotify() <-chan bool }); ok {
		return inner.CloseNotify()
	}
	gone, ctx := make(chan bool, 1), w.request.Context()
	go func() {
		<-ctx.Done()
		gone <- true
	}()
	return gone
}

func (w *watcher) outcome(panicked bool) (status int, bytes int64, hijacked bool) {
	status, bytes = w.status, w.bytes
	if status == 0 && !w.hijacked && !panicked {
		status = http.StatusOK
	}
	if w.request.Method == http.MethodHead {
		bytes = 0
	}
	return status, bytes, w.hijacked
}

// The methods that only some ResponseWriters have.
type (
	flusher    struct{ w *watcher }
	hijacker   struct{ w *watcher }
	readerFrom struct{ w *watcher }
	pusher     struct{ w *watcher }
)

func (f flusher) Flush() { _ = f.FlushError() }

func (f flusher) FlushError() error {
	f.w.note(http.StatusOK)
	return http.NewResponseController(f.w.ResponseWriter).Flush()
}

func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.w.ResponseWriter).Hijack()
	h.w.hijacked = h.w.hijacked || err == nil
	return conn, rw, err
}

// ReadFrom lets the server send a file without copying it.
func (f readerFrom) ReadFrom(from io.Reader) (int64, error) {
	f.w.note(http.StatusOK)
	n, err := f.w.ResponseWriter.(io.ReaderFrom).ReadFrom(from)
	f.w.bytes += n
	return n, err
}

func (p pusher) Push(target string, opts *http.PushOptions) error {
	return p.w.ResponseWriter.(http.Pusher).Push(target, opts)
}

// watch returns a ResponseWriter with the methods of w, and what notes its use.
func watch(w http.ResponseWriter, r *http.Request) (http.ResponseWriter, *watcher) {
	s := &watcher{ResponseWriter: w, request: r}
	f, h, d, p := flusher{s}, hijacker{s}, readerFrom{s}, pusher{s}
	has := 0
	if reaches[interface{ Flush() }](w) || reaches[interface{ FlushError() error }](w) {
		has |= 1
	}
	if reaches[http.Hijacker](w) {
		has |= 2
	}
	if _, ok := w.(io.ReaderFrom); ok {
		has |= 4
	}
	if _, ok := w.(http.Pusher); ok {
		has |= 8
	}
	switch has {
	case 1:
		return struct {
			*watcher
			flusher
		}{s, f}, s
	case 2:
		return struct {
			*watcher
			hijacker
		}{s, h}, s
	case 1 | 2:
		return struct {
			*watcher
			flusher
			hijacker
		}{s, f, h}, s
	case 4:
		return struct {
			*watcher
			readerFrom
		}{s, d}, s
	case 1 | 4:
		return struct {
			*watcher
			flusher
			readerFrom
		}{s, f, d}, s
	case 2 | 4:
		return struct {
			*watcher
			hijacker
			readerFrom
		}{s, h, d}, s
	case 1 | 2 | 4: // HTTP/1
		return struct {
			*watcher
			flusher
			hijacker
			readerFrom
		}{s, f, h, d}, s
	case 8:
		return struct {
			*watcher
			pusher
		}{s, p}, s
	case 1 | 8: // HTTP/2
		return struct {
			*watcher
			flusher
			pusher
		}{s, f, p}, s
	case 2 | 8:
		return struct {
			*watcher
			hijacker
			pusher
		}{s, h, p}, s
	case 1 | 2 | 8:
		return struct {
			*watcher
			flusher
			hijacker
			pusher
		}{s, f, h, p}, s
	case 4 | 8:
		return struct {
			*watcher
			readerFrom
			pusher
		}{s, d, p}, s
	case 1 | 4 | 8:
		return struct {
			*watcher
			flusher
			readerFrom
			pusher
		}{s, f, d, p}, s
	case 2 | 4 | 8:
		return struct {
			*watcher
			hijacker
			readerFrom
			pusher
		}{s, h, d, p}, s
	case 1 | 2 | 4 | 8:
		return struct {
			*watcher
			flusher
			hijacker
			readerFrom
			pusher
		}{s, f, h, d, p}, s
	}
	return s, s
}

// reaches reports whether w or what it wraps is a T, as http.ResponseController looks for it.
func reaches[T any](w http.ResponseWriter) bool {
	for {
		if _, ok := w.(T); ok {
			return true
		}
		inner, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return false
		}
		w = inner.Unwrap()
	}
}
