package ratelimit

import (
	_ "embed"
	"sync"

	"github.com/tryacquire/ratelimit/internal/script"
)

var (
	//go:embed scripts/peek.lua
	peekTemplate string
	//go:embed scripts/many.lua
	manyTemplate string
	//go:embed scripts/reserve.lua
	reserveTemplate string
	//go:embed scripts/cancel.lua
	cancelText string
	//go:embed scripts/callersclock.lua
	callersClockText string

	callersClock = script.Parse("callersclock.lua", callersClockText)
	cancelScript = script.New(cancelText)
)

// scripts are what an algorithm runs on Redis: its file, and what is cut from it. They
// are assembled when the first limiter needs them.
type scripts struct {
	file, byCaller *script.File
	server, caller func() scriptSet // by the clock that decides: the server's or the caller's
}

// A scriptSet holds the scripts that decide one request, answer a Peek, decide many
// requests, and reserve permits, which is nil if the algorithm cannot.
type scriptSet struct{ one, peek, many, reserve *script.Script }

func newScripts(file *script.File) *scripts { return newScriptsOf(file, file) }

// newScriptsOf makes the scripts that decide by the caller's clock of a file of their own.
func newScriptsOf(file, byCaller *script.File) *scripts {
	return &scripts{
		file: file, byCaller: byCaller,
		server: sync.OnceValue(func() scriptSet { return assemble(file) }),
		caller: sync.OnceValue(func() scriptSet { return assemble(byCaller.With(callersClock)) }),
	}
}

// get returns the scripts that decide by the server's clock, or by the caller's.
func (s *scripts) get(byCaller bool) scriptSet {
	if byCaller {
		return s.caller()
	}
	return s.server()
}

func assemble(file *script.File) scriptSet {
	// A Peek repairs nothing.
	set := scriptSet{one: file.Script(), peek: file.Without("rewind").Fill(peekTemplate), many: file.Fill(manyTemplate)}
	if _, ok := file.Blocks()["due"]; ok {
		set.reserve = file.Fill(reserveTemplate)
	}
	return set
}
