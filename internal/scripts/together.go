package scripts

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tryacquire/ratelimit/internal/script"
)

// MostTogether is the most limiters that decide together.
const MostTogether = 8

// A Several holds the scripts for requests to several limiters.
type Several struct {
	Set
	Once Set // One, Many and ManyOfSeveral under ids

	Finish, FinishOfSeveral *script.Script // end what requests took, see finish.lua

	// These are Many and ManyOfSeveral, for requests that have the key of this limiter in common.
	Common, CommonOfSeveral []*script.Script
}

// maxLocals is how many local variables a function of a script may have. Lua allows 200;
// miniredis counts among them up to nine values that an expression needs.
const maxLocals = 200 - 9

// Together makes the scripts of limiters that decide together. args are the numbers
// of their arguments; tickets says which of them also say where their permits are, so that
// these can be settled. In the scripts for requests to several groups, each request says how many
// arguments are in front of those of its group. Each script is made when it is needed: a program may have many groups, and most
// run two or three of the scripts.
func Together(files []*script.File, args []int, tickets []bool) Several {
	args, tickets = slices.Clone(args), slices.Clone(tickets) // they are read later
	configured := make([]int, len(files)+1)                   // arguments of the limiters before
	for i, n := range args {
		configured[i+1] = configured[i] + n
	}
	around := script.Parse("all", "")
	for _, f := range files {
		for _, block := range []string{"clock", "shift", "flush"} {
			if f.Has(block) {
				around = around.Set(block, f.Blocks()[block])
			}
		}
	}
	around, underIDs := withShared(around, files, len(files)), withShared(around.With(once), files, len(files)+1)
	shapeOf := func(keys int) string {
		return fmt.Sprintf("local limiters, configured = %d, %d\n", keys, configured[len(files)])
	}
	shape := shapeOf(len(files))
	// moved finds its arguments in ARGV. The first one is what its own script has in ARGV[2].
	moved := func(i int, file *script.File, front string) *script.File {
		request := fmt.Sprintf("local key, n, times = KEYS[skipped + %d], ARGV[request + %d] + 0, times\n", i+1, i+1)
		if file.Has("hold") {
			request = fmt.Sprintf("local key, times, n, id = KEYS[skipped + %d], times, string.match(ARGV[request + %d], %s)\n", i+1, i+1, aHold)
		}
		if tickets[i] && file.Has("tickets") {
			request = fmt.Sprintf("local key, times, permits, how, lease, id = KEYS[skipped + %d], times, string.match(ARGV[request + %d], %s)\n", i+1, i+1, aTicket) + newTicket
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
		blocks := file.Blocks()
		if file.Has("seal") && ticket != noTicket {
			ticket, sealed = place+ticket, blocks["seal"]
		}
		if file.Has("tickets") && ticket != noTicket {
			ticket += blocks["begin"]
			file = file.Set("fit", blocks["fit"]+blocks["full"])
		}
		return file.Set("settle", ticket+"size = size + 2\n").Set("sealed", sealed)
	}
	// nested is the limiters one inside the other, in as few functions as hold their variables.
	nested := func(around *script.File, without int, front string) string {
		inner, room := "", maxLocals-script.Locals(around.Set("shape", shape).Set("limiters", "").Text(text("all_one.lua")))
		for i, f := range slices.Backward(files) {
			if i == without {
				continue
			}
			f = settle(i, moved(i, f, front), f.Blocks()["ticket"], "local tickets = {size}\n")
			whole := f.Set("inner", inner).Text(body(text("all_limiter.lua")))
			if script.Locals(whole) > room {
				inner = f.Set("inner", inner).Text(body(text("all_closure.lua")))
				whole = f.Set("inner", inner).Text(body(text("all_limiter.lua")))
			}
			inner = whole
		}
		return inner
	}
	// batch makes a script for requests to all of them. front is what stands in front of the place of an argument.
	batch := func(around *script.File, shape, front, template string) *script.Script {
		return script.Lazy(func() string {
			return around.Set("shape", shape).Set("limiters", nested(around, -1, front)).Text(text(template))
		})
	}
	// commons makes those for many requests that have the key of a limiter in common.
	commons := func(around *script.File, shape, front string) (common []*script.Script) {
		for i, f := range files {
			common = append(common, script.Lazy(func() string {
				where := fmt.Sprintf("local common = %d\n", i+1)
				if f.Has("seal") && tickets[i] {
					where += "local tickets = {}\n"
				}
				request := "local n, times = ARGV[request + common] + 0, ARGV[request] + 0\n"
				if f.Has("hold") {
					request = "local times, n, id = ARGV[request] + 0, string.match(ARGV[request + common], " + aHold + ")\n"
				}
				if tickets[i] && f.Has("tickets") {
					request = "local times, permits, how, lease, id = ARGV[request] + 0, string.match(ARGV[request + common], " + aTicket + ")\n" + newTicket
				}
				f := settle(i, moved(i, f, front), f.Blocks()["ticket"], "tickets[#tickets + 1] = size\n").Set("request", request).
					Set("limiters", nested(around, i, front)).Set("shape", shape+where)
				return f.With(around).Text(text("all_common.lua"))
			}))
		}
		return common
	}
	peek := script.Lazy(func() string {
		peeks := ""
		for i, f := range slices.Backward(files) {
			peeks += settle(i, moved(i, f, ""), noTicket, "").Text(body(text("all_peek_limiter.lua")))
		}
		return around.Set("shape", shape).Set("limiters", peeks).Text(text("all_peek.lua"))
	})
	finish := func(around *script.File, shape, front string) *script.Script {
		return script.Lazy(func() string {
			ends := ""
			for i, f := range files {
				request := fmt.Sprintf("local key, operations = KEYS[skipped + %d], ARGV[request + %d]\n", i+1, i+1)
				f = forOperations(f).MoveArguments(front+strconv.Itoa(configured[i]-1)).Set("request", request)
				ends += f.Text(body(text("finish_limiter.lua")))
			}
			return around.Set("shape", shape).Set("limiters", ends).Text(text("finish.lua"))
		})
	}
	ofSeveral, theirShape := around.Set("several", ""), fmt.Sprintf("local limiters = %d\n", len(files))
	idShape, theirIDs := shapeOf(len(files)+1), fmt.Sprintf("local limiters = %d\n", len(files)+1)
	return Several{
		Set: Set{
			One: batch(around, shape, "", "all_one.lua"), Peek: peek,
			Many: batch(around, shape, "", "all.lua"), ManyOfSeveral: batch(ofSeveral, theirShape, "front + ", "all.lua"),
		},
		Once: Set{
			One: batch(underIDs, idShape, "", "all_one.lua"), Many: batch(underIDs, idShape, "", "all.lua"),
			ManyOfSeveral: batch(underIDs.Set("several", ""), theirIDs, "front + ", "all.lua"),
		},
		Finish: finish(around, shape, ""), FinishOfSeveral: finish(ofSeveral, theirShape, "front + "),
		Common: commons(around, shape, ""), CommonOfSeveral: commons(ofSeveral, theirShape, "front + "),
	}
}

// withShared returns around with the block limits of requests to these limiters, if one of them has one. Each request
// has so many keys. Behind the keys of all requests are those of the limits, for each request those of the limiters that
// have one.
func withShared(around *script.File, files []*script.File, keys int) *script.File {
	var places []string
	for i, f := range files {
		if f.Has("limits") {
			places = append(places, fmt.Sprintf("  limits[KEYS[i * %d + %d]] = KEYS[requests * %d + i * shared + %d]\n", keys, i+1, keys, len(places)+1))
		}
	}
	if places == nil {
		return around
	}
	return around.Set("limits", fmt.Sprintf("local limits, states, names, shared = {}, {}, {}, %d\nlocal beside = limits -- by another name, of which there is one only\nlocal requests = #KEYS / %d\n"+
		"for i = 0, requests - 1 do\n%send\nfor i = 1, requests * %d do\n  names[i] = KEYS[i]\nend\nlocal KEYS = names\n",
		len(places), keys+len(places), strings.Join(places, ""), keys))
}

// aHold matches what a request asks of permits in flight.
const aHold = "'^(%d+)h(%w*)$'"

// noTicket is where a Peek has the words of a ticket.
const noTicket = "out[size + 1] = 0\nout[size + 2] = 0\n"

// body is a template without its header, which would be repeated for each limiter.
func body(template string) string { return template[strings.Index(template, "do\n"):] }
