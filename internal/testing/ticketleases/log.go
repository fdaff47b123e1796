package ticketleases

// A Window is a rule of a log: so many permits within so many ticks.
type Window struct{ Limit, Span int8 }

const mostEntries = 5

// An entry of a log has the permits of one slot, and is dated at its last tick.
type entry struct{ at, n int8 }

// An era begins when the server's clock steps back before the slot of the last entry. Instants up to at are used again in it, so
// tickets of these have the era. One that begins at the same tick as the one before it is another one by its number.
type era struct{ at, number int8 }

func (e era) exists() bool { return e.number > 0 }

// eraOf is the era that a ticket of a log has whose permits are dated at place, as the state says.
func (w *World) eraOf(r *Rules, place int8) era {
	if r.Eraless || place > w.era.at {
		return era{}
	}
	return w.era
}

// slot is where a log dates permits that are taken now.
func (w *World) slot(r *Rules) int8 {
	if r.FromTheStart {
		return -w.phase
	}
	return max(r.Slot, 1) - 1 - w.phase
}

// logRewind dates what was taken in later slots in this one: the server's clock stepped back.
func (w *World) logRewind(r *Rules) {
	slot, sum, kept, last := w.slot(r), int8(0), 0, int8(0)
	for _, e := range w.entries {
		if e.n > 0 && e.at > slot {
			sum += e.n
			last = e.at
		} else if e.n > 0 {
			w.entries[kept] = e
			kept++
		}
	}
	clear(w.entries[kept:])
	if sum == 0 {
		return
	}
	if !w.era.exists() || w.era.at < last {
		w.era = era{last, 0}
	}
	w.era.number++
	w.logWrite(r, sum)
}

// logWrite adds n permits, dated now.
func (w *World) logWrite(r *Rules, n int8) {
	slot := w.slot(r)
	for i := range w.entries {
		if e := &w.entries[i]; e.n == 0 || e.at == slot {
			*e = entry{slot, e.n + n}
			return
		}
	}
	panic("ticketleases: too many entries")
}

// logUsed is the permits that a log counts within a window.
func (w *World) logUsed(span int8) (sum int8) {
	for _, e := range w.entries {
		if e.n > 0 && e.at > -span {
			sum += e.n
		}
	}
	return sum
}

func (w *World) logTake(r *Rules, n int8) bool {
	w.logRewind(r)
	for _, rule := range r.Windows {
		if w.logUsed(rule.Span)+n > rule.Limit {
			return false
		}
	}
	w.logWrite(r, n)
	return true
}

// logRemaining changes nothing: what is dated in later slots is dated in this one when somebody writes.
func (w World) logRemaining(r *Rules) int {
	w.logRewind(r)
	remaining := int8(100)
	for _, rule := range r.Windows {
		remaining = min(remaining, max(rule.Limit-w.logUsed(rule.Span), 0))
	}
	return int(remaining)
}

// logGiveBack takes n permits off the entry of a ticket, if there still is one.
func (w *World) logGiveBack(r *Rules, t member, n int8) {
	if t.era != w.eraOf(r, t.place) {
		return
	}
	for i := range w.entries {
		e := &w.entries[i]
		last := i == mostEntries-1 || w.entries[i+1].n == 0
		if e.n == 0 || e.at != t.place && !(r.Anywhere && last) {
			continue
		}
		if e.n -= min(n, e.n); e.n == 0 {
			copy(w.entries[i:], w.entries[i+1:])
			w.entries[mostEntries-1] = entry{}
			w.eraEnds(r)
		}
		return
	}
}

func (r *Rules) longest() (span int8) {
	for _, rule := range r.Windows {
		span = max(span, rule.Span)
	}
	return span
}

// eraEnds drops an era whose last instant has left all windows, or which was dropped with the key.
func (w *World) eraEnds(r *Rules) {
	if w.era.at <= -r.longest() || w.entries[0].n == 0 {
		w.era = era{}
	}
}

// logPass drops entries and uses that have left all windows.
func (w *World) logPass(r *Rules) {
	longest := r.longest()
	keeps := longest
	if r.Shortest {
		for _, rule := range r.Windows {
			keeps = min(keeps, rule.Span)
		}
	}
	for w.entries[0].n > 0 && w.entries[0].at <= -keeps {
		copy(w.entries[:], w.entries[1:])
		w.entries[mostEntries-1] = entry{}
	}
	w.eraEnds(r)
	for i := range w.uses {
		if u := &w.uses[i]; u.at <= -longest-r.Slot {
			*u = use{}
		}
	}
	w.forget()
}

// logExcess is by how much what was taken within a window that ends now exceeds its limit. Debts are taken whether they fit or not.
func (w *World) logExcess(r *Rules) (worst int) {
	for _, rule := range r.Windows {
		sum := 0
		for _, u := range w.uses {
			if u.at > -rule.Span && !u.charge {
				sum += int(w.counts(u))
			}
		}
		worst = max(worst, sum-int(rule.Limit))
	}
	return worst
}

// logCheck notes what a log counts beyond what was taken. A slot counts until its last tick has left.
func (w *World) logCheck(r *Rules) {
	for _, rule := range r.Windows {
		sum := int8(0)
		for _, u := range w.uses {
			if u.at > -rule.Span-max(r.Slot, 1)+1 {
				sum += u.n
			}
		}
		w.Leak = max(w.Leak, w.logUsed(rule.Span)-sum)
	}
}
