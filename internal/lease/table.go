package lease

import (
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// A Table holds the slices of the keys that were used last. Its size is fixed.
type Table struct {
	rule Rule
	seed maphash.Seed
	sets []set
	trip atomic.Int64 // how long the last flight took
	over atomic.Bool  // it is closed
}

// ways is how many keys a set holds.
const ways = 8

// A set is the keys of equal low bits of their hashes. Reading takes no lock.
type set struct {
	hashes [ways]atomic.Uint64 // 0: free
	keys   [ways]atomic.Pointer[key]
	mu     sync.Mutex    // guards changes
	turn   int           // of the next key that is dropped
	_      [64 - 16]byte // the next set is in lines of its own
}

// NewTable returns a table for about so many keys of one rule.
func NewTable(rule Rule, keys int) *Table {
	sets := 1
	for sets*ways < keys {
		sets *= 2
	}
	return &Table{rule: rule, seed: maphash.MakeSeed(), sets: make([]set, sets)}
}

// A Verdict is what becomes of a call.
type Verdict int

// The verdicts.
const (
	Direct  Verdict = iota // the call goes to the limiter
	Allowed                // from memory
	Denied                 // from memory
	Ask                    // the call flies the Flight
	Wait                   // the call waits for the end of Flight, which another one flies, and then takes again
)

// An Answer is a verdict, and what is known here.
type Answer struct {
	Verdict
	Of         int           // which of several limits it is about, see Reply
	Left       int           // permits that are left of this process's
	RetryAfter time.Duration // if Denied: when this process asks again
	ResetAfter time.Duration // until the full limit is there, as was known when the last flight landed
	Flight     *Flight       // if Ask or Wait; if Allowed and not nil, somebody has to fly it, and nobody waits for it
}

// Take decides a call for n permits of a key.
func (t *Table) Take(name string, n int, now Instant) Answer {
	k := t.find(name, now)
	if k == nil {
		return Answer{}
	}
	if s := k.slices.Load(); s != nil && s.next.Load() == nil { // the usual case, in less time
		if left, ok := s.spend(int64(n), now); ok {
			if left > s.early.Load() {
				return k.spent(s, left, now)
			}
			return k.allowed(s, left, now, t.ahead(k, s, left, now))
		}
	}
	if a := t.atOnce(k, n, now); a.Verdict != Direct {
		return a
	}
	return t.ask(k, n, now)
}

// TakeAtOnce is Take for a call that is decided otherwise if it is not decided at once: then it does nothing.
func (t *Table) TakeAtOnce(name string, n int, now Instant) Answer {
	k := t.known(name)
	if k == nil || t.over.Load() {
		return Answer{}
	}
	return t.atOnce(k, n, now)
}

// atOnce allows or denies a call, or returns Direct.
func (t *Table) atOnce(k *key, n int, now Instant) Answer {
	for s := k.slices.Load(); s != nil; s = s.next.Load() {
		if left, ok := s.spend(int64(n), now); ok {
			if left > s.early.Load() || s.next.Load() != nil {
				return k.allowed(s, left, now, nil)
			}
			return k.allowed(s, left, now, t.ahead(k, s, left, now))
		}
	}
	if k.slices.Load() == nil && k.denies(n, now) {
		return k.deniedNow(n, now)
	}
	return Answer{}
}

// allowed is the answer to a call after which left permits of s are left.
func (k *key) allowed(s *slice, left int64, now Instant, f *Flight) Answer {
	if next := s.next.Load(); next != nil {
		left += live(next, now)
	}
	a := k.spent(s, left, now)
	a.Flight = f
	return a
}

// spent is the answer to a call that was allowed from s, while so many permits are left.
func (k *key) spent(s *slice, left int64, now Instant) Answer {
	return Answer{Verdict: Allowed, Of: s.of, Left: int(left), ResetAfter: max(time.Duration(k.full.Load())-now.Mono, 0)}
}

// denies reports whether a call for n permits that are not here is denied.
func (k *key) denies(n int, now Instant) bool {
	return now.Mono < time.Duration(k.next.Load()) && int64(n) >= k.least.Load()
}

func (k *key) deniedNow(n int, now Instant) Answer {
	k.denied.Add(int64(n))
	return k.until(now)
}

// until is a denial until this process asks again.
func (k *key) until(now Instant) Answer {
	wait := max(time.Duration(k.next.Load())-now.Mono, time.Microsecond)
	return Answer{Verdict: Denied, Of: int(k.of.Load()), RetryAfter: wait, ResetAfter: max(time.Duration(k.full.Load())-now.Mono, wait)}
}

// ahead is the flight for the next slice if it is time, while left permits of s are there. If it is not, it looks again
// when half of these are left.
func (t *Table) ahead(k *key, s *slice, left int64, now Instant) *Flight {
	if next := time.Duration(k.next.Load()); now.Mono < next || !k.mu.TryLock() {
		return nil
	}
	defer k.mu.Unlock()
	s.early.Store(left / 2)
	if k.flight != nil || k.closed || now.Mono < k.lost+again {
		return nil
	}
	demand := k.demand(now.Mono)
	early := min(max(ahead, 2*time.Duration(t.trip.Load())), t.rule.Long()/2)
	if last := 1 + demand*early.Seconds(); float64(left) > last {
		s.early.Store(max(left/2, int64(last)))
		return nil
	}
	return t.fly(k, t.worth(k, demand, left, now), 0, now)
}

// worth is how many permits a slice of a key should have for which so many a second are asked, and left are there. It is
// fewer than are asked for on average, so that most slices are used up before they end, which is with their window or slot at
// the latest.
func (t *Table) worth(k *key, demand float64, left int64, now Instant) int {
	long := t.long(k)
	if left := k.ends(t.rule, now.Mono); left > 0 {
		long = min(long, left)
	}
	calls := demand * long.Seconds()
	want := min(int(calls-math.Sqrt(calls)), t.rule.Limit) - int(left)
	if t.rule.Most > 0 {
		want = min(want, t.rule.Most-int(left))
	}
	return want
}

// long is how long a slice of a key lasts at most.
func (t *Table) long(k *key) time.Duration { return max(t.rule.Long(), k.long) }

// ask is what becomes of a call that found no permits.
func (t *Table) ask(k *key, n int, now Instant) Answer {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return Answer{}
	}
	k.drop(now)
	for s := k.slices.Load(); s != nil; s = s.next.Load() { // another call has brought some
		if left, ok := s.spend(int64(n), now); ok {
			return k.allowed(s, left, now, nil)
		}
	}
	if n == 1 && k.flight != nil {
		return Answer{Verdict: Wait, Flight: k.flight}
	}
	if k.denies(n, now) {
		a := k.deniedNow(n, now)
		a.Left = int(live(k.slices.Load(), now))
		return a
	}
	k.decay(now.Mono)
	k.calls += float64(n)
	left := live(k.slices.Load(), now)
	want := t.worth(k, k.demand(now.Mono), left, now)
	var f *Flight
	if n == 1 {
		f = t.fly(k, want, 1, now)
	}
	if f == nil { // all of several permits are there or none is taken, which a slice does not promise
		f = &Flight{Waiting: n, Back: k.takeBack(), table: t, key: k, sent: now, backs: k.backs, Ahead: t.fly(k, want, 0, now)}
	}
	return Answer{Verdict: Ask, Left: int(left), Flight: f}
}

// fly is the flight for a slice, nil if it is worth none or one is under way.
func (t *Table) fly(k *key, want, waiting int, now Instant) *Flight {
	fewest := few
	if k.pause > 0 {
		fewest = scanty
	}
	if want < fewest || k.flight != nil {
		return nil
	}
	k.flight = &Flight{
		Want: want, Waiting: waiting, Short: t.rule.Long(), Long: t.long(k), Back: k.takeBack(),
		table: t, key: k, sent: now, resets: k.resets, backs: k.backs, over: make(chan struct{}),
	}
	return k.flight
}

// find is the key, which the table knows from its second call on. nil: the call goes to the limiter.
func (t *Table) find(name string, now Instant) *key {
	if t.over.Load() {
		return nil
	}
	hash := maphash.String(t.seed, name) | 1<<63
	s := &t.sets[hash&uint64(len(t.sets)-1)]
	for i := range s.hashes {
		if s.hashes[i].Load() == hash {
			if k := s.keys[i].Load(); k != nil && k.name == name {
				return k
			}
			return s.learn(i, hash, name, t.rule.memory())
		}
	}
	s.see(hash, now)
	return nil
}

// known is the key if the table knows it.
func (t *Table) known(name string) *key {
	if len(t.sets) == 0 {
		return nil
	}
	hash := maphash.String(t.seed, name) | 1<<63
	s := &t.sets[hash&uint64(len(t.sets)-1)]
	for i := range s.hashes {
		if k := s.keys[i].Load(); k != nil && k.name == name {
			return k
		}
	}
	return nil
}

// see notes a key that was not seen before. It takes the place of one that has no permits.
func (s *set) see(hash uint64, now Instant) {
	if !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	for range ways {
		i := s.turn
		s.turn = (s.turn + 1) % ways
		if k := s.keys[i].Load(); k != nil && !k.retire(now) {
			continue
		}
		s.keys[i].Store(nil)
		s.hashes[i].Store(hash)
		return
	}
}

// retire closes a key that has no permits, no flight and no denial.
func (k *key) retire(now Instant) bool {
	if !k.mu.TryLock() {
		return false
	}
	defer k.mu.Unlock()
	if k.flight != nil || live(k.slices.Load(), now) > 0 || now.Mono < time.Duration(k.next.Load()) {
		return false
	}
	k.clear()
	k.closed = true
	return true
}

// learn is the key at a place that has its hash.
func (s *set) learn(i int, hash uint64, name string, memory time.Duration) *key {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hashes[i].Load() != hash {
		return nil
	}
	if k := s.keys[i].Load(); k != nil {
		if k.name == name {
			return k
		}
		return nil // another key has the same hash
	}
	k := &key{name: name, memory: memory, lost: -again}
	s.keys[i].Store(k)
	return k
}

// Forget ends the slices of a key whose state is deleted, and those that are under way.
func (t *Table) Forget(name string) {
	k := t.known(name)
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.resets++
	k.clear()
	k.back = nil
	k.pause = 0
	k.returned()
}

// Returned ends the denials of a key of which permits have come back.
func (t *Table) Returned(name string) {
	if k := t.known(name); k != nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.returned()
	}
}

func (k *key) returned() {
	k.backs++
	k.next.Store(0)
}

// clear ends the slices.
func (k *key) clear() (unused []Unused) {
	for s := k.slices.Load(); s != nil; s = s.next.Load() {
		if u := s.close(); s.returnable(u) {
			unused = append(unused, u)
		}
	}
	k.slices.Store(nil)
	return unused
}

// Close ends the table: calls go to the limiter from then on. It returns the flights that are under way, and Drain
// what is left then.
func (t *Table) Close() (flights []*Flight) {
	t.over.Store(true)
	t.each(func(k *key) {
		k.closed = true
		if k.flight != nil {
			flights = append(flights, k.flight)
		}
	})
	return flights
}

// Drain ends the slices of a closed table and calls use with what is left of each. What flights bring later, they give
// back.
func (t *Table) Drain(use func(name string, u Unused)) {
	t.each(func(k *key) {
		k.gone = true
		for _, u := range append(k.takeBack(), k.clear()...) {
			use(k.name, u)
		}
	})
}

// each calls f for each key, with its lock held.
func (t *Table) each(f func(*key)) {
	for i := range t.sets {
		s := &t.sets[i]
		s.mu.Lock()
		for j := range s.keys {
			if k := s.keys[j].Load(); k != nil {
				k.mu.Lock()
				f(k)
				k.mu.Unlock()
			}
		}
		s.mu.Unlock()
	}
}
