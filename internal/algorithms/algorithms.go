// Package algorithms is the one table of the algorithms that decide on Redis. What lists ids, names or scripts
// takes them from here.
package algorithms

import (
	"slices"
	"strings"
)

// The ids of the algorithms in keys. A changed state format gets a new id: the old one
// with a number behind it.
const (
	FixedWindow       = "fixedwindow"
	CalendarWindow    = "calendarwindow"
	SlidingWindowList = "slidingwindow-list"
	SlidingWindowHash = "slidingwindow-hash"
	SlidingWindowZSet = "slidingwindow-zset"
	SlidingLog        = "slidinglog"
	TokenBucket       = "tokenbucket"
	LeakyBucket       = "leakybucket"
	FairTokenBucket   = "fairtokenbucket"
	InFlight          = "inflight"
	Pause             = "pause"
)

// An Algorithm is what decides about the keys of an id.
type Algorithm struct {
	ID      string
	Title   string // in errors
	Storage string // of a sliding window; its number among these is that of the ratelimit.Storage
	State   Type   // of the keys
	Files   []File // of its scripts: which of them runs depends on a limiter's options and numbers
}

// A Type is a type of keys in Redis.
type Type int

// The types of keys.
const (
	Text Type = iota + 1
	List
	Hash
	SortedSet
)

// A File is scripts/<Name>.lua.
type File struct {
	Name  string
	Args  int // how many a limiter gives it, behind the number of permits
	Words int // of its reply to a run of requests

	ArgsOfRule, WordsOfRule int // more for each rule, where a limiter has several
}

var (
	bucketFiles = []File{{Name: "bucket", Args: 4, Words: 4}, {Name: "steppedbucket", Args: 6, Words: 5}}

	table = []Algorithm{
		{ID: FixedWindow, Title: "fixed window", State: Text, Files: []File{{Name: "fixedwindow", Args: 2, Words: 3}, {Name: "datedwindow", Args: 3, Words: 3}}},
		{ID: CalendarWindow, Title: "calendar window", State: Text, Files: []File{{Name: "calendarwindow", Args: 6, Words: 4}}},
		{ID: SlidingWindowList, Title: "sliding window", Storage: "List", State: List, Files: []File{{Name: "slidingwindow_list", Args: 4, Words: 4}}},
		{ID: SlidingWindowHash, Title: "sliding window", Storage: "Hash", State: Hash, Files: []File{{Name: "slidingwindow_hash", Args: 4, Words: 4}}},
		{ID: SlidingWindowZSet, Title: "sliding window", Storage: "ZSet", State: SortedSet, Files: []File{{Name: "slidingwindow_zset", Args: 2, Words: 4}}},
		{ID: SlidingLog, Title: "sliding log", State: List, Files: []File{{Name: "slidinglog", Args: 3, Words: 4, ArgsOfRule: 2, WordsOfRule: 1}}},
		{ID: TokenBucket, Title: "token bucket", State: Text, Files: bucketFiles},
		{ID: LeakyBucket, Title: "leaky bucket", State: Text, Files: bucketFiles},
		{ID: FairTokenBucket, Title: "fair token bucket", State: Text, Files: []File{{Name: "fairbucket", Args: 7, Words: 12}}},
		{ID: InFlight, Title: "in-flight limiter", State: SortedSet, Files: []File{{Name: "inflight", Args: 3, Words: 4}}},
		{ID: Pause, Title: "pause", State: Text, Files: []File{{Name: "pause", Args: 1, Words: 3}}},
	}
)

// Of is the algorithm of an id; ok is false if there is none.
func Of(id string) (a Algorithm, ok bool) {
	for i := range table {
		if table[i].ID == id {
			return table[i], true
		}
	}
	return Algorithm{}, false
}

// IDs are the ids of the present state formats.
func IDs() (all []string) {
	for _, a := range table {
		all = append(all, a.ID)
	}
	return all
}

// IsID reports whether segment is the id of an algorithm, in its present state format or
// in any other.
func IsID(segment string) bool {
	_, ok := Of(strings.TrimRight(segment, "0123456789"))
	return ok
}

// Storages are the sliding windows, by their storages.
func Storages() (all []Algorithm) {
	for _, a := range table {
		if a.Storage != "" {
			all = append(all, a)
		}
	}
	return all
}

// Files are those of all algorithms.
func Files() (all []File) {
	for _, a := range table {
		for _, f := range a.Files {
			if !slices.Contains(all, f) {
				all = append(all, f)
			}
		}
	}
	return all
}
