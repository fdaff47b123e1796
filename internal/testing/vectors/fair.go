package vectors

import (
	"fmt"
	"time"

	"github.com/tryacquire/ratelimit/internal/testing/fairshares"
)

// A shared is a token bucket that tenants share: the rule of package fairshares.
type shared struct {
	rule    fairshares.Rule
	limit   fairshares.Limit
	of      kept
	tenants map[string]*tenant
}

type tenant struct {
	fairshares.Tenant
	key kept
}

const fairHead = "ratelimit:default:fairtokenbucket:{k}"

// keys are those of the tenant that the case names, and of the limit.
func (s *shared) keys(c *Case) []*kept {
	t := s.tenants[c.ID]
	if t == nil {
		t = &tenant{}
		s.tenants[c.ID] = t
	}
	return []*kept{&t.key, &s.of}
}

// write stores both keys. While nothing but marks and the head of the limit's state changes, their TTLs stay.
func (s *shared) write(now int64, t *tenant, counts, again bool) {
	l := &s.limit
	before := int64(0) // how long the epoch before this one was
	if l.Before != 0 {
		before = l.Began - l.Before
	}
	state := fmt.Sprintf("%16d/%16d,%16d,%16d;%d,%d,%d,%d,%d,%d/%d/%d", l.At, l.Missing, l.Line, l.Owed,
		l.Began, l.Counts+l.Left, l.Most, l.Counts, before, l.Shift, s.rule.Permit, s.rule.Flow)
	ttl := 3 * s.rule.Epoch / 1000
	ttl += 3 - ttl%2
	if debt := l.Missing - s.rule.Burst*s.rule.Permit; debt > 0 {
		debt = (debt + 1000*s.rule.Flow - 1) / (1000 * s.rule.Flow)
		ttl += debt + debt%2
	}
	keep := func(k *kept, text string) {
		if k.state == nil || again {
			k.write(now, text, ttl)
		}
		k.state = text
	}
	keep(&s.of, state)
	if counts {
		keep(&t.key, fmt.Sprintf("%17d,%d,%d", t.Had, t.Weight, t.Epoch))
	}
}

func (s *shared) operate(now int64, c *Case) {
	t := s.tenants[c.ID]
	c.Key, c.ID = fairHead+":"+c.ID, ""
	const weight = 1
	n, kind, _, _ := parse(c.Operation)
	began, current := s.limit.Began, t.Exists && t.Epoch == s.limit.Began
	most := s.limit.Most
	seen := s.rule.See(&s.limit, &t.Tenant, now, int64(n), weight)
	if kind == 'g' {
		s.rule.GiveBack(&s.limit, &t.Tenant, now, int64(n), weight)
		c.Reply = []int64{min(int64(n), (seen.Missing+s.rule.Permit-1)/s.rule.Permit)}
		s.write(now, t, seen.Counted, true)
		return
	}
	allowed := true
	if kind == 'c' {
		s.rule.Charge(&s.limit, &t.Tenant, now, int64(n), weight, 0)
	} else {
		allowed = s.rule.Call(&s.limit, &t.Tenant, now, int64(n), weight, 0).Allowed
	}
	words := []int64{0, seen.Missing, seen.Behind, seen.Kept, 0, 0, seen.Reach, 0, 0, 0, 0, 0}
	if !seen.Counted && seen.Others > 0 {
		words[7] = 1 + seen.Owed
	}
	if allowed {
		words[0], words[11] = 1, 1
		if others := s.limit.Counts + s.limit.Left - weight; began != 0 && s.limit.Began != began { // a new epoch: more is kept
			words[4] = s.rule.Kept*s.rule.Grain/(others+weight)*others - seen.Kept
		}
		cost := int64(n) * s.rule.Grain
		s.write(now, t, true, !current || s.limit.Began != began || cost > most || now%16 == 0 || s.limit.Missing > s.rule.Burst*s.rule.Permit)
	}
	c.Reply = words
}

// fairBuckets are a token bucket that tenants share.
func fairBuckets() []Group {
	const burst, permit, flow, epoch = 8, 1_000_000, 1, 8_000_000
	g := Group{
		Algorithm: "fairtokenbucket", About: "the keys are a tenant's, which a case names, and the limit's",
		Script: "fairbucket", Beside: fairHead,
		Rule: map[string]int64{"count": 1, "period": 1_000_000, "burst": burst, "weight": 1},
		Args: append(texts(burst*permit, permit, flow), "/1000000/1", "1", "24003", "0"),
	}
	s := &shared{rule: fairshares.Rule{Burst: burst, Permit: permit, Flow: flow, Kept: burst / 8 * 3, Spare: burst / 8, Grain: 1_000_000, Epoch: epoch, Parts: 10_000},
		tenants: map[string]*tenant{}}
	g.Cases = narrate(s, []step{
		{0, "3x1 a", "The first call. It moves the line to the mark of its tenant: 3 permits, in millionths. The state of the limit says when the epoch began, the weights that are counted, and the largest call"},
		{1 * time.Microsecond, "2x1 b", "A tenant that comes new begins at the line, and may take what is kept for those who come new"},
		{1 * time.Microsecond, "2x1 a", "Denied: two permits would move the line, and so have to leave what is kept for the other one, 1.5 permits, and for new ones, one permit"},
		{3 * time.Second, "1x1 a", "Three seconds later there is room for one. The line moves. Of both keys only marks, the line, what is owed and the limit's head change, so their TTLs stay"},
		{999_998 * time.Microsecond, "1x1 b", "This tenant is behind the line by a permit, and what it takes is owed no more. The instant is divisible by 16, so the TTLs are set"},
		{0, "2c1 b", "A charge counts against the share, moves no line, and is taken in any case"},
		{time.Second, "1g/0 b", "A permit comes back, to the limit and to the tenant's mark. Then both keys are written again, with their TTLs"},
		{9 * time.Second, "1x1 a", "The epoch is over. A call that moves the line begins another: marks count from the line, and the tenants of the last epoch count until the end of this one"},
	})
	return []Group{g}
}
