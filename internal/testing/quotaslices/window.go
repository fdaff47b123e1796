package quotaslices

// A Window is the fixed windows of one key, which open with their first permit. There is one counter. It lasts for the
// shorter of two windows: that of the calling rule, and the longest one of the rules that have taken permits from it.
type Window struct {
	Rules   []Rule
	Longs   []int8 // lengths of slices, beside the rest of the window
	Steps   []int8 // of the server's clock
	Returns bool

	Unmarked bool // a shorter rule opens the next window while slices of this one are out
	Beyond   int8 // ticks that a slice lasts beyond its window
}

func (f *Window) moves() []Move {
	var all []Move
	for rule, r := range f.Rules {
		for n := int8(1); int(n) <= r.Limit; n++ {
			all = append(all, Move{Op: Plain, Rule: int8(rule), N: n})
			for _, long := range append([]int8{0}, f.Longs...) {
				all = append(all, Move{Op: Lease, Rule: int8(rule), N: n, Long: long})
			}
		}
	}
	return append(all, others(f.Returns, f.Steps, f.Rules)...)
}

// rewind is the state as a call finds it after the clock stepped back: the window begins now, with its count.
func (f *Window) rewind(k *key) {
	if k.exists && k.at > 0 {
		k.ends -= k.at
		k.at = 0
	}
}

func (f *Window) take(w *World, m Move) (place, until int8, ok bool) {
	k, r, opened := w.key, f.Rules[m.Rule], *w
	f.rewind(&k)
	out := !f.Unmarked && k.ends > 0
	if !k.exists || -k.at >= min(int8(r.Span), k.lasts) && !out {
		k = key{exists: true}
		for i := maxCalls - 1; i >= 0; i-- { // what may still be spent is spent in this window
			if u := w.uses[i]; u.n > 0 && (!u.slice || u.until < 0) {
				opened.close(i)
			}
		}
	}
	if int(k.used+m.N) > r.Limit {
		return 0, 0, false
	}
	k.rule, k.used, k.lasts = m.Rule, k.used+m.N, max(k.lasts, int8(r.Span))
	if m.Op == Lease {
		ends := k.at + int8(r.Span)
		if out {
			ends = max(ends, k.ends) // the window goes on until then
		}
		if ends <= 0 {
			return 0, 0, false
		}
		if m.Long > 0 {
			ends = min(ends, m.Long)
		}
		k.ends = max(k.ends, ends)
		until = ends - 1 + f.Beyond
	}
	*w = opened
	w.key = k
	return k.at, until, true
}

// giveBack takes all of them off the window from which they are.
func (f *Window) giveBack(w *World, u use, n int8) {
	if k := &w.key; k.exists && k.at == u.place {
		if k.used = max(k.used-n, 0); k.used == 0 {
			*k = key{} // as the scripts do
		}
	}
}

func (f *Window) pass(w *World) {
	k := &w.key
	if k.exists && -k.at >= k.lasts && k.ends <= 0 {
		*k = key{}
	}
	k.phase = 0
}

// remaining is what a rule finds left now.
func (f *Window) remaining(w *World, rule int8) int {
	k, r := w.key, f.Rules[rule]
	f.rewind(&k)
	if !k.exists || -k.at >= min(int8(r.Span), k.lasts) && k.ends <= 0 {
		return r.Limit
	}
	return max(r.Limit-int(k.used), 0)
}

// excess is what may be spent in the window that is open, less the largest limit.
func (f *Window) excess(w *World) int {
	most, spent := 0, 0
	for _, r := range f.Rules {
		most = max(most, r.Limit)
	}
	for _, u := range w.uses {
		spent += int(u.n) // those of the windows before are closed
	}
	return spent - most
}
