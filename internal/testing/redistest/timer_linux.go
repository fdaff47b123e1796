package redistest

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// timer sleeps with a precision of some tens of microseconds. In an idle process the runtime's own timers are up to a
// millisecond late, because they are timeouts of epoll_wait in milliseconds. A timerfd is an ordinary event for epoll,
// and needs no busy loop, which would take a core from the server.
type timer struct {
	fd   int
	file *os.File // nil until first used
}

func (t *timer) sleep(d time.Duration) {
	if t.file == nil {
		fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
		if err != nil {
			time.Sleep(d)
			return
		}
		t.fd, t.file = fd, os.NewFile(uintptr(fd), "timerfd")
	}
	when := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}
	if err := unix.TimerfdSettime(t.fd, 0, &when, nil); err != nil {
		time.Sleep(d)
		return
	}
	var count [8]byte // how often it has expired since the last read
	if _, err := t.file.Read(count[:]); err != nil {
		time.Sleep(d)
	}
}

func (t *timer) close() {
	if t.file != nil {
		_ = t.file.Close()
	}
}
