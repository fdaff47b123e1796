package ticketleases

// Rules are what a search is about: one limit of a bucket or of a fixed window that opens with its first permit, or several of a
// log.
type Rules struct {
	Bucket  bool     // with exact returns
	Windows []Window // of a log
	Slot    int8     // of a log with a resolution, or a sub-window, ticks
	Limit   int8     // permits; of a log, the most of a call
	Span    int8     // of a window, ticks
	Permit  int8     // of a bucket, units
	Flow    int8     // of a bucket, units that a tick restores
	Lease   int8
	Most    int // tickets that one call gives back
	Steps   []int8
	Losses  bool
	Bare    bool // there is a limiter without the option

	// What wrong rules do.
	LateAsInTime bool // a settlement of a ticket that is gone settles the difference all the same
	KeepsOld     bool // More leaves the ticket before it
	JoinsWindows bool // More joins the permits of two windows
	Revives      bool // an extension of a ticket that is gone begins it again
	Anywhere     bool // permits are given back to another window too
	InFull       bool // a bucket gets back what it has refilled
	SettlesAgain bool // a settlement that was answered by an error is repeated
	Shortest     bool // a log forgets what has left its shortest window
	FromTheStart bool // permits are dated at the first tick of their slot
	Eraless      bool // a log gives back to whatever was taken at the instant of a ticket
}

// rewound is the state as a call finds it. After the server's clock stepped back, a window begins now, with its count; a
// bucket's instant is now.
func (w *World) rewound(r *Rules) key {
	k := w.key
	if k.exists && k.at > 0 {
		k.at = 0
	}
	if !k.exists || !r.Bucket && -k.at >= r.Span {
		return key{exists: true}
	}
	if r.Bucket {
		k.used, k.at = max(k.used+r.Flow*k.at, 0), 0
	}
	return k
}

// placeOf is where permits are that are taken now.
func (w *World) placeOf(r *Rules) int8 {
	if r.Windows != nil {
		return w.slot(r)
	}
	return w.key.at
}

// take takes n permits, if they fit.
func (w *World) take(r *Rules, n int8) bool {
	if r.Windows != nil {
		return w.logTake(r, n)
	}
	k := w.rewound(r)
	if r.Bucket && k.used+n*r.Permit > r.Limit*r.Permit || !r.Bucket && k.used+n > r.Limit {
		return false
	}
	w.write(r, k, n)
	return true
}

// charge takes n permits, whether they fit or not.
func (w *World) charge(r *Rules, n int8) {
	w.write(r, w.rewound(r), n)
	w.use(use{n: n, charge: true})
	if r.Windows == nil {
		w.debt += n
	}
}

func (w *World) write(r *Rules, k key, n int8) {
	if r.Windows != nil {
		w.logRewind(r)
		w.logWrite(r, n)
		return
	}
	if !w.key.exists || !r.Bucket && -w.key.at >= r.Span {
		w.opened(r)
	}
	if r.Bucket {
		n *= r.Permit
	}
	k.used += n
	w.key = k
}

// opened drops what was taken of the window before.
func (w *World) opened(r *Rules) {
	if r.Bucket {
		return
	}
	for i := range w.uses {
		w.uses[i].n = 0
	}
	w.forget()
	w.debt = 0
}

// giveBack gives n permits of a ticket back.
func (w *World) giveBack(r *Rules, t member, n int8) {
	if r.Windows != nil {
		w.logGiveBack(r, t, n)
		return
	}
	if !w.key.exists {
		return
	}
	k := w.rewound(r)
	if r.Bucket {
		held := -t.place
		if t.ends <= 0 { // until the lease's end, or when the state was written last
			held = max(t.ends, min(w.key.at, 0)) - t.place
		}
		back := n * r.Permit
		switch {
		case r.InFull:
		case t.place > 0: // how much was refilled is not known
			back = 0
		default:
			back = max(back-r.Flow*held, 0)
		}
		if k.used > 0 {
			w.key.at, w.key.used = min(w.key.at, 0), max(w.key.used-back, 0)
		}
		return
	}
	if !r.Anywhere && (k.at != t.place || -w.key.at >= r.Span) {
		return
	}
	if w.key = k; k.used <= n {
		w.key = key{} // as the scripts do
	} else {
		w.key.used -= n
	}
}

// pass drops what has expired.
func (w *World) pass(r *Rules) {
	if r.Windows != nil {
		w.logPass(r)
		return
	}
	k := &w.key
	if r.Bucket {
		if k.exists && k.used+r.Flow*k.at < 0 {
			w.key = key{}
		}
		kept := 0
		for _, u := range w.uses { // an interval that begins so long ago holds all that was taken
			if u.n > 0 && -u.at*r.Flow <= 2*r.Limit*r.Permit+2*r.Flow*r.Lease {
				w.uses[kept] = u
				kept++
			}
		}
		clear(w.uses[kept:])
		if kept == 0 {
			w.debt = 0
		}
		return
	}
	if k.exists && -k.at >= r.Span {
		w.key = key{}
		w.opened(r)
	}
}

// counts is the permits that a use counts: none of a ticket whose lease has ended, even if its permits have not come back.
func (w *World) counts(u use) int8 {
	if u.ticket == 0 {
		return u.n
	}
	for _, m := range w.members {
		if m.id == u.ticket && m.ends > 0 {
			return u.n
		}
	}
	return 0
}

// excess is by how much what is taken exceeds the rule, in the smallest units: in the present window, or in the worst
// interval that ends now.
func (w *World) excess(r *Rules) int {
	if r.Windows != nil {
		return w.logExcess(r)
	}
	if !r.Bucket {
		sum := 0
		for _, u := range w.uses {
			sum += int(w.counts(u))
		}
		return sum - int(r.Limit+w.debt)
	}
	worst := 0
	for _, from := range w.uses {
		sum := 0
		for _, u := range w.uses {
			if u.at >= from.at {
				sum += int(w.counts(u)) * int(r.Permit)
			}
		}
		worst = max(worst, sum+int(r.Flow)*int(from.at)-int(r.Limit+w.debt)*int(r.Permit))
	}
	return worst
}

// check notes what a window counts beyond what was taken, if all that has ended has been given back. After a step of the
// clock that can be more: a ticket's window has another start then. And beside a limiter without the option, Redis may forget
// a ticket whose permits still count.
func (w *World) check(r *Rules, freed bool) {
	if r.Bucket || !freed || r.Bare || r.Steps != nil || w.members[0].id != 0 && w.members[0].ends <= 0 {
		return
	}
	if r.Windows != nil {
		w.logCheck(r)
		return
	}
	k, sum := w.rewound(r), int8(0)
	for _, u := range w.uses {
		sum += u.n
	}
	w.Leak = max(w.Leak, k.used-sum)
}
