package scripts

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/tryacquire/ratelimit/internal/script"
)

// WithTickets are the scripts of a file, such as "bucket", for limiters whose estimates have a lease. They have the blocks of
// tickets.lua around those of the file, and one word more. nil: a file that cannot have them.
func WithTickets(file string) *Scripts { return withTickets[file] }

// ticketed are the files that have a block frees or rules in tickets.lua.
var ticketed = []string{"bucket", "calendarwindow", "datedwindow", "slidinglog", "slidingwindow_list"}

var withTickets = func() map[string]*Scripts {
	all := map[string]*Scripts{}
	for _, name := range ticketed {
		f := Of(name).File
		f.Name += ",tickets"
		f.Words++
		whole := addTickets(Of(name).whole)
		all[name] = &Scripts{File: f, whole: whole, byCaller: whole, server: sync.OnceValue(func() Set {
			set := Assemble(whole)
			set.One = whole.Fill(text("tickets_one.lua"))
			return set
		})}
	}
	return all
}()

// addTickets returns a file with the blocks of tickets.lua around its own.
func addTickets(f *script.File) *script.File {
	tickets, own := script.Parse("tickets.lua", text("tickets.lua")).Blocks(), f.Blocks()
	for _, block := range slices.Sorted(maps.Keys(tickets)) {
		f = f.Set(block, tickets[block])
	}
	name := strings.TrimSuffix(f.Name(), ".lua")
	seek := tickets["seek"]
	if rules, ok := tickets["rules of "+name]; ok { // a log
		for _, block := range []string{"returns", "full"} {
			f = f.Set(block, tickets[block+" of log"])
		}
		f = f.Set("keep", "local margin = 0 -- the ttl of a log has it\n"+tickets["keep"])
		f = f.Set("rules", rules).Set("ended", forOperations(Of(name).whole).Blocks()["load"])
		seek = own["seek"] + tickets["seek of log"]
	}
	for _, block := range []string{"together", "exactly"} {
		if own, ok := tickets[block+" of "+name]; ok {
			f = f.Set(block, own)
		}
	}
	return f.Set("state", own["load"]).Set("frees", tickets["frees of "+name]).Set("seek", seek).
		Set("store", "-- <write/>\n-- <keep/>\n").Set("write", own["store"]).
		Set("words", own["words"]+tickets["soon"]).Named(name + ",tickets")
}

// The texts of requests to several limiters, of which one has such tickets: what an estimate asks of it, and where a Peek reads no
// ticket.
const (
	aTicket   = "'^(%d+)a?(%d?)/?(%d*)/?(%w*)'"
	newTicket = "local fresh, old, n = true, nil, permits + 0\n"
)
