package leases

import "github.com/tryacquire/ratelimit/internal/testing/model"

// Scopes are what the search goes through: by the server's clock, which steps back, and by
// callers' clocks, which are apart.
func Scopes() map[string]Scope {
	one, two := [3]int{1, 1, 1}, [3]int{2, 2, 2}
	return map[string]Scope{
		"two processes for one place": {
			Processes: 2, Operations: 6, Usual: 5, Limit: 1, Permits: one, Leases: two, Steps: []int{-1, -2},
		},
		"three processes for two places": {
			Processes: 3, Operations: 6, Usual: 4, Limit: 2, Permits: one, Leases: two, Steps: []int{-1},
		},
		"a hold of two permits": {
			Processes: 3, Operations: 5, Usual: 4, Limit: 2, Permits: [3]int{2, 1, 1}, Leases: two, Steps: []int{-1},
		},
		"a long and a short lease": {
			Processes: 2, Operations: 6, Usual: 5, Limit: 1, Permits: one, Leases: [3]int{3, 1}, Steps: []int{-1},
		},
		"leases of two lengths": {
			Processes: 3, Operations: 6, Usual: 4, Limit: 2, Permits: one, Leases: [3]int{3, 1, 3}, Steps: []int{-2},
		},
		"an id that two processes share": {
			Processes: 3, Operations: 6, Usual: 4, Limit: 1, Permits: one, Leases: two, Steps: []int{-1}, Shared: 2,
		},
		"an id that all share": {
			Processes: 2, Operations: 6, Usual: 5, Limit: 2, Permits: two, Leases: two, Steps: []int{-1}, Shared: 2,
		},
		"an id and callers' clocks": {
			Processes: 3, Operations: 4, Usual: 3, Limit: 1, Permits: one, Leases: one, ByCaller: true, Skew: 1, Apart: 1, Shared: 2,
		},
		"callers' clocks": {
			Processes: 2, Operations: 5, Usual: 3, Limit: 1, Permits: one, Leases: two, ByCaller: true, Skew: 1, Apart: 1,
		},
		"callers' clocks, three processes": {
			Processes: 3, Operations: 4, Usual: 3, Limit: 2, Permits: one, Leases: one, ByCaller: true, Skew: 1, Apart: 1,
		},
	}
}

// Mistakes are the mistakes that the search finds, each with a scope in which it does.
func Mistakes() map[model.Mistake]Scope {
	server := Scope{Processes: 2, Operations: 4, Limit: 1, Permits: [3]int{1, 1}, Leases: [3]int{2, 2}}
	stepped := server
	stepped.Steps = []int{-1}
	mixed := Scope{Processes: 3, Operations: 3, Limit: 2, Permits: [3]int{1, 1, 2}, Leases: [3]int{3, 1, 3}}
	callers := server
	callers.ByCaller, callers.Skew, callers.Apart, callers.Leases = true, 1, 1, [3]int{1, 1}
	shared := Scope{Processes: 3, Operations: 5, Limit: 1, Permits: [3]int{1, 1, 1}, Leases: [3]int{2, 2, 2}, Shared: 2}
	found := map[model.Mistake]Scope{
		GivesBackShared:      shared,
		ReleasesEnded:        shared,
		model.RepeatKeepsEnd: shared,
		CountsFromReply:      server,
		NeverLost:            server,
		ExtendsUnheard:       server,
		model.EndsEarly:      server,
		model.ExtendAdds:     server,
		model.RewindToNow:    stepped,
		model.ReleaseAny:     server,
		model.ShortensExpiry: mixed,
		model.NeverPrunes:    server,
		model.NoMargin:       callers,
		model.ExtendLowers:   callers,
	}
	for mistake, s := range found {
		s.Broken = mistake
		found[mistake] = s
	}
	return found
}
