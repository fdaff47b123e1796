package gcra

import (
	"math/bits"

	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/exact"
)

// grains is how many a permit has: shares are counted in these, so that a weight divides them.
const grains = 1_000_000

// MostShared is the largest burst, and the largest charge, with which all sums of grains are exact.
const MostShared = 100_000_000

// evenPermit bounds the units of a permit with which the grains of a part of one are exact.
const evenPermit = exact.Bound / grains

// A Fair is what fairbucket.lua is given, and the meaning of its replies: one bucket that tenants share.
type Fair struct {
	*Bucket
	Weight int64 // of the tenant
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

// Args are the arguments of the script. mark is that of the clock in its states.
func (b Fair) Args(mark string) []string {
	life := 3 * b.Epoch() / 1000
	return append(Even{b.Bucket}.Args(mark), exact.Texts(b.Weight, life-life%2+3)...)
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
)

// Explain is that of a decision.Explainer.
func (b Fair) Explain(words []int64, n, taken int64, allowed bool) decision.Result {
	missing, late := words[wordShareMissing]+taken*b.permit, words[wordShareLate]
	behind, fresh, kept := words[wordBehind], words[wordFresh]-1, words[wordKept]
	if calls, cost := taken/n, b.perWeight(n); calls > 0 { // what the run has changed of it so far
		behind -= calls * cost
		if behind < 0 { // it has moved the line
			behind, kept = 0, kept+words[wordLater]
		}
		fresh = -1
	}
	level := b.level(missing)
	r := decision.Result{Allowed: allowed, Limit: int(b.Limit), Window: b.Window}
	r.Remaining = int(max(min(b.left(level, behind, kept, fresh, words[wordReach]), b.Most()), 0))
	if missing > 0 {
		r.ResetAfter = exact.Duration(exact.CeilDiv(missing, b.flow) + late)
	}
	if !allowed {
		full := b.Size * b.permit
		needs := min(b.needs(n, behind, kept, fresh, words[wordReach]), b.Size*grains)
		r.RetryAfter = exact.Duration(max(exact.CeilDiv(max(missing-full+b.units(needs), 0), b.flow)+late, 1))
		r.ResetAfter = max(r.ResetAfter, r.RetryAfter)
		r.ByShare = level >= n*grains
	}
	return r
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

// needs is the level with which a call for n permits is allowed.
func (b Fair) needs(n, behind, kept, fresh, reach int64) int64 {
	switch cost := b.perWeight(n); {
	case cost <= behind:
		return n * grains
	case fresh >= 0 && cost <= reach:
		return n*grains + fresh
	}
	return (n+b.Spare())*grains + kept
}

// left is the most permits for which a call would be allowed.
func (b Fair) left(level, behind, kept, fresh, reach int64) int64 {
	if level >= b.Size*grains {
		return b.Size
	}
	most := (level-kept)/grains - b.Spare()
	if behind > 0 {
		most = max(most, min(behind*b.Weight, level)/grains)
	}
	if fresh >= 0 {
		most = max(most, min(reach*b.Weight, level-fresh)/grains)
	}
	return most
}
