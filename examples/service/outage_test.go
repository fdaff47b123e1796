package main

import (
	"cmp"
	"flag"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

var (
	outageFor = flag.Duration("outage", time.Second, "how long Redis is down in TestAnOutageUnderLoad, and slow in TestASlowRedisUnderLoad")
	rate      = flag.Int("rate", 300, "requests a second to all processes of these tests")
	requests  = flag.Int("requests", 0, "of each outage; 0: as few as it takes")
)

// A rule is a limit of the service: what Redis allows of a key in any interval, and what each process adds.
type rule struct {
	subject *subject
	redis   func(interval time.Duration) float64
	limit   int     // of Redis
	burst   int     // of a process
	rate    float64 // of a process, in a second
	follows bool    // whether it begins with the share that Redis had left
}

func rules(customer, stranger *subject) []rule {
	return []rule{
		{customer, func(t time.Duration) float64 { return 60 + 10*t.Seconds() }, 60, 60 / processes, 10.0 / processes, true},
		{stranger, func(t time.Duration) float64 { return 600 * float64(t/time.Minute+1) }, 600, 600 / processes, 10.0 / processes, false},
	}
}

// TestAnOutageUnderLoad puts three processes under load, each with a third of the limits for an outage, and takes Redis away.
// Judged are every interval of time, and every answer. make outages prints the figures of docs/outages.md.
func TestAnOutageUnderLoad(t *testing.T) {
	for _, outage := range outages {
		t.Run(outage.name, func(t *testing.T) {
			server := startRedis(t)
			l, customer, stranger := loaded(t, server.Addr())
			warm := l.now()
			rest := time.Duration(*requests)*time.Second/time.Duration(*rate) - *outageFor
			time.Sleep(rest / 3)

			begin := l.now()
			outage.begin(server)
			inMemory := func(allowed bool) func(*asked) bool {
				return func(a *asked) bool { return a.memory && a.allowed == allowed }
			}
			l.await(t, "permits from memory", customer, begin, 1, inMemory(true))
			l.await(t, "denials from memory", customer, begin, 1, inMemory(false))
			time.Sleep(begin + *outageFor - l.now())
			outage.end(server)
			end := l.now()
			l.await(t, "answers of Redis", customer, end, 10, func(a *asked) bool { return !a.memory })
			time.Sleep(rest*2/3 - (l.now() - end))
			all := l.end()
			require.Empty(t, l.problems)

			for _, r := range rules(customer, stranger) {
				r.judge(t, all)
			}
			t.Logf("%s: Redis down for %v of %v, %d requests a second; its return was noticed by the processes after %v\n%s",
				outage.name, (end - begin).Round(time.Millisecond), l.now().Round(time.Second), *rate, noticed(all, begin, end), latencies(all, warm, begin, end))
		})
	}
}

// loaded starts three processes, and a load that has used up its limits on Redis by each of them.
func loaded(t *testing.T, redis string) (l *load, customer, stranger *subject) {
	var all []*process
	for range processes {
		all = append(all, start(t, redis))
	}
	customer, stranger, subjects := subjects()
	l = startLoad(all, *rate, subjects)
	t.Cleanup(func() { l.end() })
	l.await(t, "denials by Redis", customer, 0, 1, func(a *asked) bool { return !a.memory && !a.allowed })
	return l, customer, stranger
}

// judge checks three bounds in every interval. A request was decided between its call and its return, so those that were called and
// have returned in an interval were decided in it.
func (r rule) judge(t *testing.T, all []*asked) {
	t.Helper()
	var allowed, byRedis, inMemory []*asked
	var down []span
	for _, a := range sorted(all, func(a *asked) time.Duration { return a.call }) {
		if a.memory {
			down = join(down, span{a.call, a.back})
		}
		if a.subject != r.subject || !a.allowed {
			continue
		}
		allowed = append(allowed, a)
		if a.memory {
			inMemory = append(inMemory, a)
		} else {
			byRedis = append(byRedis, a)
		}
	}
	require.NotEmpty(t, inMemory)
	require.NotEmpty(t, byRedis)
	check := func(what string, some []*asked, most func(span) float64) {
		t.Helper()
		broken, room := within(some, most)
		require.Empty(t, broken, "%s: %s", r.subject.limit, what)
		t.Logf("%s, %s: %d allowed; the closest interval has room for %.1f more", r.subject.limit, what, len(some), room)
	}
	check("by Redis", byRedis, func(s span) float64 { return r.redis(s.to - s.from) })

	for p := range processes {
		mine := slices.DeleteFunc(slices.Clone(inMemory), func(a *asked) bool { return a.process != p })
		check(fmt.Sprint("by the memory of process ", p), mine, func(s span) float64 { return float64(r.burst) + r.rate*(s.to-s.from).Seconds() })
		if !r.follows {
			continue
		}
		// Of what a process allows after an answer of Redis, it had as large a share then as Redis had left, and its own rate since.
		mine = sorted(mine, func(a *asked) time.Duration { return a.back })
		for _, answer := range all {
			if answer.subject != r.subject || answer.process != p || answer.memory {
				continue
			}
			n := 0
			for _, a := range mine {
				if a.call >= answer.back {
					n++
					most := float64(r.burst*answer.left/r.limit) + r.rate*(a.back-answer.call).Seconds()
					require.LessOrEqual(t, float64(n), most+tick, "%s: process %d, after Redis had %d left at %v, until %v", r.subject.limit, p, answer.left, answer.back, a.back)
				}
			}
		}
	}

	// The bound of docs/outages.md. Each outage here is shorter than a bucket takes to fill, so that min(burst, rate × T) is rate × T.
	begins := float64(processes * r.burst) // a burst more
	if r.follows {
		begins = float64(r.limit*(processes-1)) / processes
	}
	check("by all", allowed, func(s span) float64 {
		bound := r.redis(s.to - s.from)
		for i, d := range down {
			if both := min(s.to, d.to) - max(s.from, d.from); both >= 0 {
				bound += r.rate * processes * both.Seconds()
				if bound += begins; i > 0 { // what an earlier outage has left has refilled since
					bound += float64(r.limit) - begins
				}
			}
		}
		return bound
	})
}

// tick is more than a permit's share of the microsecond to which limiters count.
const tick = 0.001

type span struct{ from, to time.Duration }

func (s span) String() string { return fmt.Sprintf("%v to %v", s.from, s.to) }

// join adds s, which begins last. Answers of memory that are a second apart are of different outages: a busy machine can make
// a call miss its budget, which is one too.
func join(spans []span, s span) []span {
	if n := len(spans); n > 0 && s.from < spans[n-1].to+time.Second {
		spans[n-1].to = max(spans[n-1].to, s.to)
		return spans
	}
	return append(spans, s)
}

// within says which interval has more requests than it may have, or "", and how many more the interval may have that is closest to it.
func within(some []*asked, most func(span) float64) (broken string, room float64) {
	room = math.Inf(1)
	byReturn := sorted(some, func(a *asked) time.Duration { return a.back })
	for _, first := range some {
		n := 0
		for _, a := range byReturn {
			if a.call < first.call {
				continue
			}
			n++
			s := span{first.call, a.back}
			if left := most(s) + tick - float64(n); left < room {
				if room = left; left < 0 {
					broken = fmt.Sprintf("%d from %v", n, s)
				}
			}
		}
	}
	return broken, room
}

// TestEveryIntervalIsJudged: one request too many is found, and none is where its instant is not known well enough.
func TestEveryIntervalIsJudged(t *testing.T) {
	at := func(call, back time.Duration) *asked {
		return &asked{call: call * time.Millisecond, back: back * time.Millisecond}
	}
	most := func(s span) float64 { return 2 + 10*(s.to-s.from).Seconds() }
	for _, c := range []struct {
		last   *asked
		broken string
	}{
		{at(100, 199), "4 from 0s to 199ms"},
		{at(100, 200), ""},
		{at(0, 199), "4 from 0s to 199ms"},
	} {
		broken, room := within([]*asked{at(0, 1), at(500, 600), at(0, 150), at(20, 90), c.last}, most)
		require.Equal(t, c.broken, broken)
		require.Less(t, room, 0.1)
	}
	require.Equal(t, []span{{0, 3e9}, {4e9, 5e9}}, join(join(join(nil, span{0, 2e9}), span{29e8, 3e9}), span{4e9, 5e9}))
}

func sorted(all []*asked, by func(*asked) time.Duration) []*asked {
	return slices.SortedFunc(slices.Values(all), func(a, b *asked) int { return cmp.Compare(by(a), by(b)) })
}

// noticed is when each process has used Redis again, after its return.
func noticed(all []*asked, begin, end time.Duration) [processes]time.Duration {
	var first [processes]time.Duration
	for _, a := range all {
		// A reply on its way when Redis went down is none of its return.
		if a.subject.limit == "customer" && !a.memory && a.call > begin+(end-begin)/2 && (first[a.process] == 0 || a.back < first[a.process]) {
			first[a.process] = a.back
		}
	}
	for i, at := range first {
		first[i] = (at - end).Round(time.Millisecond)
	}
	return first
}

// latencies is the table of docs/outages.md. A latency counts from when the request was due. The last column is of requests
// without a limit, at the same time.
func latencies(all []*asked, warm, begin, end time.Duration) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 1, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "| requests due \t| number \t| by memory \t| median \t| 99 %% \t| 99.9 %% \t| longest \t| 99.9 %% without a limit \t|\n")
	for _, phase := range []struct {
		name     string
		from, to time.Duration
	}{
		{"before", warm, begin}, {"in the first second", begin, begin + time.Second}, {"later in the outage", begin + time.Second, end},
		{"in the first second after it", end, end + time.Second}, {"later", end + time.Second, 1 << 62}, {"all", warm, 1 << 62},
	} {
		var limited, bare []time.Duration
		memory := 0
		for _, a := range all {
			switch {
			case a.due < phase.from || a.due >= phase.to:
			case a.subject.limit == "":
				bare = append(bare, a.back-a.due)
			default:
				limited = append(limited, a.back-a.due)
				if a.memory {
					memory++
				}
			}
		}
		if len(limited) == 0 || len(bare) == 0 {
			continue
		}
		at := func(took []time.Duration, share float64) float64 {
			slices.Sort(took)
			return float64(took[min(int(share*float64(len(took))), len(took)-1)].Microseconds()) / 1000
		}
		fmt.Fprintf(w, "| %s \t| %d \t| %d \t| %.1f ms \t| %.1f ms \t| %.1f ms \t| %.0f ms \t| %.1f ms \t|\n", phase.name, len(limited), memory,
			at(limited, .5), at(limited, .99), at(limited, .999), at(limited, 1), at(bare, .999))
	}
	_ = w.Flush()
	return b.String()
}

// TestASlowRedisUnderLoad: a Redis that takes 50 ms, more than the budget, is not used again until it is fast.
func TestASlowRedisUnderLoad(t *testing.T) {
	server := startRedis(t)
	proxy := redistest.NewProxy(t, server.Addr())
	l, customer, _ := loaded(t, proxy.Addr())
	changes := func(what string) (counts []int) {
		for _, p := range l.all {
			counts = append(counts, strings.Count(p.log(), what))
		}
		return counts
	}
	warm := l.now()
	time.Sleep(*outageFor)
	begin := l.now()
	proxy.Delay(25 * time.Millisecond)
	l.await(t, "answers of memory", customer, begin, 20, func(a *asked) bool { return a.memory }) // 5 failures open a breaker
	closed, probes, from := changes("to=closed"), changes("to=half-open"), time.Now()
	time.Sleep(*outageFor)
	require.Equal(t, closed, changes("to=closed"), "it flaps")
	took := time.Since(from)
	for i, n := range changes("to=half-open") {
		require.LessOrEqual(t, n-probes[i], int(took/(200*time.Millisecond))+1, "probes of process %d in %v", i, took)
	}
	proxy.Delay(0)
	end := l.now()
	l.await(t, "answers of Redis", customer, end, 10, func(a *asked) bool { return !a.memory })
	all := l.end()
	require.Empty(t, l.problems)
	t.Logf("slow for %v; noticed by the processes after %v\n%s", (end - begin).Round(time.Millisecond), noticed(all, begin, end), latencies(all, warm, begin, end))
}
