package fairshares

// A Rule is one limit and how it is shared. Numbers are whole: a permit is Permit units of the bucket, of which a tick
// restores Flow, and Grain grains of a share.
type Rule struct {
	Burst, Permit, Flow int64
	Kept                int64 // permits of the burst, for tenants that have had less than others
	Spare               int64 // permits of the burst, for tenants that come new
	Grain               int64
	Epoch               int64 // ticks

	// What a search must find.
	NoKept      bool // who has had most leaves nothing to the others
	NoMost      bool // a tenant can be behind by its share of what is kept only, however small
	NoSpare     bool // nor to those who come new
	Unbounded   bool // what a tenant has not had never lapses
	LoneIsAlone bool // the only one counted decides as if nobody could come
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
}

// A Tenant is the state of one of those who share a limit.
type Tenant struct {
	Exists bool
	Epoch  int64 // in which it is counted, as the instant at which that began
	Had    int64 // grains per weight, on the scale of the line
	Weight int64
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
}

func (r *Rule) look(l *Limit, t *Tenant, now, n, weight int64) view {
	v := view{present: now, cost: ceil(n*r.Grain, weight)}
	if l.Exists { // after a step back of the clock its time counts from now
		v.missing = max(l.Missing-max(now-l.At, 0)*r.Flow, 0)
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
	behind   kind = iota // a call from what is kept for the tenant
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

// needs is the level, in grains, with which a call for n permits is allowed.
func (r *Rule) needs(v *view, n int64) int64 {
	grains := n * r.Grain
	switch kind := r.kind(v); {
	case kind == behind:
		return grains
	case kind == newcomer:
		return min(grains+v.owed, r.Burst*r.Grain)
	case r.LoneIsAlone && v.others == 0 || r.NoSpare:
		return min(grains+v.kept, r.Burst*r.Grain)
	}
	return min(grains+v.kept+r.Spare*r.Grain, r.Burst*r.Grain)
}

// Call decides a call of a tenant, and changes the states if it is allowed.
func (r *Rule) Call(l *Limit, t *Tenant, now, n, weight int64) Answer {
	v := r.look(l, t, now, n, weight)
	needs := r.needs(&v, n)
	if v.level < needs {
		l.At = min(l.At, now)
		missing := r.Burst*r.Permit - ceil(needs*r.Permit, r.Grain) // that many may be
		return Answer{ByShare: v.level >= n*r.Grain, Retry: ceil(v.missing-missing, r.Flow)}
	}
	r.take(l, t, &v, n, weight)
	return Answer{Allowed: true}
}

// take changes the states. An epoch ends only with a call that moves the line: that leaves as much as is kept, and so as
// much as those can take for whom more is kept when others count no longer.
func (r *Rule) take(l *Limit, t *Tenant, v *view, n, weight int64) {
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
	l.Exists, l.At, l.Missing = true, v.present, v.missing+n*r.Permit
	had := l.Line - v.behind + v.cost
	switch r.kind(v) {
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
			l.Began, l.Shift, l.Most = v.present, l.Line, max(l.Most/2, v.cost)
			had, l.Line = had-l.Shift, 0
		}
	}
	*t = Tenant{Exists: true, Epoch: l.Began, Had: had, Weight: counted}
}

// Charge takes n permits, whether they fit or not. It counts against the share, and moves no line.
func (r *Rule) Charge(l *Limit, t *Tenant, now, n, weight int64) {
	v := r.look(l, t, now, n, weight)
	line, most, owed := l.Line, l.Most, v.owed
	charge := v
	charge.behind = max(v.behind, v.cost) // as a call that fits
	r.take(l, t, &charge, n, weight)
	t.Had = l.Line - v.behind + v.cost
	l.Line, l.Most, l.Owed = line, most, owed
}

// GiveBack gives n permits back, to the limit and to the tenant's share, if that is counted.
func (r *Rule) GiveBack(l *Limit, t *Tenant, now, n, weight int64) {
	v := r.look(l, t, now, n, weight)
	if !l.Exists || v.missing <= 0 {
		return
	}
	l.Missing, l.At = max(v.missing-n*r.Permit, 0), now
	if !v.counted {
		return
	}
	if t.Epoch != l.Began {
		t.Had -= l.Shift
		t.Epoch = l.Began
		l.Counts += t.Weight
		l.Left = max(l.Left-t.Weight, 0)
	}
	t.Had -= n * r.Grain / weight
	l.Owed += n * r.Grain
}

func ceil(a, b int64) int64 {
	if a <= 0 {
		return -(-a / b)
	}
	return (a + b - 1) / b
}
