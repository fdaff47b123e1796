package quotaslices

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

var (
	bucket      = []Rule{{Limit: 4, Flow: 1}}
	buckets     = []Rule{{Limit: 4, Flow: 1}, {Limit: 4, Flow: 2}}
	threeRates  = []Rule{{Limit: 2, Flow: 1}, {Limit: 3, Flow: 2}, {Limit: 2, Flow: 3}}
	window      = []Rule{{Limit: 3, Span: 4}}
	windows     = []Rule{{Limit: 3, Span: 6}, {Limit: 3, Span: 3}}
	moreWindows = []Rule{{Limit: 2, Span: 6}, {Limit: 4, Span: 4}, {Limit: 3, Span: 2}}
	log         = []Rule{{Limit: 3, Span: 6, Slot: 3}}
	shortLog    = []Rule{{Limit: 2, Span: 4, Slot: 2}}
	moreLogs    = []Rule{{Limit: 3, Span: 6, Slot: 3}, {Limit: 2, Span: 2, Slot: 2}}
	twoWindows  = []Rule{{Limit: 2, Span: 2, Slot: 2, Also: []Rule{{Limit: 3, Span: 6}}}}
	logs        = []Rule{{Limit: 3, Span: 6, Slot: 3}, {Limit: 4, Span: 6, Slot: 2}}
)

// TestNothingExceedsTheRule: the usual run takes seconds; with RATELIMIT_LONG=1, all make five calls, and it takes minutes.
func TestNothingExceedsTheRule(t *testing.T) {
	for name, s := range map[string]Scope{
		"a bucket smaller by rate × length, leases only": {&Bucket{Permit: 2, Rules: bucket, Longs: []int8{5}, NoPlain: true, Counting: Smaller}, 5, 9},

		"a bucket": {&Bucket{Permit: 2, Rules: bucket, Longs: []int8{2, 5}, Lates: []int8{2}}, 4, 9},
		"a bucket, the server's clock steps back": {&Bucket{Permit: 2, Rules: bucket, Longs: []int8{2, 5}, Steps: []int8{-1, -3}}, 4, 9},
		"buckets of two rates":                    {&Bucket{Permit: 1, Rules: buckets, Longs: []int8{1, 3}, Steps: []int8{-2}}, 4, 5},
		"buckets of three rates and sizes":        {&Bucket{Permit: 2, Rules: threeRates, Longs: []int8{1, 2}}, 4, 4},
		"a bucket gets back by epoch": {&Bucket{
			Permit: 1, Rules: bucket, Longs: []int8{2, 3}, Returns: true, Steps: []int8{-1, -3},
		}, 5, 4},
		"buckets of two rates get back by epoch": {&Bucket{
			Permit: 1, Rules: buckets, Longs: []int8{1, 2}, Returns: true, Steps: []int8{-2},
		}, 4, 4},
		"a bucket gets back what it has not refilled, of slices of one length": {&Bucket{
			Permit: 1, Rules: bucket, Longs: []int8{2}, Returns: true, Return: Refilled,
		}, 5, 4},

		"a fixed window":                 {&Window{Rules: window, Steps: []int8{-1, -2}, Returns: true}, 5, 5},
		"fixed windows, shorter slices":  {&Window{Rules: windows, Longs: []int8{1, 2}, Steps: []int8{-2}, Returns: true}, 4, 7},
		"fixed windows of two lengths":   {&Window{Rules: windows, Steps: []int8{-1, -2}, Returns: true}, 5, 7},
		"fixed windows of three lengths": {&Window{Rules: moreWindows, Returns: true}, 5, 7},

		"a log":                              {&Log{Rules: log, Steps: []int8{-1, -2, -3}, Returns: true}, 4, 7},
		"logs of two slots":                  {&Log{Rules: logs, Ns: []int8{1, 4}, Returns: true}, 4, 7},
		"logs of two slots, and the clock":   {&Log{Rules: logs, Ns: []int8{1, 3}, Steps: []int8{-1, -3}, Returns: true}, 4, 6},
		"logs of two slots and lengths":      {&Log{Rules: moreLogs, Ns: []int8{1, 2}, Steps: []int8{-2}, Returns: true}, 4, 7},
		"a log of two windows":               {&Log{Rules: twoWindows, Ns: []int8{1, 2}, Steps: []int8{-2}, Returns: true}, 4, 8},
		"a log, and callers' clocks":         {&Log{Rules: log, Ns: []int8{1, 2}, Clocks: []int8{-2, 2}, Returns: true}, 4, 6},
		"logs of two slots, callers' clocks": {&Log{Rules: logs, Ns: []int8{1, 3}, Clocks: []int8{3}, Returns: true}, 4, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.Calls = limitertest.Rounds(maxCalls, s.Calls)
			if s.Calls == 1 { // the short run
				s.Calls = 3
			}
			found := Search(s)
			require.Zero(t, found.Excess, found)
			t.Logf("%d calls, %d worlds", s.Calls, found.Worlds)
		})
	}
}

// TestTheSearchFindsWhatOtherRulesBreak: the exact number, in the bucket's units and in permits of windows and logs.
func TestTheSearchFindsWhatOtherRulesBreak(t *testing.T) {
	raceflag.SkipSequential(t)
	for name, test := range map[string]struct {
		Scope
		excess int
	}{
		// 2.5 permits of a burst of 4, which is rate × length.
		"a bucket smaller by rate × length, with plain callers": {
			Scope{&Bucket{Permit: 2, Rules: bucket, Longs: []int8{5}, Counting: Smaller}, 4, 9}, 5,
		},
		// rate × length.
		"slices count as plain calls": {Scope{&Bucket{Permit: 2, Rules: bucket, Longs: []int8{5}, Counting: AsPlain}, 3, 9}, 5},
		// rate × lateness. It is the same if a process is suspended, and spends its slice as much after its end.
		"counted from the reply": {
			Scope{&Bucket{Permit: 2, Rules: bucket, Longs: []int8{2, 5}, Lates: []int8{1, 2}, FromReply: true}, 3, 9}, 2,
		},
		// The difference of the rates × length.
		"two rates, no end marked": {Scope{&Bucket{Permit: 1, Rules: buckets, Longs: []int8{1}, Unmarked: true}, 4, 5}, 1},
		"two rates, the end of the last slice marked": {
			Scope{&Bucket{Permit: 1, Rules: []Rule{{Limit: 5, Flow: 1}, {Limit: 5, Flow: 2}}, Longs: []int8{1, 4}, LastOnly: true}, 3, 5}, 1,
		},
		"given back in full": {Scope{&Bucket{Permit: 1, Rules: bucket, Longs: []int8{2}, Returns: true, Return: InFull}, 4, 3}, 2},

		"given back what was not refilled, of slices of two lengths": {
			Scope{&Bucket{Permit: 1, Rules: bucket, Longs: []int8{2, 3}, Returns: true, Return: Refilled}, 4, 3}, 1,
		},

		"a slice lasts beyond its window":                  {Scope{&Window{Rules: window, Beyond: 1}, 3, 5}, 3},
		"a shorter rule opens a window while slices spend": {Scope{&Window{Rules: windows, Unmarked: true}, 3, 7}, 3},
		"a slice lasts longer than it is dated":            {Scope{&Log{Rules: log, Beyond: 1}, 3, 9}, 3},
		"permits of slices move with the clock":            {Scope{&Log{Rules: log, Steps: []int8{-1}, Rewound: true}, 4, 7}, 3},
		"what is dated again comes back":                   {Scope{&Log{Rules: shortLog, Ns: []int8{1, 2}, Steps: []int8{-1}, Returns: true, AnyID: true}, 6, 4}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := Search(test.Scope)
			require.Equal(t, test.excess, found.Excess, found)
			t.Log(found)
		})
	}
}

// TestRandomHistoriesOfLargerRules, each of five calls.
func TestRandomHistoriesOfLargerRules(t *testing.T) {
	raceflag.SkipSequential(t)
	histories := limitertest.Rounds(100_000, 5_000)
	for name, s := range map[string]Scope{
		"a bucket": {&Bucket{
			Permit: 3, Rules: []Rule{{Limit: 12, Flow: 2}}, Longs: []int8{3, 7, 12}, Lates: []int8{1, 4}, Returns: true, Steps: []int8{-2, -5},
		}, maxCalls, 12},
		"by epoch": {&Bucket{
			Permit: 2, Rules: []Rule{{Limit: 16, Flow: 2}}, Longs: []int8{2, 4}, Returns: true, Steps: []int8{-2},
		}, maxCalls, 8},
		"three rates": {&Bucket{
			Permit: 3, Rules: []Rule{{Limit: 8, Flow: 2}, {Limit: 10, Flow: 3}, {Limit: 6, Flow: 5}}, Longs: []int8{2, 3}, Returns: true,
		}, maxCalls, 6},
		"fixed windows": {&Window{
			Rules: []Rule{{Limit: 8, Span: 12}, {Limit: 6, Span: 9}, {Limit: 10, Span: 5}}, Returns: true, Steps: []int8{-2, -7},
		}, maxCalls, 12},
		"logs": {&Log{
			Rules: []Rule{{Limit: 8, Span: 12, Slot: 4}, {Limit: 6, Span: 20, Slot: 5}}, Returns: true, Steps: []int8{-3, -6},
		}, maxCalls, 12},
		"logs and callers' clocks": {&Log{
			Rules: []Rule{{Limit: 8, Span: 12, Slot: 4}, {Limit: 6, Span: 20, Slot: 5}}, Returns: true, Clocks: []int8{-4, 6},
		}, maxCalls, 12},
		"a log": {&Log{
			Rules: []Rule{{Limit: 8, Span: 12, Slot: 4}}, Returns: true, Steps: []int8{-2, -4, -7},
		}, maxCalls, 12},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := rand.Uint64()
			found := Random(s, rand.New(rand.NewPCG(seed, 0)), histories)
			require.Zero(t, found.Excess, "seed %d, %v", seed, found)
		})
	}
}
