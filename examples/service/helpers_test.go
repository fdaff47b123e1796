package main

import (
	"os"
	"testing"
)

// programs is the folder of what tests build.
var programs string

func TestMain(m *testing.M) {
	var err error
	if programs, err = os.MkdirTemp("", "service"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(programs)
	os.Exit(code)
}
