package vectors

import (
	"strconv"
	"strings"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/model"
)

// A remembered is a token bucket whose calls are made under one id.
type remembered struct {
	b       *bucket
	key, id kept
	words   []int64
	stands  string // for that call
	result  *Result
}

func (r *remembered) keys(*Case) []*kept { return []*kept{&r.key, &r.id} }

func (r *remembered) operate(now int64, c *Case) {
	lasts, stands, _ := strings.Cut(c.ID, "/")
	switch {
	case r.id.state == nil:
	case stands != r.stands:
		c.Error = "REUSED"
		return
	default:
		c.Reply, c.Result = append(r.words, 1), r.result
		return
	}
	n, _ := strconv.Atoi(c.Operation)
	words := r.b.words(now)
	a := r.b.m.Take(now, n, false)
	c.Result = resultOf(a)
	if !a.Allowed {
		c.Reply = append([]int64{0, 0}, append(words, 0)...)
		return
	}
	text, ttl := r.b.write(now, 0, false)
	r.key.write(now, text, ttl)
	r.words, r.stands, r.result = append([]int64{1, 1}, words...), stands, c.Result
	c.Reply = append(r.words[:len(r.words):len(r.words)], 0)
	texts := append([]string{stands}, texts(r.words...)...)
	ms, _ := strconv.ParseInt(lasts, 10, 64)
	r.id.write(now, strings.Join(texts, " "), ms)
}

// ids is a token bucket whose permits are taken once for an id.
func ids() []Group {
	const burst = 3
	rate := ratelimit.Rate{Count: 1, Period: 10 * time.Second}
	g := Group{
		Algorithm: "tokenbucket", About: "under an id, which stands in the name of the second key: TryAcquireOnce. " +
			"The argument behind those of the rule is 1, then come the permits, and for how many milliseconds the id is remembered and what it stands for",
		Script: "NewAll of bucket, one under an id",
		Key:    "ratelimit:default:tokenbucket{k}", Beside: "ratelimit:default:tokenbucket/once{k}k/job 7/1",
		Rule: map[string]int64{"count": 1, "period": 10_000_000, "burst": burst}, Args: append(texts(30_000_000, 10_000_000, 1), "/10000000/1", "1"),
		Build: func(c ratelimit.Client) (ratelimit.Limiter, error) { return ratelimit.NewTokenBucket(c, rate, burst) },
	}
	of := &remembered{b: &bucket{m: model.NewTokenBucket(1, 10*time.Second, burst), permit: 10_000_000, flow: 1}}
	const stands, other = "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"
	g.Cases = narrate(of, []step{
		{0, "2 2000/" + stands, "Allowed: the second key remembers what the call stands for, and the words of the reply"},
		{500 * time.Millisecond, "2 2000/" + stands, "The same again: the words of then, and 1 behind them. Nothing is taken, and nothing is written"},
		{time.Second, "3 2000/" + other, "The id with another call: an error, and nothing is taken"},
		{time.Second, "2 2000/" + stands, "The id is forgotten, and the call is denied: a denial is not remembered"},
	})
	return []Group{g}
}
