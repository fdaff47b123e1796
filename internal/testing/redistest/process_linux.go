package redistest

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
)

// processAttributes makes the kernel kill the server when the test process dies without running its cleanups, by a
// panic in a goroutine, a timeout or a signal. The process group lets kill reach the children that save a snapshot.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// stopped reports whether the process has really stopped: SIGSTOP is delivered a moment after it was sent.
func stopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	// The state follows the program's name, which is in parentheses and may contain parentheses.
	_, state, _ := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
	return bytes.HasPrefix(state, []byte("T"))
}
