package main

import (
	"fmt"
	"os"
)

// progress shows on a terminal what is going on, in one line.
func progress(format string, args ...any) {
	if watched {
		fmt.Fprintf(os.Stderr, "\r\033[K"+format, args...)
	}
}

var watched = func() bool {
	info, err := os.Stderr.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}()
