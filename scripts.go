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
	//go:embed scripts/upto.lua
	upToTemplate string
	//go:embed scripts/charge.lua
	chargeTemplate string
	//go:embed scripts/estimate.lua
	estimateTemplate string
	//go:embed scripts/giveback.lua
	giveBackTemplate string
	//go:embed scripts/callersclock.lua
	callersClockText string

	callersClock = script.Parse("callersclock.lua", callersClockText)
)

// scripts are what an algorithm runs on Redis: its file, and what is cut from it. They
// are assembled when the first limiter needs them.
type scripts struct {
	file, byCaller *script.File
	server, caller func() scriptSet // by the clock that decides: the server's or the caller's

	// The same for what fewer limiters need.
	moreByServer, moreByCaller func() moreScripts
}

// A scriptSet holds the scripts that decide one request, answer a Peek, and decide many
// requests.
type scriptSet struct{ one, peek, many *script.Script }

// moreScripts take as many permits as fit, charge, estimate and give back.
type moreScripts struct{ upTo, charge, estimate, giveBack *script.Script }

func newScripts(file *script.File) *scripts { return newScriptsOf(file, file) }

// newScriptsOf makes the scripts that decide by the caller's clock of a file of their own.
func newScriptsOf(file, byCaller *script.File) *scripts {
	return &scripts{
		file: file, byCaller: byCaller,
		server: sync.OnceValue(func() scriptSet { return assemble(file) }),
		caller: sync.OnceValue(func() scriptSet { return assemble(byCaller.With(callersClock)) }),

		moreByServer: sync.OnceValue(func() moreScripts { return assembleMore(file) }),
		moreByCaller: sync.OnceValue(func() moreScripts { return assembleMore(byCaller.With(callersClock)) }),
	}
}

// get returns the scripts that decide by the server's clock, or by the caller's.
func (s *scripts) get(byCaller bool) scriptSet {
	if byCaller {
		return s.caller()
	}
	return s.server()
}

// more is get for the other scripts.
func (s *scripts) more(byCaller bool) moreScripts {
	if byCaller {
		return s.moreByCaller()
	}
	return s.moreByServer()
}

func assembleMore(file *script.File) moreScripts {
	return moreScripts{
		upTo: file.Fill(upToTemplate), charge: file.Fill(chargeTemplate), estimate: file.Fill(estimateTemplate),
		giveBack: file.Without("rewind").Fill(giveBackTemplate), // it repairs nothing
	}
}

func assemble(file *script.File) scriptSet {
	// A Peek repairs nothing.
	return scriptSet{one: file.Script(), peek: file.Without("rewind").Fill(peekTemplate), many: file.Fill(manyTemplate)}
}
