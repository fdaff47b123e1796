package main

import (
	"os"
	"testing"

	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// asProgram is set for processes of the test that are the program itself.
const asProgram = "RATELIMIT_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	code := m.Run()
	redistest.StopShared()
	os.Exit(code)
}
