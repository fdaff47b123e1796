package leases

// Scopes are what the search goes through: by the server's clock, which steps back, and by
// callers' clocks, which are apart.
func Scopes() map[string]Scope {
	return map[string]Scope{
		"two processes for one place": {
			Processes: 2, Operations: 6, Limit: 1,
			Permits: [3]int{1, 1}, Leases: [3]int{2, 2}, Steps: []int{-1, -2},
		},
		"three processes for two places": {
			Processes: 3, Operations: 5, Limit: 2,
			Permits: [3]int{1, 1, 1}, Leases: [3]int{2, 2, 2}, Steps: []int{-1},
		},
		"a hold of two permits": {
			Processes: 3, Operations: 5, Limit: 2,
			Permits: [3]int{2, 1, 1}, Leases: [3]int{2, 2, 2}, Steps: []int{-1},
		},
		"a long and a short lease": {
			Processes: 2, Operations: 6, Limit: 1,
			Permits: [3]int{1, 1}, Leases: [3]int{3, 1}, Steps: []int{-1},
		},
		"callers' clocks": {
			Processes: 2, Operations: 6, Limit: 1,
			Permits: [3]int{1, 1}, Leases: [3]int{2, 2}, ByCaller: true, Skew: 1, Apart: 1, Steps: []int{-1},
		},
		"callers' clocks, three processes": {
			Processes: 3, Operations: 5, Limit: 2,
			Permits: [3]int{1, 1, 1}, Leases: [3]int{2, 2, 2}, ByCaller: true, Skew: 1, Apart: 1,
		},
	}
}
