//go:build unix && !linux

package redistest

import "syscall"

// processAttributes cannot tie the server's life to the test process here: only cleanups stop it.
func processAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func stopped(int) bool { return true }
