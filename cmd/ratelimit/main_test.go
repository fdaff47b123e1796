package main

import (
	"os"
	"testing"

	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	redistest.StopShared()
	os.Exit(code)
}
