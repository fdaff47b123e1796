package ratelimit

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/tryacquire/ratelimit/internal/script"
)

var (
	//go:embed scripts/peek.lua
	peekTemplate string
	//go:embed scripts/many.lua
	manyTemplate string
	//go:embed scripts/operations.lua
	operationsTemplate string
	//go:embed scripts/holds.lua
	holdsTemplate string
	//go:embed scripts/all.lua
	allTemplate string
	//go:embed scripts/all_common.lua
	allCommonTemplate string
	//go:embed scripts/all_one.lua
	allOneTemplate string
	//go:embed scripts/all_peek.lua
	allPeekTemplate string
	//go:embed scripts/all_limiter.lua
	allLimiterTemplate string
	//go:embed scripts/all_closure.lua
	allClosureTemplate string
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
}

// A scriptSet holds the scripts that decide one request, answer a Peek, decide many
// requests, and decide any operations, many or one. reserves says whether these can reserve permits.
type scriptSet struct {
	one, peek, many, operations, alone *script.Script
	manyOfSeveral, operationsOfSeveral *script.Script // for keys of several limiters
	extend                             *script.Script // the lease of a hold
	reserves                           bool
}

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
	if file.Has("hold") { // permits in flight
		return scriptSet{
			one: file.Script(), peek: file.Set("hold", "local id = ''\n").Fill(peekTemplate), operations: file.Fill(holdsTemplate),
			extend: inFlightExtendFile.With(file).Script(),
		}
	}
	any := file.Wrap("rewind", "if not back then -- giving back repairs nothing\n", "end\n")
	set := scriptSet{
		one:                 file.Script(),
		peek:                file.Fill(peekTemplate),
		many:                file.Fill(manyTemplate),
		operations:          any.Fill(operationsTemplate),
		alone:               any.Set("alone", "").Fill(operationsTemplate),
		manyOfSeveral:       ofSeveral(file).Fill(manyTemplate),
		operationsOfSeveral: ofSeveral(any).Fill(operationsTemplate),
	}
	set.reserves = file.Has("receipt")
	return set
}

// ofSeveral returns file with blocks that read the arguments of each key's own limiter, which are
// behind so many others in ARGV.
func ofSeveral(file *script.File) *script.File {
	return file.MoveArguments("front").Move("config", "own")
}

// A severalSet holds the scripts for requests to several limiters.
type severalSet struct {
	scriptSet
	// These are many and manyOfSeveral, for requests that have the key of this limiter in common.
	common, commonOfSeveral []*script.Script
}

// maxLocals is how many local variables a function of a script may have. Lua allows 200;
// miniredis counts among them up to eight values that an expression needs.
const maxLocals = 200 - 8

// assembleAll makes the scripts of limiters that decide together. args are the numbers
// of their arguments; tickets says which of them also say where their permits are, so that
// these can be settled. In the scripts for requests to several groups, each request says how many
// arguments are in front of those of its group.
func assembleAll(files []*script.File, args []int, tickets []bool) severalSet {
	configured := make([]int, len(files)+1) // arguments of the limiters before
	for i, n := range args {
		configured[i+1] = configured[i] + n
	}
	around := script.Parse("all", "")
	for _, f := range files {
		for _, block := range []string{"clock", "shift"} {
			if f.Has(block) {
				around = around.Set(block, f.Blocks()[block])
			}
		}
	}
	shape := fmt.Sprintf("local limiters, configured = %d, %d\n", len(files), configured[len(files)])
	// moved finds its arguments in ARGV. The first one is what its own script has in ARGV[2].
	moved := func(i int, file *script.File, front string) *script.File {
		request := fmt.Sprintf("local key, n, times = KEYS[skipped + %d], ARGV[request + %d] + 0, times\n", i+1, i+1)
		if file.Has("hold") {
			request = fmt.Sprintf("local key, times, n, id = KEYS[skipped + %d], times, string.match(ARGV[request + %d], %s)\n", i+1, i+1, aHold)
		}
		return file.MoveArguments(front+strconv.Itoa(configured[i]-1)).Set("request", request)
	}
	// settle adds the two words of a ticket, which a Peek has not. place notes where they are, for
	// a ticket that is filled in after the store.
	settle := func(i int, file *script.File, ticket, place string) *script.File {
		if !tickets[i] {
			return file.Set("settle", "").Set("sealed", "")
		}
		sealed := ""
		if file.Has("seal") && ticket != noTicket {
			ticket, sealed = place+ticket, file.Blocks()["seal"]
		}
		return file.Set("settle", ticket+"size = size + 2\n").Set("sealed", sealed)
	}
	// nested is the limiters one inside the other, in as few functions as hold their variables.
	room := maxLocals - script.Locals(around.Set("shape", shape).Set("limiters", "").Text(allOneTemplate))
	nested := func(without int, front string) string {
		inner := ""
		for i, f := range slices.Backward(files) {
			if i == without {
				continue
			}
			f = settle(i, moved(i, f, front), f.Blocks()["ticket"], "local tickets = {size}\n")
			whole := f.Set("inner", inner).Text(body(allLimiterTemplate))
			if script.Locals(whole) > room {
				inner = f.Set("inner", inner).Text(body(allClosureTemplate))
				whole = f.Set("inner", inner).Text(body(allLimiterTemplate))
			}
			inner = whole
		}
		return inner
	}
	// batch makes the scripts for many requests. front is what stands in front of the place of an argument.
	batch := func(around *script.File, shape, front string) (all *script.File, common []*script.Script) {
		for i, f := range files {
			where := fmt.Sprintf("local common = %d\n", i+1)
			if f.Has("seal") && tickets[i] {
				where += "local tickets = {}\n"
			}
			request := "local n, times = ARGV[request + common] + 0, ARGV[request] + 0\n"
			if f.Has("hold") {
				request = "local times, n, id = ARGV[request] + 0, string.match(ARGV[request + common], " + aHold + ")\n"
			}
			f = settle(i, moved(i, f, front), f.Blocks()["ticket"], "tickets[#tickets + 1] = size\n").Set("request", request).
				Set("limiters", nested(i, front)).Set("shape", shape+where)
			common = append(common, f.With(around).Fill(allCommonTemplate))
		}
		return around.Set("shape", shape).Set("limiters", nested(-1, front)), common
	}
	peeks := ""
	for i, f := range slices.Backward(files) {
		peeks += settle(i, moved(i, f, ""), noTicket, "").Text(body(allPeekLimiterTemplate))
	}
	all, common := batch(around, shape, "")
	ofSeveral, commonOfSeveral := batch(around.Set("several", ""), fmt.Sprintf("local limiters = %d\n", len(files)), "front + ")
	return severalSet{
		scriptSet: scriptSet{
			one: all.Fill(allOneTemplate), peek: all.Set("limiters", peeks).Fill(allPeekTemplate),
			many: all.Fill(allTemplate), manyOfSeveral: ofSeveral.Fill(allTemplate),
		},
		common: common, commonOfSeveral: commonOfSeveral,
	}
}

// aHold matches what a request asks of permits in flight.
const aHold = "'^(%d+)h(%w*)$'"

// noTicket is where a Peek has the words of a ticket.
const noTicket = "out[size + 1] = 0\nout[size + 2] = 0\n"

// body is a template without its header, which would be repeated for each limiter.
func body(template string) string { return template[strings.Index(template, "do\n"):] }
