package ratelimit

import (
	_ "embed"
	"fmt"
	"strings"
	"sync"

	"github.com/tryacquire/ratelimit/internal/script"
)

var (
	//go:embed scripts/peek.lua
	peekTemplate string
	//go:embed scripts/many.lua
	manyTemplate string
	//go:embed scripts/all.lua
	allTemplate string
	//go:embed scripts/all_one.lua
	allOneTemplate string
	//go:embed scripts/all_peek.lua
	allPeekTemplate string
	//go:embed scripts/all_limiter.lua
	allLimiterTemplate string
	//go:embed scripts/all_peek_limiter.lua
	allPeekLimiterTemplate string
	//go:embed scripts/callersclock.lua
	callersClockText string

	callersClock = script.Parse("callersclock.lua", callersClockText)
)

// scripts are what an algorithm runs on Redis: its file, and what is cut from it. They
// are assembled when the first limiter needs them.
type scripts struct {
	file, byCaller *script.File
	server, caller func() scriptSet // by the clock that decides: the server's or the caller's
	locals         int              // local variables that a limiter adds to a script of several, see maxLocals
}

// A scriptSet holds the scripts that decide one request, answer a Peek, and decide many
// requests.
type scriptSet struct{ one, peek, many *script.Script }

func newScripts(file *script.File, locals int) *scripts { return newScriptsOf(file, file, locals) }

// newScriptsOf makes the scripts that decide by the caller's clock of a file of their own.
func newScriptsOf(file, byCaller *script.File, locals int) *scripts {
	return &scripts{
		file: file, byCaller: byCaller, locals: locals,
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
	return scriptSet{one: file.Script(), peek: file.Without("rewind").Fill(peekTemplate), many: file.Fill(manyTemplate)}
}

// assembleAll makes the scripts of limiters that decide together. args are the numbers
// of their arguments.
func assembleAll(files []*script.File, args []int) scriptSet {
	configured := 0
	for _, n := range args {
		configured += n
	}
	shape := fmt.Sprintf("local limiters, configured = %d, %d\n", len(files), configured)
	clock := ""
	var limiters, peeks string
	for i := len(files) - 1; i >= 0; i-- {
		file := files[i]
		if text, ok := file.Blocks()["clock"]; ok {
			clock = text
		}
		configured -= args[i]
		request := fmt.Sprintf("local key, n, times = KEYS[skipped + %d], ARGV[request + %d] + 0, times\n", i+1, i+1)
		fill := func(file *script.File, template, inner string) string {
			// The limiter's first argument is the one that its own script finds at ARGV[2].
			file = file.MoveArguments(configured-1).Set("request", request).Set("inner", inner)
			return file.Fill(body(template)).Source
		}
		limiters = fill(file, allLimiterTemplate, limiters)
		peeks += fill(file.Without("rewind"), allPeekLimiterTemplate, "")
	}
	whole := script.Parse("all", "").Set("shape", shape)
	if clock != "" {
		whole = whole.Set("clock", clock)
	}
	all := whole.Set("limiters", limiters)
	return scriptSet{one: all.Fill(allOneTemplate), peek: whole.Set("limiters", peeks).Fill(allPeekTemplate), many: all.Fill(allTemplate)}
}

// body is a template without its header, which would be repeated for each limiter.
func body(template string) string { return template[strings.Index(template, "do\n"):] }
