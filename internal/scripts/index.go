package scripts

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/script"
)

// A Named is a script that limiters run, and what it is called: the file of its algorithm, and what
// the script does. The name of a script for several limiters has all their files.
type Named struct {
	Name string
	*script.Script
}

// Index lists every script of one limiter.
func Index() (all []Named) {
	var holds []Named
	for _, f := range algorithms.Files() {
		s := Of(f.Name)
		for _, byCaller := range []bool{false, true} {
			set, name := s.Get(byCaller), f.Name
			if byCaller {
				name += " by the caller's clock"
			}
			if set.Extend != nil {
				holds = append(holds, Named{name + ", one", set.One}, Named{name + ", peek", set.Peek},
					Named{name + ", holds", set.Operations}, Named{name + ", extend", set.Extend})
				continue
			}
			all = append(all, Named{name + ", one", set.One}, Named{name + ", peek", set.Peek}, Named{name + ", many", set.Many},
				Named{name + ", operations", set.Operations}, Named{name + ", an operation alone", set.Alone})
			if !byCaller {
				all = append(all, Named{name + ", many of several", set.ManyOfSeveral}, Named{name + ", operations of several", set.OperationsOfSeveral})
			}
		}
	}
	for _, of := range ticketed {
		set, name := WithTickets(of).Get(false), of+",tickets"
		all = append(all, Named{name + ", one", set.One}, Named{name + ", peek", set.Peek}, Named{name + ", many", set.Many},
			Named{name + ", operations", set.Operations}, Named{name + ", an operation alone", set.Alone},
			Named{name + ", many of several", set.ManyOfSeveral}, Named{name + ", operations of several", set.OperationsOfSeveral})
	}
	return append(append(all, Named{"bucket, one in words", BucketInWords()}), holds...)
}

// Group makes the scripts of limiters that decide together by the server's clock. Each is
// the name of its file, with ",estimate" if its claim is one, or ",tickets" if that has a lease. A sliding log has the number of its
// rules: "slidinglog,2".
func Group(limiters []string) ([]Named, error) {
	type member struct {
		name     string
		file     *script.File
		args     int
		estimate bool
	}
	var members []member
	for _, text := range limiters {
		of, about, _ := strings.Cut(text, ",")
		s := byFile[of]
		if s == nil {
			return nil, fmt.Errorf("%q is no file of a limiter; those are %s", of, strings.Join(Names(), ", "))
		}
		m := member{text, s.whole, s.Args, about == "estimate"}
		switch {
		case about == "tickets" && WithTickets(of) != nil:
			m.file, m.estimate = WithTickets(of).whole, true
		case m.estimate || about == "" && s.ArgsOfRule == 0:
		case s.ArgsOfRule > 0:
			rules, err := strconv.Atoi(cmp.Or(about, "1"))
			if err != nil || rules < 2 {
				return nil, fmt.Errorf("%q is no number of rules that a sliding log's own script has; such as slidinglog,2. "+
					"A log of one rule runs slidingwindow_list", cmp.Or(about, "1"))
			}
			m.args += rules * s.ArgsOfRule
		default:
			return nil, fmt.Errorf("%q of %s is not known; an estimate is %s,estimate", about, of, of)
		}
		members = append(members, m)
	}
	if len(members) == 0 || len(members) > MostTogether {
		return nil, fmt.Errorf("%d limiters do not decide together; give 1 to %d", len(members), MostTogether)
	}
	slices.SortStableFunc(members, func(a, b member) int { // as a group of limiters
		return cmp.Or(strings.Compare(a.file.Name(), b.file.Name()), a.args-b.args)
	})
	var files []*script.File
	var args []int
	var tickets []bool
	var names []string
	for _, m := range members {
		files, args, tickets, names = append(files, m.file), append(args, m.args), append(tickets, m.estimate), append(names, m.name)
	}
	set, name := Together(files, args, tickets), strings.Join(names, "+")
	all := []Named{{Name: name + ", one", Script: set.One}, {Name: name + ", one under an id", Script: set.Once.One},
		{Name: name + ", peek", Script: set.Peek}, {Name: name + ", many", Script: set.Many},
		{Name: name + ", many under ids", Script: set.Once.Many}, {Name: name + ", many of several under ids", Script: set.Once.ManyOfSeveral},
		{Name: name + ", finish", Script: set.Finish}, {Name: name + ", finish of several", Script: set.FinishOfSeveral}}
	for i, s := range set.Common {
		all = append(all, Named{Name: name + ", many of one key of " + names[i], Script: s})
	}
	all = append(all, Named{Name: name + ", many of several", Script: set.ManyOfSeveral})
	for i, s := range set.CommonOfSeveral {
		all = append(all, Named{Name: name + ", many of several of one key of " + names[i], Script: s})
	}
	return all, nil
}

// Names are those of the files that Group takes.
func Names() (names []string) {
	for _, f := range algorithms.Files() {
		names = append(names, f.Name)
	}
	return names
}
