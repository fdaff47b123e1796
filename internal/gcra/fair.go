package gcra

import (
	"math/big"
	"math/bits"
	"sort"
	"time"

	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/exact"
)

// grains is how many a permit has: shares are counted in these, so that a weight divides them.
const grains = 1_000_000

// MostShared is the largest burst, and the largest charge, with which all sums of grains are exact.
const MostShared = 100_000_000

// evenPermit bounds the units of a permit with which the grains of a part of one are exact.
const evenPermit = exact.Bound / grains

// Parts is all of a rule, of which tenants are promised some.
const Parts = 10_000

// A Fair is what fairbucket.lua is given, and the meaning of its replies: one bucket that tenants share.
type Fair struct {
	*Bucket
	Weight  int64 // of the tenant
	Promise int64 // parts of the rule that are promised to the tenant
}

// Spare is how many permits of the burst are kept for tenants that come new.
func (b Fair) Spare() int64 { return exact.CeilDiv(b.Size, 8) }

// Most is the most permits that one tenant can get at once.
func (b Fair) Most() int64 { return b.Size - b.Spare() }

// Epoch is the microseconds for which a tenant counts at least after a call.
func (b Fair) Epoch() int64 { return max(exact.CeilDiv(b.Size*b.permit, b.flow), 1_000_000) }

// Fits reports whether the numbers of the script are exact.
func (b Fair) Fits() bool {
	return b.IsEven() && b.permit < evenPermit && b.Size <= MostShared
}

// Tau is the microseconds in which what a tenant is promised comes together, at most: those of a quarter of the burst.
func (b Fair) Tau() int64 { return b.Size * b.permit / b.flow / 4 }

// Parts are those of the rule in a rate, rounded down.
func (b Fair) Parts(count int64, period time.Duration) int64 {
	parts := new(big.Int).Mul(big.NewInt(Parts*count), big.NewInt(b.permit))
	parts.Quo(parts, new(big.Int).Mul(big.NewInt(period.Microseconds()), big.NewInt(b.flow)))
	if parts.IsInt64() {
		return parts.Int64()
	}
	return exact.Bound
}

// Promises reports whether the numbers of promises are exact.
func (b Fair) Promises() bool {
	return b.Size*b.permit < exact.Bound/Parts && b.permit*100 < exact.Bound/b.flow
}

// Ticks is the microseconds in which n permits of what the tenant is promised come back.
func (b Fair) Ticks(n int64) int64 { return exact.CeilDiv(n*b.permit*Parts, b.flow*b.Promise) }

// Args are the arguments of the script. mark is that of the clock in its states.
func (b Fair) Args(mark string) []string {
	life := 3 * b.Epoch() / 1000
	return append(Even{b.Bucket}.Args(mark), exact.Texts(b.Weight, life-life%2+3, b.Promise)...)
}

// The words of a reply of fairbucket.lua, after decision.WordAllowed.
const (
	wordShareMissing = 1 // units missing before the run
	wordBehind       = 2 // how far the tenant was behind the line, grains per weight
	wordKept         = 3 // grains that are kept for the others
	wordLater        = 4 // how much more is kept after a call that moved the line
	wordShareLate    = 5 // microseconds of the clock's lag
	wordReach        = 6 // how far a tenant can be behind the line
	wordFresh        = 7 // for a tenant that comes new, 1 and what it leaves of the grains that are kept; else 0

	wordPledged  = 8  // what may be taken of all promises, parts times microseconds
	wordPromised = 9  // parts of the rule that are promised, after the run
	wordLasts    = 10 // microseconds of what the tenant may take of its promise, 1 more unless below 0; 0: it has none
	wordOthers   = 11 // requests of the run that were allowed without it
)

// A share is what decides a request of a tenant.
type share struct {
	missing                    int64 // units
	behind, kept, fresh, reach int64
	pledged, promised          int64
	own                        int64 // microseconds of the tenant's promise
	holds                      bool  // it has one
}

// Explain is that of a decision.Explainer.
func (b Fair) Explain(words []int64, n, taken int64, allowed bool) decision.Result {
	late := words[wordShareLate]
	s := share{
		missing: words[wordShareMissing] + taken*b.permit, behind: words[wordBehind], kept: words[wordKept], fresh: words[wordFresh] - 1,
		reach: words[wordReach], pledged: words[wordPledged], promised: words[wordPromised],
		own: words[wordLasts], holds: words[wordLasts] != 0,
	}
	if s.own > 0 {
		s.own--
	}
	if calls, cost := taken/n, b.perWeight(n); calls > 0 { // what the run has changed of it so far
		yields := int64(0)
		if s.promised > 0 {
			yields = max(calls-words[wordOthers], 0)
		}
		if (calls-yields)*cost > s.behind { // it has moved the line
			s.kept += words[wordLater]
		}
		s.behind = max(s.behind-calls*cost, 0)
		s.fresh = -1
		if yields > 0 {
			s.own -= yields * b.Ticks(n)
			s.pledged -= yields * (n * b.permit * Parts / b.flow)
		}
	}
	s = b.after(s, 0)
	level := b.level(s.missing)
	r := decision.Result{Allowed: allowed, Limit: int(b.Limit), Window: b.Window}
	r.Remaining = int(max(min(b.left(s), b.Most()), 0))
	if s.missing > 0 {
		r.ResetAfter = exact.Duration(exact.CeilDiv(s.missing, b.flow) + late)
	}
	if !allowed {
		r.RetryAfter = exact.Duration(max(b.wait(s, n)+late, 1))
		r.ResetAfter = max(r.ResetAfter, r.RetryAfter)
		r.ByShare = level >= n*grains
	}
	return r
}

// after is what a share is some microseconds later, if nobody takes any.
func (b Fair) after(s share, passed int64) share {
	s.missing = max(s.missing-passed*b.flow, 0)
	s.pledged = max(min(s.pledged+passed*s.promised, s.promised*b.Tau()), 0)
	s.own = min(s.own+passed, b.Tau())
	return s
}

// wait is the microseconds until a request for n permits is allowed.
func (b Fair) wait(s share, n int64) int64 {
	full := b.Size * b.permit
	needs := min(b.needs(s, n), b.Size*grains)
	if s.promised == 0 {
		return exact.CeilDiv(max(s.missing-full+b.units(needs), 0), b.flow)
	}
	most := exact.CeilDiv(s.missing, b.flow)
	return int64(sort.Search(int(most), func(passed int) bool {
		s := b.after(s, int64(passed))
		return b.free(s) >= needs || s.missing == 0 ||
			s.holds && s.own >= b.Ticks(n) && s.missing <= full-n*b.permit
	}))
}

// perWeight is what n permits move a tenant's mark by.
func (b Fair) perWeight(n int64) int64 { return exact.CeilDiv(n*grains, b.Weight) }

// level is the grains in the bucket, rounded down.
func (b Fair) level(missing int64) int64 {
	room := b.Size*b.permit - missing
	whole, rest := room/b.permit, room%b.permit
	if rest < 0 {
		whole, rest = whole-1, rest+b.permit
	}
	return whole*grains + rest*grains/b.permit
}

// units is so many grains, rounded up.
func (b Fair) units(count int64) int64 {
	high, low := bits.Mul64(uint64(count), uint64(b.permit))
	units, rest := bits.Div64(high, low, grains)
	if rest > 0 {
		units++
	}
	return int64(units)
}

// free is the level beyond what is promised. It is rounded once: it never falls while nobody takes.
func (b Fair) free(s share) int64 {
	room := b.Size*b.permit - s.missing
	if s.promised == 0 || room <= 0 {
		return b.level(s.missing)
	}
	free := room*Parts - s.pledged*b.flow
	part := (free%b.permit + b.permit) % b.permit
	return (free-part)/b.permit*100 + part*100/b.permit
}

// needs is the level, beyond what is promised, with which a request for n permits is allowed.
func (b Fair) needs(s share, n int64) int64 {
	switch cost := b.perWeight(n); {
	case cost <= s.behind:
		return n * grains
	case s.fresh >= 0 && cost <= s.reach:
		return n*grains + s.fresh
	}
	return (n+b.Spare())*grains + s.kept
}

// left is the most permits for which a request would be allowed.
func (b Fair) left(s share) int64 {
	level := b.level(s.missing)
	if level >= b.Size*grains {
		return b.Size
	}
	own := int64(0)
	if s.holds && s.own > 0 {
		own = min(s.own*b.flow*b.Promise/(b.permit*Parts), level/grains)
	}
	level = b.free(s)
	most := max(own, (level-s.kept)/grains-b.Spare())
	if s.behind > 0 {
		most = max(most, min(s.behind*b.Weight, level)/grains)
	}
	if s.fresh >= 0 {
		most = max(most, min(s.reach*b.Weight, level-s.fresh)/grains)
	}
	return most
}
