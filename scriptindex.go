package ratelimit

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tryacquire/ratelimit/internal/script"
)

func init() { script.Index, script.Together = namedScripts, scriptsTogether }

// allScripts are those of all algorithms, but of permits in flight, which differ.
func allScripts() []*scripts {
	return []*scripts{
		fixedWindowScripts, datedWindowScripts, calendarWindowScripts, hashWindowScripts, listWindowScripts, zsetWindowScripts,
		slidingLogScripts, bucketScripts, steppedBucketScripts,
	}
}

// namedScripts lists every script of one limiter.
func namedScripts() []script.Named {
	var all []script.Named
	add := func(name string, s *script.Script) { all = append(all, script.Named{Name: name, Script: s}) }
	for _, s := range allScripts() {
		for _, byCaller := range []bool{false, true} {
			set, name := s.get(byCaller), nameOfScripts(s.file.Name(), byCaller)
			add(name+", one", set.one)
			add(name+", peek", set.peek)
			add(name+", many", set.many)
			add(name+", operations", set.operations)
			add(name+", an operation alone", set.alone)
			if !byCaller {
				add(name+", many of several", set.manyOfSeveral)
				add(name+", operations of several", set.operationsOfSeveral)
			}
		}
	}
	add(nameOfScripts(bucketFile.Name(), false)+", one in words", bucketInWords())
	for _, byCaller := range []bool{false, true} {
		set, name := inFlightScripts.get(byCaller), nameOfScripts(inFlightScripts.file.Name(), byCaller)
		add(name+", one", set.one)
		add(name+", peek", set.peek)
		add(name+", holds", set.operations)
		add(name+", extend", set.extend)
	}
	return all
}

func nameOfScripts(file string, byCaller bool) string {
	name := strings.TrimSuffix(file, ".lua")
	if byCaller {
		name += " by the caller's clock"
	}
	return name
}

// scriptsTogether makes the scripts of limiters that decide together by the server's clock. Each is
// the name of its file, with ",estimate" if its claim is one. A sliding log has the number of its
// rules: "slidinglog,2".
func scriptsTogether(limiters []string) ([]script.Named, error) {
	type member struct {
		name     string
		file     *script.File
		args     int
		estimate bool
	}
	var members []member
	for _, text := range limiters {
		of, about, _ := strings.Cut(text, ",")
		f, args, err := fileTogether(of)
		if err != nil {
			return nil, err
		}
		m := member{text, f, args, about == "estimate"}
		switch {
		case m.estimate || about == "" && f != slidingLogScripts.file:
		case f == slidingLogScripts.file:
			rules, err := strconv.Atoi(cmp.Or(about, "1"))
			if err != nil || rules < 2 {
				return nil, fmt.Errorf("%q is no number of rules that a sliding log's own script has; such as slidinglog,2. "+
					"A log of one rule runs slidingwindow_list", cmp.Or(about, "1"))
			}
			m.args = 3 + 2*rules
		default:
			return nil, fmt.Errorf("%q of %s is not known; an estimate is %s,estimate", about, of, of)
		}
		members = append(members, m)
	}
	if len(members) == 0 || len(members) > maxGroup {
		return nil, errTooManyLimiters(len(members))
	}
	slices.SortStableFunc(members, func(a, b member) int { // as newShape
		return cmp.Or(strings.Compare(a.file.Name(), b.file.Name()), a.args-b.args)
	})
	var files []*script.File
	var args []int
	var tickets []bool
	var names []string
	for _, m := range members {
		files, args, tickets, names = append(files, m.file), append(args, m.args), append(tickets, m.estimate), append(names, m.name)
	}
	set, name := assembleAll(files, args, tickets), strings.Join(names, "+")
	all := []script.Named{{Name: name + ", one", Script: set.one}, {Name: name + ", peek", Script: set.peek}, {Name: name + ", many", Script: set.many}}
	for i, s := range set.common {
		all = append(all, script.Named{Name: name + ", many of one key of " + names[i], Script: s})
	}
	all = append(all, script.Named{Name: name + ", many of several", Script: set.manyOfSeveral})
	for i, s := range set.commonOfSeveral {
		all = append(all, script.Named{Name: name + ", many of several of one key of " + names[i], Script: s})
	}
	return all, nil
}

// fileTogether is a file by its name, and the number of its limiter's arguments.
func fileTogether(name string) (*script.File, int, error) {
	args := map[*script.File]int{
		fixedWindowFile: 2, calendarWindowScripts.file: 6, datedWindowScripts.file: 3, hashWindowScripts.file: 4, listWindowScripts.file: 4,
		zsetWindowScripts.file: 2, slidingLogScripts.file: 0, bucketFile: 4, steppedBucketScripts.file: 5, inFlightScripts.file: 3,
	}
	var known []string
	for _, s := range append(allScripts(), inFlightScripts) {
		of := nameOfScripts(s.file.Name(), false)
		if of == name {
			return s.file, args[s.file], nil
		}
		known = append(known, of)
	}
	return nil, 0, fmt.Errorf("%q is no file of a limiter; those are %s", name, strings.Join(known, ", "))
}
