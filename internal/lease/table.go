package lease

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

// A Table holds the slices of the keys that were used last. Its size is fixed.
type Table struct {
	rule Rule
	seed maphash.Seed
	sets []set
	over atomic.Bool // it is closed
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
	Wait                   // the call waits for the end of Flight, and then takes again
)

// An Answer is a verdict, and what is known here.
type Answer struct {
	Verdict
	Left       int           // permits of this process; if Allowed
	RetryAfter time.Duration // if Denied: when this process asks again
	Flight     *Flight       // if Ask; if Allowed and not nil, somebody has to fly it, and nobody waits for it
	Landing    <-chan struct{}
}

// Take decides a call for n permits of a key.
func (t *Table) Take(name string, n int, now Instant) Answer {
	k := t.find(name, now)
	if k == nil {
		return Answer{}
	}
	for s := k.slices.Load(); s != nil; s = s.next.Load() {
		if left, ok := s.spend(int64(n), now); ok {
			if left > s.n/4 || s.next.Load() != nil {
				return Answer{Verdict: Allowed, Left: int(left)}
			}
			return Answer{Verdict: Allowed, Left: int(left), Flight: t.ahead(k, left, now)}
		}
	}
	if next := time.Duration(k.next.Load()); now.Mono < next && k.slices.Load() == nil && int64(n) >= k.least.Load() {
		k.denied.Add(int64(n))
		return Answer{Verdict: Denied, RetryAfter: next - now.Mono}
	}
	return t.ask(k, n, now)
}

// ahead is the flight for the next slice if it is time, while left permits are there.
func (t *Table) ahead(k *key, left int64, now Instant) *Flight {
	if next := time.Duration(k.next.Load()); now.Mono < next || !k.mu.TryLock() {
		return nil
	}
	defer k.mu.Unlock()
	if k.flight != nil || k.closed {
		return nil
	}
	demand := k.demand(t.rule, now.Mono) + t.spending(k)
	if float64(left) > 1+demand*ahead.Seconds() {
		return nil
	}
	want := int(demand*t.rule.long().Seconds()) - int(left)
	if want < few {
		return nil
	}
	return t.fly(k, want, 0, now)
}

// spending is the demand that the slices which are not counted yet have met.
func (t *Table) spending(k *key) (demand float64) {
	for s := k.slices.Load(); s != nil; s = s.next.Load() {
		demand += float64(s.n - max(s.left.Load(), 0))
	}
	return demand / t.rule.memory().Seconds()
}

// ask is what becomes of a call that found no permits.
func (t *Table) ask(k *key, n int, now Instant) Answer {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return Answer{}
	}
	back := k.drop(now)
	for s := k.slices.Load(); s != nil; s = s.next.Load() { // another call has brought some
		if left, ok := s.spend(int64(n), now); ok {
			return Answer{Verdict: Allowed, Left: int(left)}
		}
	}
	if k.flight != nil {
		return Answer{Verdict: Wait, Landing: k.flight}
	}
	if next := time.Duration(k.next.Load()); now.Mono < next && int64(n) >= k.least.Load() {
		k.denied.Add(int64(n))
		return Answer{Verdict: Denied, RetryAfter: next - now.Mono}
	}
	k.spent += int64(n)
	demand := k.demand(t.rule, now.Mono) + t.spending(k)
	want := int(demand*t.rule.long().Seconds()) - int(live(k.slices.Load(), now))
	f := &Flight{Want: n, Waiting: n, table: t, key: k, sent: now}
	if want >= few {
		f = t.fly(k, max(want, n), n, now)
	}
	f.Back = back
	return Answer{Verdict: Ask, Flight: f}
}

func (t *Table) fly(k *key, want, waiting int, now Instant) *Flight {
	k.flight = make(chan struct{})
	return &Flight{Want: min(want, t.rule.Limit), Waiting: waiting, Long: t.rule.long(), table: t, key: k, sent: now}
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
			return s.learn(i, hash, name)
		}
	}
	s.see(hash, now)
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
	for s := k.slices.Load(); s != nil; s = s.next.Load() {
		s.close()
	}
	k.closed = true
	return true
}

// learn is the key at a place that has its hash.
func (s *set) learn(i int, hash uint64, name string) *key {
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
	k := &key{name: name}
	s.keys[i].Store(k)
	return k
}

// Close ends all slices and returns what is left of them, by key. Calls go to the limiter from then on.
func (t *Table) Close() map[string][]Unused {
	t.over.Store(true)
	all := map[string][]Unused{}
	for i := range t.sets {
		s := &t.sets[i]
		s.mu.Lock()
		for j := range s.keys {
			if k := s.keys[j].Load(); k != nil {
				k.mu.Lock()
				k.closed = true
				for at := k.slices.Load(); at != nil; at = at.next.Load() {
					if u := at.close(); u.N > 0 {
						all[k.name] = append(all[k.name], u)
					}
				}
				k.slices.Store(nil)
				k.mu.Unlock()
			}
		}
		s.mu.Unlock()
	}
	return all
}
