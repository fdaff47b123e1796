package faulttest

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

var soakFor = flag.Duration("soak", 5*time.Second, "how long TestSoak runs")

const (
	soakLimit   = 60
	soakUsed    = 12 // of usedQuotas
	soakWorkers = 16
	soakRound   = 1500 * time.Millisecond // then other keys are used, and those before are judged

	// Of a quota per ten thousand hours nothing comes back within a round, though
	// the clock may be stepped forward by an hour several times: a bucket of 60
	// gains one in 166 hours.
	soakLong  = 10_000 * time.Hour
	soakShort = 200 * time.Millisecond
)

// A soak is a server that is maltreated while limiters work.
//
// Two kinds of accounts are judged. Those of long quotas must never receive more
// than the limit plus what lost writes explain, whatever happens: the bound is
// that of TestAKilledServerForgetsOnlyItsLastWrites, with what the server knows looked up after each kill.
// Those of short quotas, where permits come and go, are judged by calls and
// returns (see tooMany) for each stretch of time in which the clock was not
// stepped and the server not killed; so are quotas that callers wait for and settle, and
// holders of permits in flight.
type soak struct {
	t       *testing.T
	server  *redistest.Server
	proxy   *redistest.Proxy
	admin   *redis.Client
	rng     *rand.Rand
	load    *load
	holders *holders

	clients []ratelimit.Client
	opts    [][]ratelimit.Option

	round       int
	long, short []*account
	current     atomic.Pointer[[]*account] // both
	sliced      atomic.Pointer[account]    // one of the short ones, which startSlices asks
	known, lost []int                      // of long
	counted     []int                      // of long, at the last kill
	hours       int                        // that the clock is ahead
	stepped     bool                       // in this round

	// The table.
	faults                       map[string]int
	accounts, permits, fullQuota int
	over, explained              int
	judged, mostInWindow         int
	noTTL, keys                  int
	goroutines, heap             []int // at the rounds' ends
}

// TestSoak mixes all faults for as long as -soak says. It prints the seed of
// their schedule, which RATELIMIT_SEED repeats.
func TestSoak(t *testing.T) {
	if testing.Short() {
		t.Skip("a soak takes its time")
	}
	length := *soakFor
	if deadline, ok := t.Deadline(); ok {
		if left := time.Until(deadline) - time.Minute; left < length {
			length = max(left, 0)
			t.Logf("-soak %v is cut to %v, for -timeout ends the test soon after", *soakFor, length.Round(time.Second))
		}
	}
	s := &soak{
		t: t, rng: model.Seeded(limitertest.Seed(t)), faults: map[string]int{},
		server: redistest.Start(t, redistest.Faketime(), redistest.Args("--appendonly", "yes", "--appendfsync", "everysec")),
	}
	s.proxy = redistest.NewProxy(t, s.server.Addr())
	s.admin = s.server.Client(t)
	before := runtime.NumGoroutine()
	var closeAll func()
	s.clients, s.opts, closeAll = kindsOfClient(t, func() *redis.Client {
		return redis.NewClient(&redis.Options{
			Addr: s.proxy.Addr(), DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second,
		})
	})
	s.open()
	s.load = startLoad(soakWorkers, func() []*account { return *s.current.Load() })
	s.startHolders()
	s.startSlices()

	begun := time.Now()
	for time.Since(begun) < length || s.round < 3 || s.fullQuota == 0 {
		for until := time.Now().Add(soakRound); time.Now().Before(until); {
			s.strike()
			time.Sleep(time.Duration(20+s.rng.IntN(150)) * time.Millisecond)
		}
		s.load.gate.Lock() // the round is over when all calls have returned
		s.judgeShort()
		s.judgeLong()
		s.holders.judge(t)
		s.rest(before)
		s.open()
		s.load.gate.Unlock()
	}
	s.load.stop(t)
	s.holders.wg.Wait()
	s.judgeTTLs()
	closeAll()
	s.table(time.Since(begun))
	goroutinesEnded(t, before+2) // the proxy's, of the test's own connection
}

// open begins a round, with new keys. No call is made during that.
func (s *soak) open() {
	s.round++
	s.stepped = false
	if s.holders != nil {
		s.holders.begin()
	}
	key := fmt.Sprint("round ", s.round)
	s.long = openAccounts(s.t, quotas(), key+" long", soakLimit, soakLong, s.clients, s.opts...)
	s.short = openAccounts(s.t, quotas(), key+" short", soakLimit, soakShort, s.clients, s.opts...)
	s.short = append(s.short, openAccounts(s.t, usedQuotas(), key+" used", soakUsed, soakShort, s.clients, s.opts...)...)
	both := append(slices.Clone(s.long), s.short...)
	s.current.Store(&both)
	s.short = append(s.short, s.sliced.Load())
	if s.sliced.Load() == nil {
		s.openSliced()
	}
	s.known, s.lost, s.counted = make([]int, len(s.long)), make([]int, len(s.long)), make([]int, len(s.long))
}

// A fault strikes at random.
func (s *soak) strike() {
	faults := []struct {
		name  string
		often int
		do    func()
	}{
		{"nothing", 4, func() {}},
		{"SCRIPT FLUSH", 4, func() { require.NoError(s.t, s.admin.ScriptFlush(ctx).Err()) }},
		{"connections cut", 3, s.proxy.CutAll},
		{"replies lost", 4, func() { s.proxy.DropReply(1+s.rng.IntN(4), redistest.OnScript()) }},
		{"requests lost", 2, func() { s.proxy.DropRequest(1+s.rng.IntN(4), redistest.OnScript()) }},
		{"replies cut short", 3, func() { s.proxy.CutReplyAfter(s.rng.IntN(12), redistest.OnScript()) }},
		{"server paused", 2, func() {
			s.server.Pause()
			time.Sleep(time.Duration(s.rng.IntN(300)) * time.Millisecond)
			s.server.Resume()
		}},
		{"network hung", 2, func() {
			s.proxy.Hang()
			time.Sleep(time.Duration(s.rng.IntN(300)) * time.Millisecond)
			s.proxy.Unhang()
		}},
		{"network slow", 2, func() {
			s.proxy.Delay(time.Duration(s.rng.IntN(10)) * time.Millisecond)
			time.Sleep(time.Duration(s.rng.IntN(300)) * time.Millisecond)
			s.proxy.Delay(0)
		}},
		{"clock stepped", 2, s.stepClock},
		{"server killed", 1, s.kill},
	}
	sum := 0
	for _, f := range faults {
		sum += f.often
	}
	at := s.rng.IntN(sum)
	for _, f := range faults {
		if at -= f.often; at < 0 {
			s.faults[f.name]++
			f.do()
			return
		}
	}
}

// stepClock steps the server's clock by an hour forward or back, under load.
func (s *soak) stepClock() {
	s.judgeShortUnderLoad()
	s.holders.spoil()
	hour := 1
	if s.hours > 1 || s.hours > -2 && s.rng.IntN(2) == 0 {
		hour = -1
	}
	s.hours += hour
	s.stepped = true
	s.server.StepClock(time.Duration(hour) * time.Hour)
	s.newStretch()
	s.holders.begin()
}

// kill kills the server under load, and looks after its restart at what it knows.
func (s *soak) kill() {
	s.judgeShortUnderLoad()
	s.holders.spoil()
	s.server.Kill()
	time.Sleep(time.Duration(s.rng.IntN(300)) * time.Millisecond)
	s.load.gate.Lock()
	defer s.load.gate.Unlock()
	s.server.Restart()
	for i, a := range s.long {
		taken := min(soakLimit, s.known[i]+a.most()-s.counted[i])
		l, err := a.build(s.admin, soakLimit, soakLong)
		require.NoError(s.t, err)
		s.known[i], s.counted[i] = a.used(s.t, l), a.most()
		// A bucket whose clock went back may be taken for an empty one.
		s.lost[i] += max(taken-s.known[i], 0)
	}
	for _, a := range s.short {
		a.mu.Lock()
		a.takes = nil
		a.mu.Unlock()
	}
	s.openSliced()
	s.holders.begin()
}

// judgeShortUnderLoad judges the short quotas up to now, and newStretch begins
// another stretch of time: takes whose calls were made before it are not judged
// together with those after.
func (s *soak) judgeShortUnderLoad() {
	s.load.gate.Lock()
	defer s.load.gate.Unlock()
	s.judgeShort()
}

func (s *soak) newStretch() {
	s.load.gate.Lock()
	defer s.load.gate.Unlock()
	for _, a := range s.short {
		a.takes = nil
	}
	s.openSliced()
}

// judgeShort is called with the gate closed, as the rest.
func (s *soak) judgeShort() {
	for _, a := range s.short {
		broken, most := tooMany(a.kind, a.limit, a.window, a.takes)
		require.Empty(s.t, broken, "%s, round %d", a.name, s.round)
		s.judged += len(a.takes)
		if a.kind == anyWindow {
			s.mostInWindow = max(s.mostInWindow, most)
		}
		a.takes = nil
	}
}

func (s *soak) judgeLong() {
	for i, a := range s.long {
		over := max(a.received()-soakLimit, 0)
		require.LessOrEqual(s.t, over, s.lost[i], "%s, round %d: more than the lost writes explain", a.name, s.round)
		s.accounts++
		s.permits += a.received()
		s.over += over
		s.explained += s.lost[i]
		if a.denied() {
			s.fullQuota++
			// At most three were asked for, so that all but two were taken: by
			// allowed calls and by calls that failed, each executed once at most. Only a
			// bucket that saw its clock go back may have denied without.
			if !s.stepped || a.kind == anyWindow || a.kind == perWindow {
				require.GreaterOrEqual(s.t, a.most(), soakLimit-2, "%s, round %d: permits were taken twice", a.name, s.round)
			}
		}
	}
}

// rest notes how many goroutines and bytes there are when no call is made. Calls
// that were given up on end with the client's timeouts.
func (s *soak) rest(before int) {
	least := runtime.NumGoroutine()
	for range 30 {
		time.Sleep(10 * time.Millisecond)
		least = min(least, runtime.NumGoroutine())
	}
	s.goroutines = append(s.goroutines, least-before)
	s.load.failures() // drops them
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	s.heap = append(s.heap, int(m.HeapAlloc>>10))
}

// judgeTTLs looks at every key that the server holds.
func (s *soak) judgeTTLs() {
	keys := s.admin.Scan(ctx, 0, "*", 1000).Iterator()
	for keys.Next(ctx) {
		s.keys++
		if s.admin.PTTL(ctx, keys.Val()).Val() == -1 {
			s.noTTL++
		}
	}
	require.NoError(s.t, keys.Err())
	require.Zero(s.t, s.noTTL, "keys without a TTL")
	require.Positive(s.t, s.keys)
}

func (s *soak) table(took time.Duration) {
	// The first quarter warms up: connections, pools, goroutines of the client.
	warm := (len(s.heap) - 1) / 4
	first, last := s.goroutines[warm], s.goroutines[len(s.goroutines)-1]
	heapFirst, heapLast := s.heap[warm], s.heap[len(s.heap)-1]

	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	row := func(name string, format string, args ...any) {
		fmt.Fprintf(w, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	tally := &s.load.tally
	row("time", "%v, %d rounds", took.Round(time.Second), s.round-1)
	row("faults", "%v", s.faults)
	row("decisions", "%d", tally.decisions.Load())
	row("allowed", "%d", tally.allowed.Load())
	row("denials", "%d", tally.denied.Load())
	row("errors", "%d %v", tally.failed.Load(), tally.kinds)
	row("longest call", "%v", tally.longest.Round(time.Millisecond))
	row("long quotas", "%d keys of %d, %d permits allowed, %d used up", s.accounts, soakLimit, s.permits, s.fullQuota)
	row("beyond quotas", "%d permits; lost writes would explain %d", s.over, s.explained)
	row("short quotas", "%d allowed calls judged by call and return, at most %d of %d in a sliding window", s.judged, s.mostInWindow, soakLimit)
	row("permits in flight", "%d held, at most %d of %d at a time", s.holders.taken.Load(), s.holders.most.Load(), soakHolders)
	row("keys without TTL", "%d of %d", s.noTTL, s.keys)
	row("goroutines at rest", "%d after the warm-up, %d at the end", first, last)
	row("heap at rest", "%d KiB after the warm-up, %d KiB at the end", heapFirst, heapLast)
	_ = w.Flush()
	s.t.Logf("\n%s", &out)

	require.LessOrEqual(s.t, last, first+3*soakWorkers, "goroutines pile up")
	require.LessOrEqual(s.t, heapLast, heapFirst+16<<10, "the heap grows")
	require.Positive(s.t, s.judged)
	require.Positive(s.t, s.holders.taken.Load())
}
