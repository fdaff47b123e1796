package ratelimit_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// A party is limiters that are claimed together, each for one of a few keys of its own, and
// the models of these keys, of which one may be damaged. Of most limiters there are two plans, each
// for two of the keys, so that calls are of several groups.
type party struct {
	about   string
	plans   [][]limitertest.Pair
	models  [][]model.Model
	grain   time.Duration
	damaged *struct{ limiter, key int }
}

// damage damages a key in some way, if there is one.
func (p *party) damage(t *testing.T, rng *rand.Rand, s *limitertest.Stage) (how string) {
	t.Helper()
	limiter := rng.IntN(len(p.plans))
	key := rng.IntN(len(p.models[limiter]))
	keys := s.Admin.Keys(ctx, "*{"+keyOf(limiter, key)+"}").Val()
	if len(keys) == 0 {
		return ""
	}
	ways := damages(t, s.Admin, keys[0])
	all := slices.Sorted(maps.Keys(ways))
	if rng.IntN(2) == 0 { // something is lost
		all = slices.DeleteFunc(all, func(how string) bool { return !strings.HasPrefix(how, "without") && !strings.HasPrefix(how, "of ") })
	}
	how = all[rng.IntN(len(all))]
	ways[how]()
	p.damaged = &struct{ limiter, key int }{limiter, key}
	return fmt.Sprintf("%s is damaged: %s", keys[0], how)
}

// restore makes the damaged key an unused one.
func (p *party) restore(t *testing.T) {
	t.Helper()
	if d := p.damaged; d != nil {
		plan := p.plans[d.limiter][d.key/2]
		require.NoError(t, plan.Limiter.Reset(ctx, keyOf(d.limiter, d.key)))
		p.models[d.limiter][d.key] = plan.Model()
		p.damaged = nil
	}
}

// isDamaged reports whether a key of limiter i is.
func (p *party) isDamaged(i, key int) bool {
	return p.damaged != nil && *p.damaged == struct{ limiter, key int }{i, key}
}

// meets reports whether a call claims a damaged key.
func (p *party) meets(d demand) bool {
	return p.damaged != nil && d[p.damaged.limiter].n > 0 && p.isDamaged(p.damaged.limiter, d[p.damaged.limiter].key)
}

// drawParty draws two to four limiters, or up to eight, which may need a function of their own.
func drawParty(t *testing.T, rng *rand.Rand, c ratelimit.Client, opts ...ratelimit.Option) *party {
	t.Helper()
	p := &party{grain: time.Microsecond}
	families := limitertest.Families()
	size := 2 + rng.IntN(3)
	if rng.IntN(3) == 0 {
		size = 5 + rng.IntN(4)
	}
	for range size {
		f := families[rng.IntN(len(families))]
		pair, err := f.Draw(rng, c, opts...)
		require.NoError(t, err)
		p.about += f.Name + " " + pair.About
		plans, models := []limitertest.Pair{pair}, []model.Model{pair.Model(), pair.Model()}
		for range 5 { // not each draw has the same scripts
			other, err := f.Draw(rng, c, opts...)
			require.NoError(t, err)
			if ratelimit.ShareGroups(t, claimsOf(pair.Limiter), claimsOf(other.Limiter)) {
				p.about += " and " + other.About
				plans, models = append(plans, other), append(models, other.Model(), other.Model())
				break
			}
		}
		p.about += "; "
		p.plans, p.models = append(p.plans, plans), append(p.models, models)
		if f.Timeless && opts == nil {
			p.grain = time.Millisecond
		}
	}
	return p
}

func claimsOf(l ratelimit.Limiter) []ratelimit.Claim {
	return []ratelimit.Claim{ratelimit.ClaimOf(l, "k", 1)}
}

// A demand is what a call claims of each limiter.
type demand []struct{ key, n int } // n is 0: the limiter is left out

// keyOf is a key of limiter i: limiters of one algorithm would otherwise share states.
func keyOf(i, key int) string { return fmt.Sprintf("k%d%c", i, 'a'+key) }

func (p *party) claims(d demand) []ratelimit.Claim {
	var claims []ratelimit.Claim
	for i, c := range d {
		if c.n > 0 {
			claims = append(claims, ratelimit.ClaimOf(p.plans[i][c.key/2].Limiter, keyOf(i, c.key), c.n))
		}
	}
	return claims
}

// answer is what the models say: the permits are taken from all or from none. Of a damaged key
// they say nothing, if got is an answer all the same.
func (p *party) answer(now int64, d demand, peek bool, got ratelimit.AllResult) ratelimit.AllResult {
	var all ratelimit.AllResult
	allowed := true
	for i, c := range d {
		if c.n > 0 {
			all.Parts = append(all.Parts, ratelimit.OfBucket(isBucket(p.plans[i][0].Limiter), ratelimit.PartResult{Name: "default", Key: keyOf(i, c.key)}))
			part := &all.Parts[len(all.Parts)-1]
			if p.isDamaged(i, c.key) {
				part.Result = got.Parts[len(all.Parts)-1].Result
			} else {
				part.Result = limitertest.ResultOf(p.models[i][c.key].Take(now, c.n, true))
			}
			allowed = part.Result.Allowed && allowed
		}
	}
	parts := all.Parts
	for i, c := range d {
		if c.n == 0 {
			continue
		}
		part := &parts[0]
		parts = parts[1:]
		if look := peek || !allowed && part.Result.Allowed; !look && !p.isDamaged(i, c.key) {
			part.Result = limitertest.ResultOf(p.models[i][c.key].Take(now, c.n, false))
		}
	}
	// The whole is the first part that governs.
	all.Result = all.Parts[0].Result
	for _, part := range all.Parts {
		r := part.Result
		if r.Allowed == allowed && (all.Allowed != allowed || r.RetryAfter > all.RetryAfter || allowed && r.Remaining < all.Remaining) {
			all.Result = r
		}
	}
	for _, part := range all.Parts {
		all.ResetAfter = max(all.ResetAfter, part.Result.ResetAfter)
	}
	return all
}

// demand draws what a call claims, of the limiters of like if that is not nil.
func (p *party) demand(rng *rand.Rand, like demand) demand {
	d := make(demand, len(p.models))
	for {
		claimed := 0
		for i, m := range p.models {
			d[i].n = 0
			if like == nil && rng.IntN(5) > 0 || like != nil && like[i].n > 0 {
				d[i].key = rng.IntN(len(m))
				most := m[d[i].key].Max()
				d[i].n = min(most, []int{1, 1, 1, 2, 1 + rng.IntN(most), most}[rng.IntN(6)])
				claimed++
			}
		}
		if h := p.damaged; h != nil && rng.IntN(3) > 0 && (like == nil || like[h.limiter].n > 0) { // it is claimed
			d[h.limiter].n, d[h.limiter].key = 1, h.key
			claimed++
		}
		if claimed > 0 {
			return d
		}
	}
}

// demands draws calls that are sent together, of the same limiters or of several plans of them. In
// half of the cases all have one key of a limiter in common, and in some they are equal.
func (p *party) demands(t *testing.T, rng *rand.Rand) []demand {
	all := []demand{p.demand(rng, nil)}
	common, onePlan := rng.IntN(2*len(p.models)), rng.IntN(3) == 0
	for range rng.IntN(6) {
		d := p.demand(rng, all[0])
		one := onePlan || !ratelimit.ShareGroups(t, p.claims(all[0]), p.claims(d))
		for i, first := range all[0] {
			switch other := d[i].key/2 != first.key/2; {
			case other && (one || i == common):
				d[i] = first
			case i == common:
				d[i].key = first.key
			}
		}
		if rng.IntN(3) == 0 {
			d = all[len(all)-1]
		}
		all = append(all, d)
	}
	return all
}

func (p *party) pause(rng *rand.Rand, last ratelimit.AllResult) time.Duration {
	span := p.models[rng.IntN(len(p.models))][0].Span()
	switch rng.IntN(10) {
	case 0, 1, 2, 3, 4:
		return 0
	case 5, 6:
		return max(0, last.RetryAfter+time.Duration(rng.IntN(3)-1)*time.Microsecond)
	case 7:
		return max(0, span+time.Duration(rng.IntN(3)-1)*time.Microsecond)
	case 8:
		return time.Duration(rng.Int64N(int64(span) / 10)).Truncate(time.Microsecond)
	}
	return time.Duration(rng.Int64N(int64(span))).Truncate(time.Microsecond)
}

// TestSeveralLimitersAnswerAsTheirModels: random limiters of all algorithms are claimed
// together, on their own and merged, with their own costs, and answer as their models do
// that take from all or from none. Now and then a key is damaged: a request that finds it so
// takes nothing, of any limiter, and the others are decided as before.
func TestSeveralLimitersAnswerAsTheirModels(t *testing.T) {
	for server, stage := range map[string]struct {
		open        func(testing.TB) *limitertest.Stage
		usual, full int
		steps       int
	}{
		"miniredis": {limitertest.OnMiniredis, 80, 400, 60},
		"Redis":     {limitertest.OnHeldRedis, 10, 50, 40},
	} {
		t.Run(server, func(t *testing.T) {
			s := stage.open(t)
			rng := model.Seeded(limitertest.Seed(t))
			for range limitertest.Rounds(stage.full, stage.usual) {
				s.Wipe(t)
				var opts []ratelimit.Option
				if rng.IntN(3) == 0 {
					opts = append(opts, ratelimit.WithClock(func() time.Time { return s.Now }))
				}
				p := drawParty(t, rng, s.Client, opts...)
				var steps []string
				var last ratelimit.AllResult
				damages := 5 * rng.IntN(2) // of ten steps without a damaged key
				for range stage.steps {
					at := s.Now.Add(p.pause(rng, last))
					if at.After(lastDay) {
						break
					}
					if p.grain > time.Microsecond {
						at = at.Add(p.grain - 1).Truncate(p.grain)
					}
					s.Move(at)
					now := s.Now.UnixMicro()
					damaged := p.damaged != nil
					switch {
					case damaged && rng.IntN(3) == 0:
						p.restore(t)
						damaged = false
					case !damaged && rng.IntN(10) < damages:
						steps = append(steps, p.damage(t, rng, s))
						damaged = p.damaged != nil
					}
					calls := []demand{p.demand(rng, nil)}
					var got, want []ratelimit.AllResult
					failed := []bool{false}
					what := ""
					before := map[string]string{}
					if damaged {
						before = everything(t, s)
					}
					one := func(r ratelimit.AllResult, err error) {
						got = append(got, r)
						if failed[0] = err != nil && p.meets(calls[0]); failed[0] {
							require.ErrorIs(t, err, ratelimit.ErrCorruptState, p.about)
							return
						}
						require.NoError(t, err, p.about)
					}
					switch claims := p.claims(calls[0]); rng.IntN(4) {
					case 0:
						what = "peek"
						one(ratelimit.Look(ctx, claims...))
					case 1, 2:
						what = "merged"
						calls = p.demands(t, rng)
						var together [][]ratelimit.Claim
						for _, d := range calls {
							together = append(together, p.claims(d))
						}
						got, failed = ratelimit.AllMerged(t, together)
					default:
						one(ratelimit.TryAcquireAll(ctx, claims...))
					}
					steps = append(steps, fmt.Sprintf("%d %s %v: %+v, failed %v", now, what, calls, got, failed))
					about := func() string { return p.about + "\n" + strings.Join(steps[max(0, len(steps)-10):], "\n") }
					for i, d := range calls {
						if failed[i] {
							require.True(t, p.meets(d), about())
							want = append(want, ratelimit.AllResult{})
							continue
						}
						want = append(want, p.answer(now, d, what == "peek", got[i]))
					}
					require.Equal(t, want, got, about())
					if !slices.Contains(failed, false) {
						require.Equal(t, before, everything(t, s), about())
					}
					if damaged { // what a damaged key answers may be anything
						last = ratelimit.AllResult{}
						continue
					}
					last = got[len(got)-1]
				}
			}
		})
	}
}
