// Package scripts assembles what limiters run on Redis from the files of the folder scripts.
package scripts

import (
	"sync"

	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/script"
	lua "github.com/tryacquire/ratelimit/scripts"
)

// Scripts are what an algorithm runs on Redis: its file, and what is cut from it. They
// are assembled when the first limiter needs them.
type Scripts struct {
	algorithms.File
	whole, byCaller *script.File
	callers         func() *script.File // byCaller with the caller's clock
	server, caller  func() Set          // by the clock that decides: the server's or the caller's
}

// A Set holds the scripts that decide one request, answer a Peek, decide many
// requests, and decide any operations, many or one. Reserves says whether these can reserve permits.
type Set struct {
	One, Peek, Many, Operations, Alone *script.Script
	ManyOfSeveral, OperationsOfSeveral *script.Script // for keys of several limiters
	Extend                             *script.Script // the lease of a hold
	Reserves                           bool
}

var (
	callersClock = load("callersclock")
	once         = load("all_once")                                      // requests to several limiters under ids
	common       = []*script.File{load("bucket_rules"), load("sliding")} // whose blocks stand in several files

	byFile = func() map[string]*Scripts {
		byFile := map[string]*Scripts{}
		for _, f := range algorithms.Files() {
			whole := load(f.Name, common...)
			byCaller := whole
			if f.Name == "bucket" { // by the caller's clock the reply is words, because it includes the clock's lag
				byCaller = whole.AnswerInWords()
			}
			byFile[f.Name] = newScripts(f, whole, byCaller)
		}
		return byFile
	}()

	// WideWindow is for fixed windows whose answer in one integer could be beyond 2^53.
	WideWindow = func() *Scripts {
		wide := Of("fixedwindow").whole.AnswerInWords()
		return newScripts(Of("fixedwindow").File, wide, wide)
	}()

	// BucketInWords is for one request to a bucket: a reply of one integer does not hold what another rule's state says.
	BucketInWords = sync.OnceValue(func() *script.Script { return Of("bucket").byCaller.Script() })
)

// text is that of a file.
func text(name string) string {
	b, err := lua.Texts.ReadFile(name)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// load reads a file, with those blocks of others for which a line of it stands.
func load(name string, others ...*script.File) *script.File {
	whole := text(name + ".lua")
	for _, other := range others {
		whole = script.Include(whole, other)
	}
	return script.Parse(name+".lua", whole)
}

// newScripts makes the scripts that decide by the caller's clock of a file of their own.
func newScripts(f algorithms.File, whole, byCaller *script.File) *Scripts {
	callers := sync.OnceValue(func() *script.File { return byCaller.With(callersClock) })
	return &Scripts{
		File: f, whole: whole, byCaller: byCaller, callers: callers,
		server: sync.OnceValue(func() Set { return Assemble(whole) }),
		caller: sync.OnceValue(func() Set { return Assemble(callers()) }),
	}
}

// Of are the scripts of a file of the table, such as "bucket".
func Of(file string) *Scripts {
	s := byFile[file]
	if s == nil {
		panic("no scripts of " + file)
	}
	return s
}

// Get returns the scripts that decide by the server's clock, or by the caller's.
func (s *Scripts) Get(byCaller bool) Set {
	if byCaller {
		return s.caller()
	}
	return s.server()
}

// Whole is the file that decides by the server's clock, or by the caller's.
func (s *Scripts) Whole(byCaller bool) *script.File {
	if byCaller {
		return s.callers()
	}
	return s.whole
}

// Assemble makes the scripts of one algorithm.
func Assemble(file *script.File) Set {
	if file.Has("hold") { // permits in flight
		return Set{
			One: file.Script(), Peek: file.Set("hold", "local id = ''\n").Fill(text("peek.lua")), Operations: file.Fill(text("holds.lua")),
			Extend: script.Parse("inflight_extend.lua", text("inflight_extend.lua")).With(file).Script(),
		}
	}
	any := forOperations(file)
	set := Set{
		One:                 file.Script(),
		Peek:                file.Fill(text("peek.lua")),
		Many:                file.Fill(text("many.lua")),
		Operations:          any.Fill(text("operations.lua")),
		Alone:               any.Set("alone", "").Fill(text("operations.lua")),
		ManyOfSeveral:       ofSeveral(file).Fill(text("many.lua")),
		OperationsOfSeveral: ofSeveral(any).Fill(text("operations.lua")),
	}
	set.Reserves = file.Has("receipt")
	return set
}

// forOperations returns file with blocks for operations of all kinds.
func forOperations(file *script.File) *script.File {
	if load, ok := file.Blocks()["state"]; ok { // with tickets, see addTickets
		return file.Set("state", forOperations(script.Parse("state", load)).Script().Source())
	}
	return file.Wrap("rewind", "if not back then -- giving back repairs nothing\n", "end\n")
}

// ofSeveral returns file with blocks that read the arguments of each key's own limiter, which are
// behind so many others in ARGV.
func ofSeveral(file *script.File) *script.File {
	return file.MoveArguments("front").Move("config", "own")
}
