//go:build unix

package main

import "syscall"

// ownProcessor is the time that this process has had of the processors, in microseconds.
func ownProcessor() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1000
}
