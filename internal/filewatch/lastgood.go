package filewatch

import "sync"

// A LastGood reads files each time that they are asked for. While they cannot be read, what was read last is in force. It is
// safe for concurrent use.
type LastGood[T any] struct {
	Read func() (T, error)

	// Report gets nil when the files are in force again, and each reason why they are not once.
	Report func(error)

	mu     sync.Mutex
	last   *T     // nil: nothing has been read yet
	reason string // why the files could not be read the last time
}

// Get is what the files hold, or held last. The error is that of files that could never be read.
func (l *LastGood[T]) Get() (T, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	read, err := l.Read()
	switch {
	case err == nil:
		l.last = &read
		if l.reason != "" {
			l.reason = ""
			l.Report(nil)
		}
	case l.last == nil:
		return read, err
	case l.reason != err.Error():
		l.reason = err.Error()
		l.Report(err)
	}
	return *l.last, nil
}
