package model

// A Pause is a key that nobody may use before an instant. Numbers are microseconds.
type Pause struct {
	Lease        int64 // how long others wait for the call that goes first; 0: all go at once
	CallersClock bool

	until   int64
	length  int64 // of the pause that got this end
	ended   bool  // by a success, or never begun
	turns   int64 // when the next one may go, after the pause
	taken   int64 // when the last one went; 0: nobody, or it gave its turn back
	strikes []int64
	free    int64 // when the last episode is over
	quiet   int64 // after which the strikes are forgotten
}

// NewPause is a key that is not paused.
func NewPause(lease int64) *Pause { return &Pause{Lease: lease, ended: true} }

// See notes that the server's clock may have stepped back: no pause lasts longer than it would from now on.
func (p *Pause) See(now int64) {
	if p.CallersClock {
		return
	}
	if step := p.until - now - p.length; !p.ended && step > 0 {
		p.until -= step
		p.turns = p.until
		p.free -= step
	}
	if p.taken > now {
		p.taken, p.turns = now, now+p.Lease
	}
}

// Held is what holds calls back: nothing, the pause (1), or one that goes first (2); whether one may go; and else, how
// long it is until then.
func (p *Pause) Held(now int64) (holds int64, free bool, left int64) {
	switch {
	case p.ended:
		return 0, true, 0
	case now < p.until:
		return 1, false, p.until - now
	case p.Lease == 0 || now-p.turns >= p.Lease: // nobody has asked for so long
		return 0, true, 0
	case now < p.turns:
		return 2, false, p.turns - now
	}
	return 2, true, 0
}

// Take is a run of so many calls: how many are allowed, and what holds the others back.
func (p *Pause) Take(now, times int64) (allowed, holds, left int64) {
	holds, free, left := p.Held(now)
	switch {
	case holds == 0:
		return times, 0, 0
	case !free:
		return 0, holds, left
	}
	p.turns, p.taken = now+p.Lease, now
	return 1, holds, p.Lease
}

// Pause pauses for d.
func (p *Pause) Pause(now, d int64) {
	if !p.ended && now+d <= p.until {
		return
	}
	p.ended, p.until, p.length, p.turns, p.taken = false, now+d, d, now+d, 0
}

// Resume is a success, which matters to those who wait for it.
func (p *Pause) Resume(now int64) {
	if p.Lease > 0 && now >= p.until {
		p.ended, p.until = true, 0
	}
}

// GiveBack is the end of a turn, taken at that instant, that was not used.
func (p *Pause) GiveBack(now, taken int64) (given int64) {
	if p.ended || p.taken == 0 || p.taken != taken {
		return 0
	}
	p.turns = now
	p.taken = max(now-p.Lease, 1)
	return 1
}

// Strike is a denial that says to come back after wait.
func (p *Pause) Strike(now, wait, quiet int64, steps []int64) {
	if len(p.strikes) > 0 && now >= p.free+p.quiet {
		p.strikes, p.free = nil, 0
	}
	if len(p.strikes) > 0 && now < p.free {
		return
	}
	p.strikes = append(p.strikes, now)
	d := steps[min(len(p.strikes), len(steps))-1]
	p.free, p.quiet = now+max(d, wait), quiet
	p.Pause(now, d)
}
