package lease

import (
	"container/heap"
	"errors"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

var rule = Rule{Limit: 1000, Refill: time.Second}

func at(d time.Duration) Instant { return Instant{d, 1e18 + d} }

// hot is a table that knows k, with a slice of n permits from now on.
func hot(t testing.TB, now Instant, n int) *Table {
	table := NewTable(rule, 64)
	require.Equal(t, Direct, table.Take("k", 1, now).Verdict, "a key that is used once is not kept")
	for range 100 {
		a := table.Take("k", 1, now)
		require.Equal(t, Ask, a.Verdict)
		if a.Flight.Long > 0 {
			require.Zero(t, a.Flight.Landed(Reply{Taken: n + 1, Lasts: a.Flight.Long, Left: 700, Ticket: Ticket{0, 7}}, now))
			require.Equal(t, Outcome{Got: true, Left: n, RetryAfter: time.Microsecond, ResetAfter: time.Microsecond}, a.Flight.Outcome())
			return table
		}
		a.Flight.Landed(Reply{Taken: 1, Left: 700}, now)
	}
	require.Fail(t, "no slice was asked for")
	return nil
}

// spent is hot, but its slice is spent and the flight for the next one is lost.
func spent(t testing.TB) *Table {
	table := hot(t, at(0), 1)
	a := table.Take("k", 1, at(0))
	require.Equal(t, Allowed, a.Verdict)
	require.NotNil(t, a.Flight, "the next slice is asked for ahead")
	require.Zero(t, a.Flight.Waiting)
	require.Equal(t, Wait, table.Take("k", 1, at(0)).Verdict)
	a.Flight.Lost(errLost)
	return table
}

func TestASliceIsSpentUntilItsEndByEitherClock(t *testing.T) {
	for name, later := range map[string]Instant{
		"monotonic": {250 * time.Millisecond, 1e18}, "wall": {0, 1e18 + 250*time.Millisecond}, "both": at(250 * time.Millisecond),
	} {
		t.Run(name, func(t *testing.T) {
			table := hot(t, at(0), 20)
			require.Equal(t, Answer{Verdict: Allowed, Left: 17}, table.Take("k", 3, at(249*time.Millisecond)))
			a := table.Take("k", 1, later)
			require.Equal(t, Ask, a.Verdict, "a thousandth before the end it is over")
			require.Equal(t, []Unused{{Ticket: Ticket{0, 7}, N: 17}}, a.Flight.Back)
		})
	}
}

var errLost = errors.New("lost")

// TestASliceEndsEarlierThanItsReplyWouldHaveIt: its time counts from before it was asked for.
func TestASliceEndsEarlierThanItsReplyWouldHaveIt(t *testing.T) {
	table := spent(t)
	a := table.Take("k", 1, at(0))
	a.Flight.Landed(Reply{Taken: 9, Lasts: 250 * time.Millisecond, Left: 700}, at(200*time.Millisecond))
	require.Equal(t, Allowed, table.Take("k", 1, at(249*time.Millisecond)).Verdict)
	require.Equal(t, Ask, table.Take("k", 1, at(250*time.Millisecond)).Verdict)
}

func TestCallersWaitForAFlight(t *testing.T) {
	table := spent(t)
	first := table.Take("k", 1, at(1))
	require.Equal(t, Ask, first.Verdict)
	require.Positive(t, first.Flight.Long)
	second := table.Take("k", 1, at(2))
	require.Equal(t, Wait, second.Verdict)
	require.Equal(t, Ask, table.Take("k", 2, at(2)).Verdict, "several permits are asked for at once")
	first.Flight.Landed(Reply{Taken: 4, Lasts: first.Flight.Long, Left: 700}, at(3))
	<-second.Flight.Over()
	require.True(t, first.Flight.Outcome().Got)
	require.Equal(t, Allowed, table.Take("k", 1, at(3)).Verdict)

	table = spent(t)
	left1 := table.Take("k", 1, at(1)).Flight
	left1.Leave()
	left1.Landed(Reply{Taken: 4, Lasts: time.Second, Left: 700}, at(2))
	require.Equal(t, 3, table.Take("k", 1, at(3)).Left, "the permit of who has left is in the slice")

	table = spent(t)
	lost := table.Take("k", 1, at(1))
	wait := table.Take("k", 1, at(1))
	lost.Flight.Lost(errLost)
	<-wait.Flight.Over()
	require.Equal(t, errLost, wait.Flight.Outcome().Err)
	require.Equal(t, Ask, table.Take("k", 1, at(2)).Verdict, "the next call asks again")
}

func TestDenialsFromMemory(t *testing.T) {
	table := spent(t)
	a := table.Take("k", 3, at(1))
	require.Zero(t, a.Flight.Long)
	require.Positive(t, a.Flight.Ahead.Long)
	a.Flight.Ahead.Lost(errLost)
	a.Flight.Landed(Reply{Left: 2, RetryAfter: time.Second, ResetAfter: 3 * time.Second}, at(2))
	require.Equal(t, Answer{Verdict: Denied, RetryAfter: 400 * time.Millisecond, ResetAfter: 2400 * time.Millisecond},
		table.Take("k", 3, at(600*time.Millisecond+1)))
	require.Equal(t, Ask, table.Take("k", 2, at(600*time.Millisecond)).Verdict, "fewer permits may be there")
	require.NotEqual(t, Denied, table.Take("k", 3, at(time.Second+1)).Verdict)
}

func TestCloseHandsBackWhatIsLeft(t *testing.T) {
	table := hot(t, at(0), 20)
	table.Take("k", 5, at(0))
	require.Empty(t, table.Close())
	require.Equal(t, map[string][]Unused{"k": {{Ticket: Ticket{0, 7}, N: 15}}}, drained(table))
	require.Equal(t, Direct, table.Take("k", 1, at(0)).Verdict)
	require.Empty(t, drained(table))

	for _, late := range []bool{false, true} {
		table = spent(t)
		a := table.Take("k", 1, at(1))
		require.Equal(t, []*Flight{a.Flight}, table.Close())
		land := func() Unused {
			return a.Flight.Landed(Reply{Taken: 9, Lasts: time.Second / 4, Left: 700, Ticket: Ticket{0, 8}}, at(2))
		}
		if late {
			require.Empty(t, drained(table))
			require.Equal(t, Unused{Ticket: Ticket{0, 8}, N: 8}, land())
		} else {
			require.Zero(t, land())
			require.Equal(t, map[string][]Unused{"k": {{Ticket: Ticket{0, 8}, N: 8}}}, drained(table))
		}
		require.True(t, a.Flight.Outcome().Got)
	}
}

// TestOnlyWhatMayComeBackIsGivenBack: if a later slice found no more missing than had to be, nothing of an older one
// comes back.
func TestOnlyWhatMayComeBackIsGivenBack(t *testing.T) {
	for left, want := range map[int]int{742: 0, 728: 0, 727: 15, 0: 15} {
		table := NewTable(rule, 64)
		k := &key{memory: time.Second}
		land := func(n, left int) {
			f := &Flight{Long: time.Second / 4, table: table, key: k, sent: at(0)}
			f.Landed(Reply{Taken: n, Lasts: time.Second / 4, Left: left, Ticket: Ticket{0, int64(n)}}, at(0))
		}
		land(20, 700)
		k.slices.Load().spend(5, at(0))
		land(8, left)
		got := map[int64]int{}
		for _, u := range k.clear() {
			got[u.Which] = u.N
		}
		require.Equal(t, 8, got[8])
		require.Equal(t, want, got[20], left)
	}
}

// TestASliceLastsAsLongAsCostsNothing, as far as the last reply says it.
func TestASliceLastsAsLongAsCostsNothing(t *testing.T) {
	const full = 1000 * time.Millisecond
	for _, test := range []struct {
		rule        Rule
		left        int
		short, long time.Duration
	}{
		{rule, 700, 250 * time.Millisecond, 250 * time.Millisecond},
		{rule, 600, 250 * time.Millisecond, 400*time.Millisecond - full/8},
		{rule, 100, 250 * time.Millisecond, 900*time.Millisecond - full/8},
		{rule, 0, 250 * time.Millisecond, full - full/8},
		{Rule{Limit: 1000, Refill: 12 * time.Second}, 0, 3 * time.Second, longest},
		{Rule{Limit: 1000, Refill: time.Minute}, 0, longest, longest},
		{Rule{Limit: 1000, Refill: time.Second, Window: true}, 0, 250 * time.Millisecond, 250 * time.Millisecond},
	} {
		table := NewTable(test.rule, 8)
		k := &key{memory: time.Second}
		f := table.fly(k, 100, 1, at(0))
		require.Equal(t, []time.Duration{test.short, test.short}, []time.Duration{f.Short, f.Long}, "nothing is known yet")
		f.Landed(Reply{Taken: 1, Left: test.left}, at(0))
		f = table.fly(k, 100, 1, at(0))
		require.Equal(t, []time.Duration{test.short, test.long}, []time.Duration{f.Short, f.Long}, test)
		k.slices.Store(nil)
		k.calls = 100 // in a second: what they are worth follows from the longest
		calls := 100 * test.long.Seconds()
		require.Equal(t, int(calls-math.Sqrt(calls)), table.worth(k, 100, 0, at(0)))
	}
}

// TestWaitsDifferWidely: from 0.3 to 1.7 times the usual one, which is a refill if nothing is left.
func TestWaitsDifferWidely(t *testing.T) {
	table, shortest, longest := NewTable(rule, 8), time.Hour, time.Duration(0)
	for range 1000 {
		k := &key{memory: time.Second}
		f := &Flight{Long: time.Second / 4, table: table, key: k, sent: at(0)}
		f.pace(Reply{})
		shortest, longest = min(shortest, time.Duration(k.next.Load())), max(longest, time.Duration(k.next.Load()))
	}
	require.Less(t, shortest, 400*time.Millisecond)
	require.GreaterOrEqual(t, shortest, 300*time.Millisecond)
	require.Greater(t, longest, 1600*time.Millisecond)
	require.LessOrEqual(t, longest, 1700*time.Millisecond)
}

func drained(table *Table) map[string][]Unused {
	all := map[string][]Unused{}
	table.Drain(func(name string, u Unused) { all[name] = append(all[name], u) })
	return all
}

// TestAResetEndsTheSlices that are here, and those that were asked for before it.
func TestAResetEndsTheSlices(t *testing.T) {
	table := hot(t, at(0), 20)
	table.Forget("k")
	a := table.Take("k", 1, at(1))
	require.Equal(t, Ask, a.Verdict)
	table.Forget("another key")
	table.Forget("k")
	require.Equal(t, Unused{Ticket: Ticket{0, 8}, N: 8}, a.Flight.Landed(Reply{Taken: 9, Lasts: time.Second / 4, Left: 700, Ticket: Ticket{0, 8}}, at(2)))
	require.Equal(t, Ask, table.Take("k", 1, at(3)).Verdict)
}

// TestAFloodOfKeys leaves a key that has permits where it is, and needs no more memory.
func TestAFloodOfKeys(t *testing.T) {
	table := hot(t, at(0), 100)
	for i := range 100_000 {
		table.Take(strconv.Itoa(i), 1, at(1))
		table.Take(strconv.Itoa(i), 1, at(1))
	}
	require.Equal(t, Allowed, table.Take("k", 1, at(2)).Verdict)
	require.Len(t, table.sets, 8)
	require.Zero(t, testing.AllocsPerRun(100, func() { table.Take(strconv.Itoa(7), 1, at(1)) }))
}

// TestNoPermitIsSpentTwice, by many callers who want different numbers, while the slice ends and what is left is returned.
func TestNoPermitIsSpentTwice(t *testing.T) {
	for range 20 {
		table := hot(t, at(0), 10_000)
		var spent atomic.Int64
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for range 1000 {
					if table.Take("k", 1+i%3, at(0)).Verdict == Allowed {
						spent.Add(int64(1 + i%3))
					}
				}
			})
		}
		var back int
		wg.Go(func() {
			table.Drain(func(_ string, u Unused) { back += u.N })
		})
		wg.Wait()
		require.LessOrEqual(t, spent.Load()+int64(back), int64(10_000))
	}
}

func BenchmarkTake(b *testing.B) {
	table, clock := NewTable(rule, 1024), NewClock()
	now := clock.Now()
	table.Take("a hot key", 1, now)
	a := table.Take("a hot key", 1, now)
	a.Flight.Long = time.Hour
	a.Flight.Landed(Reply{Taken: math.MaxInt32, Lasts: time.Hour, Left: 1000}, now)
	b.Run("alone", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			table.Take("a hot key", 1, clock.Now())
		}
	})
	b.Run("contending", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				table.Take("a hot key", 1, clock.Now())
			}
		})
	})
	b.Run("a key used once", func(b *testing.B) {
		names := make([]string, 1<<16)
		for i := range names {
			names[i] = strconv.Itoa(i)
		}
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			i++
			table.Take(names[i%len(names)], 1, clock.Now())
		}
	})
}

// A simulation is processes that share a bucket, by their demand, with a round trip of a millisecond.
type simulation struct {
	rate, burst, missing           float64
	at                             time.Duration
	epochs                         []slackEpoch
	used, asked, executions, empty int
	by                             []int
}

// A slackEpoch is the least of what was missing, beyond what had to be, since an instant.
type slackEpoch struct {
	id    int64
	began time.Duration
	slack float64
}

type event struct {
	at time.Duration
	do func()
}

type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at < e[j].at }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	last := old[len(old)-1]
	*e = old[:len(old)-1]
	return last
}

// lease is the rule of the scripts.
func (s *simulation) lease(now time.Duration, want, waiting int, short, long time.Duration) Reply {
	s.pass(now)
	if free := max(short, min(long, time.Duration((s.missing-s.burst/8-float64(want))/s.rate*1e9))); free < long {
		want, long = max(min(want, waiting), int(float64(want)*free.Seconds()/long.Seconds())), free
	}
	floor := max(s.missing, s.rate*long.Seconds())
	room := math.Floor(s.burst - floor)
	n, lasts := min(float64(want), max(min(room, float64(waiting)), math.Floor(room/4))), long
	if n < 1 || long == 0 {
		n, lasts, floor = max(min(float64(waiting), math.Floor(s.burst-s.missing)), 0), 0, s.missing
	}
	r := Reply{Taken: int(n), Lasts: lasts}
	if n > 0 {
		s.slack(s.missing - s.rate*lasts.Seconds())
		s.missing = floor + n
	} else {
		s.empty++
		r.RetryAfter = time.Duration((s.missing + 1 - s.burst) / s.rate * 1e9)
	}
	if lasts > 0 {
		if last := len(s.epochs) - 1; last < 0 || now-s.epochs[last].began > time.Duration(s.burst/s.rate*1e9) {
			s.epochs = append(s.epochs[max(last, 0):], slackEpoch{int64(s.executions), now, s.burst})
		}
		r.Which = s.epochs[len(s.epochs)-1].id
	}
	r.Left = max(int(s.burst-s.missing), 0)
	return r
}

// giveBack is what the scripts do with unused permits.
func (s *simulation) giveBack(now time.Duration, u Unused) {
	s.pass(now)
	s.slack(s.missing)
	for _, e := range s.epochs {
		if e.id == u.Which && e.slack >= float64(u.N) {
			s.missing -= float64(u.N)
			for i := range s.epochs {
				s.epochs[i].slack = max(s.epochs[i].slack-float64(u.N), 0)
			}
			return
		}
	}
}

// pass is an execution, up to which the bucket has refilled.
func (s *simulation) pass(now time.Duration) {
	s.executions++
	s.missing = max(s.missing-s.rate*(now-s.at).Seconds(), 0)
	s.at = now
}

// slack notes what was missing beyond what had to be.
func (s *simulation) slack(spare float64) {
	for i := range s.epochs {
		s.epochs[i].slack = min(s.epochs[i].slack, math.Floor(max(spare, 0)))
	}
}

// simulate runs processes whose demand is load times the rate together, in these proportions, and measures after the
// first part. The first so many are plain: they ask for each call.
func simulate(rate, burst float64, weights []float64, plain int, load float64, length time.Duration) *simulation {
	s, queue, rng := &simulation{rate: rate, burst: burst, by: make([]int, len(weights))}, &events{}, rand.New(rand.NewPCG(1, 2))
	from, sum := length/4, 0.0
	for _, w := range weights {
		sum += w
	}
	for p, w := range weights {
		table := NewTable(Rule{Limit: int(burst), Refill: time.Duration(burst / rate * 1e9)}, 8)
		var take func(now time.Duration)
		fly := func(f *Flight, now time.Duration, waits bool) {
			heap.Push(queue, event{now + time.Millisecond/2, func() {
				for _, u := range f.Back {
					s.giveBack(now+time.Millisecond/2, u)
				}
				r := s.lease(now+time.Millisecond/2, f.Want, f.Waiting, f.Short, f.Long)
				heap.Push(queue, event{now + time.Millisecond, func() {
					f.Landed(r, at(now+time.Millisecond))
					if f.Outcome().Got && waits && now > from {
						s.used++
						s.by[p]++
					}
				}})
			}})
		}
		take = func(now time.Duration) {
			if p < plain {
				if s.lease(now, 1, 1, 0, 0).Taken > 0 && now > from {
					s.used++
					s.by[p]++
				}
				return
			}
			a := table.Take("k", 1, at(now))
			switch a.Verdict {
			case Direct:
				s.lease(now, 1, 1, 0, 0)
			case Allowed:
				if now > from {
					s.used++
					s.by[p]++
				}
				if a.Flight != nil {
					fly(a.Flight, now, false)
				}
			case Ask:
				fly(a.Flight, now, true)
			case Wait:
				heap.Push(queue, event{now + time.Millisecond/10, func() { take(now + time.Millisecond/10) }})
			}
		}
		var arrive func(now time.Duration)
		arrive = func(now time.Duration) {
			if now > from {
				s.asked++
			}
			take(now)
			next := now + time.Duration(rng.ExpFloat64()/(load*rate*w/sum)*1e9)
			if next < length {
				heap.Push(queue, event{next, func() { arrive(next) }})
			}
		}
		first := time.Duration(rng.Float64() * 1e8)
		heap.Push(queue, event{first, func() { arrive(first) }})
	}
	warm := false
	for queue.Len() > 0 {
		e := heap.Pop(queue).(event)
		if e.at > from && !warm {
			warm, s.executions, s.empty = true, 0, 0
		}
		if e.at > length {
			break
		}
		e.do()
	}
	return s
}

// alike and zipf are the demands of n processes.
func alike(n int) []float64 {
	weights := make([]float64, n)
	for i := range weights {
		weights[i] = 1
	}
	return weights
}

func zipf(n int) []float64 {
	weights := make([]float64, n)
	for i := range weights {
		weights[i] = 1 / float64(i+1)
	}
	return weights
}

func jain(by []int) float64 {
	sum, squares := 0.0, 0.0
	for _, n := range by {
		sum, squares = sum+float64(n), squares+float64(n*n)
	}
	return sum * sum / squares / float64(len(by))
}

// TestProcessesShareABucket: what 64 processes get of a bucket, and what that costs the server.
func TestProcessesShareABucket(t *testing.T) {
	raceflag.SkipSequential(t)
	for _, test := range []struct {
		rate, burst, load         float64
		weights                   []float64
		used, decisions, fairness float64 // at least
	}{
		{1000, 1000, 10, alike(64), 0.99, 120, 0.98},
		{1000, 1000, 4, alike(64), 0.99, 50, 0.98},
		{1000, 1000, 3, alike(64), 0.99, 37.5, 0.98},
		{1000, 1000, 2, alike(64), 0.99, 25, 0.98},
		{1000, 1000, 1.5, alike(64), 0.98, 16.5, 0.98},
		{1000, 1000, 1.2, alike(64), 0.96, 9.5, 0.98},
		{1000, 1000, 10, zipf(64), 0.99, 120, 0.98},
		{1000, 1000, 1, alike(64), 0.99, 0.99, 0.98},
		{1000, 1000, 0.1, alike(64), 0.095, 0.99, 0.9},
		{1000, 1000, 2, alike(4), 0.99, 120, 0.98},
		{1000, 1000, 1, alike(16), 0.98, 10, 0.98},
		{100, 100, 10, alike(64), 0.99, 10, 0.95},
	} {
		length := 40 * time.Second
		s := simulate(test.rate, test.burst, test.weights, 0, test.load, length)
		measured := (length * 3 / 4).Seconds()
		used := float64(s.used) / (test.rate * measured)
		decisions := float64(s.asked) / float64(max(s.executions, 1))
		t.Logf("%v a second, burst %v, %d processes, %v times the rate, %.0f times as much for the first as for the last: %.1f %% used, "+
			"%.1f decisions an execution, Jain %.3f",
			test.rate, test.burst, len(test.weights), test.load, test.weights[0]/test.weights[len(test.weights)-1], 100*used, decisions, jain(s.by))
		require.GreaterOrEqual(t, used, test.used)
		require.LessOrEqual(t, float64(s.used), test.burst+test.rate*measured)
		require.GreaterOrEqual(t, jain(s.by), test.fairness)
		require.GreaterOrEqual(t, decisions, test.decisions)
	}
}

// TestProcessesBesidePlainCallers: of 64 processes with equal demand, 8 have no slices and never wait. While these ask for
// less than the rate, they get all of it, and the others the rest. If they ask for more, each question of a waiting process
// is worth as much as one of theirs, and it asks at least once in the time of a refill.
func TestProcessesBesidePlainCallers(t *testing.T) {
	raceflag.SkipSequential(t)
	for _, load := range []float64{1.5, 2, 4, 7, 10, 20} {
		const rate, burst, processes, plain = 1000, 1000, 64, 8
		length := 40 * time.Second
		s := simulate(rate, burst, alike(processes), plain, load, length)
		measured := (length * 3 / 4).Seconds()
		theirs, ours := 0, 0
		for p, n := range s.by {
			if p < plain {
				theirs += n
			} else {
				ours += n
			}
		}
		demand := load * rate * plain / processes // of the plain ones
		atLeast := max(rate-demand, (processes-plain)*rate/max(demand, rate)/(burst/rate))
		t.Logf("%v times the rate: plain callers asked for %.0f a second and got %.0f, the others %.0f, at least %.0f",
			load, demand, float64(theirs)/measured, float64(ours)/measured, atLeast)
		require.GreaterOrEqual(t, float64(ours)/measured, 0.9*atLeast)
		require.GreaterOrEqual(t, float64(theirs+ours), 0.95*rate*measured)
	}
}
