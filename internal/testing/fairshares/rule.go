package fairshares

// A Rule is one limit and how it is shared. Numbers are whole: a permit is Permit units of the bucket, of which a tick
// restores Flow, and Grain grains of a share.
type Rule struct {
	Burst, Permit, Flow int64
	Kept                int64 // permits of the burst, for tenants that have had less than others
	Spare               int64 // permits of the burst, for tenants that come new
	Grain               int64
	Epoch               int64 // ticks
	Parts               int64 // all of the rule, of which parts are promised; Grain is a multiple of it
	Tau                 int64 // ticks in which what a tenant is promised comes together, at most; 0: nothing is promised

	// What a search must find.
	NoKept      bool // who has had most leaves nothing to the others
	NoMost      bool // a tenant can be behind by its share of what is kept only, however small
	NoSpare     bool // nor to those who come new
	Unbounded   bool // what a tenant has not had never lapses
	LoneIsAlone bool // the only one counted decides as if nobody could come
	Unkept      bool // others leave nothing of what is promised
	FullAtOnce  bool // a promise begins with all of Tau
	Overbooked  bool // all together may be promised more than the rule
}

// A Limit is the state of a limit.
type Limit struct {
	Exists  bool
	At      int64 // instant, ticks
	Missing int64 // units, then

	Began, Before int64 // instants of this epoch and of the one before it; 0: none
	Counts, Left  int64 // weights of those counted in this epoch, and of those only in the one before it
	Line          int64 // grains per weight that the tenant which has had most has had in this epoch
	Shift         int64 // the line at the end of the epoch before it
	Most          int64 // grains per weight of the largest call
	Owed          int64 // grains, no less than what tenants behind the line may take

	Promised, Here int64 // parts of the rule promised to those counted, and to those counted in this epoch
	Pledged        int64 // parts times ticks that the promised ones may take, at least
}

// A Tenant is the state of one of those who share a limit.
type Tenant struct {
	Exists bool
	Epoch  int64 // in which it is counted, as the instant at which that began
	Had    int64 // grains per weight, on the scale of the line
	Weight int64

	Promise int64 // parts of the rule
	Full    int64 // when all of Tau is there again
}

// An Answer says how a call was decided.
type Answer struct {
	Allowed bool
	ByShare bool  // denied, though the limit has room
	Retry   int64 // ticks until it would be allowed
}

// A view is what a call finds.
type view struct {
	present, missing, level int64 // grains
	counted                 bool
	others, share, reach    int64 // weight; grains per weight; how far behind the line a tenant can be
	behind                  int64 // grains per weight
	kept                    int64 // grains
	cost                    int64 // grains per weight
	owed                    int64
	pledged                 int64 // parts times ticks
	own, takes              int64 // ticks of what the tenant is promised; what a call takes of it
}

// free is the level beyond what is promised, in grains. It is rounded once: it never falls while nobody takes, as no more
// than the whole rule is promised.
func (r *Rule) free(missing, pledged int64) int64 {
	room := r.Burst*r.Permit - missing
	if room <= 0 {
		pledged = 0
	}
	return floor(room*r.Grain-pledged*r.Flow*(r.Grain/max(r.Parts, 1)), r.Permit)
}

func (r *Rule) look(l *Limit, t *Tenant, now, n, weight int64) view {
	v := view{present: now, cost: ceil(n*r.Grain, weight)}
	if l.Exists { // after a step back of the clock its time counts from now
		passed := max(now-l.At, 0)
		v.missing = max(l.Missing-passed*r.Flow, 0)
		v.pledged = min(l.Pledged+l.Promised*passed, l.Promised*r.Tau)
	}
	v.level = (r.Burst*r.Permit - v.missing) * r.Grain / r.Permit
	had, all := t.Had, weight
	if l.Exists {
		all = l.Counts + l.Left
		v.counted = t.Exists && (t.Epoch == l.Began || t.Epoch == l.Before && l.Before != 0)
		if t.Epoch != l.Began {
			had -= l.Shift
		}
		if v.counted {
			all += max(weight-t.Weight, 0)
		} else {
			all += weight
		}
	}
	if v.counted && t.Promise > 0 {
		v.own = r.Tau - max(t.Full-now, 0)
		v.takes = ceil(n*r.Permit*r.Parts, r.Flow*t.Promise)
	}
	v.others = all - weight
	v.share = r.Kept * r.Grain / all
	v.reach = v.share
	if !r.NoMost {
		v.reach = max(v.share, 2*l.Most)
	}
	if v.counted {
		v.behind = l.Line - had
		if !r.Unbounded {
			v.behind = min(v.behind, v.reach)
		}
		if weight > t.Weight && v.behind > 0 { // of a larger weight it is as much in permits
			v.behind = v.behind * t.Weight / weight
		}
	}
	v.kept = v.share * v.others
	if r.NoKept {
		v.kept = 0
	}
	v.owed = min(l.Owed, v.kept)
	return v
}

type kind int

const (
	promised kind = iota // a call from what the tenant is promised
	behind               // from what is kept for it
	newcomer             // one from what is kept for those who come new
	ahead                // one that moves the line, and leaves both
)

func (r *Rule) kind(v *view) kind {
	switch {
	case v.cost <= v.behind:
		return behind
	case !v.counted && v.others > 0 && v.cost <= v.reach:
		return newcomer
	}
	return ahead
}

// needs is the level, in grains and beyond what is promised, with which a call for n permits is allowed without a promise.
func (r *Rule) needs(v *view, n int64) int64 {
	grains := n * r.Grain
	switch kind := r.kind(v); {
	case kind == behind:
		return min(grains, r.Burst*r.Grain)
	case kind == newcomer:
		return min(grains+v.owed, r.Burst*r.Grain)
	case r.LoneIsAlone && v.others == 0 || r.NoSpare:
		return min(grains+v.kept, r.Burst*r.Grain)
	}
	return min(grains+v.kept+r.Spare*r.Grain, r.Burst*r.Grain)
}

// Call decides a call of a tenant, and changes the states if it is allowed. promise is what its limiter promises.
func (r *Rule) Call(l *Limit, t *Tenant, now, n, weight, promise int64) Answer {
	v := r.look(l, t, now, n, weight)
	if how, ok := r.allows(&v, t, n, promise); ok {
		r.take(l, t, &v, how, n, weight, promise)
		return Answer{Allowed: true}
	}
	l.At = min(l.At, now)
	byShare := v.level >= n*r.Grain
	if l.Promised == 0 {
		missing := r.Burst*r.Permit - ceil(r.needs(&v, n)*r.Permit, r.Grain) // that many may be
		return Answer{ByShare: byShare, Retry: ceil(v.missing-missing, r.Flow)}
	}
	later := func(wait int64) bool {
		w := v
		w.missing = max(v.missing-wait*r.Flow, 0)
		w.pledged = min(v.pledged+l.Promised*wait, l.Promised*r.Tau)
		w.own = min(v.own+wait, r.Tau)
		w.level = (r.Burst*r.Permit - w.missing) * r.Grain / r.Permit
		_, ok := r.allows(&w, t, n, promise)
		return ok
	}
	retry, apart := int64(1), ceil(v.missing, r.Flow)
	for ; apart > 0; apart /= 2 {
		for !later(retry + apart - 1) {
			retry += apart
		}
	}
	return Answer{ByShare: byShare, Retry: retry}
}

// allows reports whether a call is allowed, and how: first without the promise.
func (r *Rule) allows(v *view, t *Tenant, n, promise int64) (kind, bool) {
	pledged := v.pledged
	if r.Unkept {
		pledged = 0
	}
	if v.missing == 0 || r.free(v.missing, pledged) >= r.needs(v, n) {
		return r.kind(v), true
	}
	return promised, v.takes > 0 && t.Promise == promise && v.takes <= v.own && v.level >= n*r.Grain
}

// take changes the states. An epoch ends only with a call that moves the line: that leaves as much as is kept, and so as
// much as those can take for whom more is kept when others count no longer.
func (r *Rule) take(l *Limit, t *Tenant, v *view, how kind, n, weight, promise int64) {
	if !l.Exists {
		*l = Limit{Began: v.present}
	}
	counted := weight
	switch {
	case !v.counted:
		l.Counts += weight
	case t.Epoch == l.Began: // within an epoch no weight is lowered
		counted = max(weight, t.Weight)
		l.Counts += counted - t.Weight
	default:
		l.Counts += weight
		l.Left = max(l.Left-min(weight, t.Weight), 0)
	}
	l.Exists, l.At, l.Missing, l.Pledged = true, v.present, v.missing+n*r.Permit, v.pledged
	given, full := r.promise(l, t, v, promise)
	had := l.Line - v.behind + v.cost
	switch how {
	case promised: // it counts, but moves no line, and for no longer than a tenant can be behind
		had = min(had, max(l.Line-v.behind, l.Line+v.reach))
		l.Owed = v.owed
		full = max(full, v.present) + v.takes
		l.Pledged -= n * r.Permit * r.Parts / r.Flow
	case behind:
		l.Owed = max(v.owed-v.cost*weight, 0)
	case newcomer:
		had, l.Owed = l.Line, v.owed
	case ahead:
		if !v.counted && v.others > 0 {
			had -= v.reach
		}
		l.Line, l.Most, l.Owed = max(had, l.Line), max(v.cost, l.Most), v.kept
		if age := v.present - l.Began; age >= r.Epoch || age < 0 {
			l.Left, l.Counts, l.Before = l.Counts-counted, counted, l.Began
			if age < 0 || age >= 2*r.Epoch {
				l.Left, l.Before = 0, 0
			}
			l.Promised, l.Here = l.Here, given
			if l.Before == 0 {
				l.Promised = given
			}
			l.Began, l.Shift, l.Most = v.present, l.Line, max(l.Most/2, v.cost)
			had, l.Line = had-l.Shift, 0
		}
	}
	l.Pledged = min(l.Pledged, l.Promised*r.Tau)
	*t = Tenant{Exists: true, Epoch: l.Began, Had: had, Weight: counted, Promise: given, Full: full}
}

// promise counts what a tenant is promised, and returns that and when all of it is there. If all together would be
// promised more than the rule, it gets no promise, until it is counted in another epoch. A promise begins with nothing.
func (r *Rule) promise(l *Limit, t *Tenant, v *view, promise int64) (given, full int64) {
	counted, here := int64(0), v.counted && t.Epoch == l.Began
	if v.counted {
		counted = t.Promise
	}
	given, full = promise, t.Full
	if l.Promised-counted+promise > r.Parts && !r.Overbooked {
		given = 0
	}
	if given != counted || !v.counted {
		full = v.present + r.Tau
		if r.FullAtOnce {
			full = v.present
			l.Pledged += given * r.Tau
		}
	}
	l.Promised += given - counted
	if here {
		l.Here -= counted
	}
	l.Here += given
	if given == 0 {
		full = 0
	}
	return given, full
}

// Charge takes n permits, whether they fit or not. It counts against the share, and moves no line.
func (r *Rule) Charge(l *Limit, t *Tenant, now, n, weight, promise int64) {
	v := r.look(l, t, now, n, weight)
	line, most, owed := l.Line, l.Most, v.owed
	charge := v
	charge.behind = max(v.behind, v.cost) // as a call that fits
	r.take(l, t, &charge, behind, n, weight, promise)
	t.Had = l.Line - v.behind + v.cost
	l.Line, l.Most, l.Owed = line, most, owed
}

// GiveBack gives n permits back, to the limit and to the tenant's share, if that is counted.
func (r *Rule) GiveBack(l *Limit, t *Tenant, now, n, weight int64) {
	v := r.look(l, t, now, n, weight)
	if !l.Exists || v.missing <= 0 {
		return
	}
	l.Missing, l.Pledged, l.At = max(v.missing-n*r.Permit, 0), v.pledged, now
	if !v.counted {
		return
	}
	if t.Epoch != l.Began {
		t.Had -= l.Shift
		t.Epoch = l.Began
		l.Counts += t.Weight
		l.Left = max(l.Left-t.Weight, 0)
		l.Here += t.Promise
	}
	t.Had -= n * r.Grain / weight
	l.Owed += n * r.Grain
}

func floor(a, b int64) int64 { return -ceil(-a, b) }

func ceil(a, b int64) int64 {
	if a <= 0 {
		return -(-a / b)
	}
	return (a + b - 1) / b
}

// Seen is what a call finds, as the script's reply says it.
type Seen struct {
	Missing            int64 // units
	Counted            bool  // the tenant is
	Others             int64 // weight of the others that are counted
	Behind, Reach      int64 // grains per weight: how far the tenant is behind the line, and can be
	Kept, Owed         int64 // grains
	Pledged, Own, Tick int64 // of promises: parts times ticks of all; ticks of the tenant's own, and what a call takes of it
}

// See is what a call of a tenant finds.
func (r *Rule) See(l *Limit, t *Tenant, now, n, weight int64) Seen {
	v := r.look(l, t, now, n, weight)
	return Seen{v.missing, v.counted, v.others, v.behind, v.reach, v.kept, v.owed, v.pledged, v.own, v.takes}
}
