package fairshares

import (
	"container/heap"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
)

// A caller asks for one permit at random times, so often a second on average, while it is on.
type caller struct {
	rate   float64
	weight int64
	on     time.Duration // and as long off; 0: always on
}

type arrival struct {
	at     int64
	tenant int
}

type arrivals []arrival

func (a arrivals) Len() int           { return len(a) }
func (a arrivals) Less(i, j int) bool { return a[i].at < a[j].at }
func (a arrivals) Swap(i, j int)      { a[i], a[j] = a[j], a[i] }
func (a *arrivals) Push(x any)        { *a = append(*a, x.(arrival)) }
func (a *arrivals) Pop() any {
	old := *a
	last := old[len(old)-1]
	*a = old[:len(old)-1]
	return last
}

// simulate returns how many calls of each caller were made and served.
func simulate(callers []caller, plain bool, length time.Duration, rng *rand.Rand) (asked, served []float64) {
	asked, served = make([]float64, len(callers)), make([]float64, len(callers))
	rule := Rule{Burst: 1000, Permit: 1000, Flow: 1, Kept: 375, Spare: 125, Grain: 1_000_000, Epoch: 1_000_000}
	var limit Limit
	var one Tenant
	if plain { // nobody shares with others, and nothing is kept
		rule.NoKept, rule.NoSpare = true, true
	}
	tenants := make([]Tenant, len(callers))
	next := func(i int, at int64) arrival { return arrival{at + int64(rng.ExpFloat64()*1e6/callers[i].rate), i} }
	var queue arrivals
	for i := range callers {
		heap.Push(&queue, next(i, 0))
	}
	for queue[0].at < length.Microseconds() {
		a := heap.Pop(&queue).(arrival)
		c := callers[a.tenant]
		heap.Push(&queue, next(a.tenant, a.at))
		if on := c.on.Microseconds(); on > 0 && a.at/on%2 == int64(a.tenant%2) {
			continue
		}
		tenant := &tenants[a.tenant]
		if plain {
			tenant = &one
		}
		asked[a.tenant]++
		if rule.Call(&limit, tenant, a.at, 1, c.weight, 0).Allowed {
			served[a.tenant]++
		}
	}
	return asked, served
}

// jain is Jain's index of fairness of what each has had of what it wanted or should get.
func jain(x []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, v := range x {
		sum += v
		squares += v * v
	}
	return sum * sum / (float64(len(x)) * squares)
}

// TestServedInASimulation has the figures of docs/fair.md: a limit of 1,000 a second and as many at once, for twenty
// seconds, beside a plain bucket.
func TestServedInASimulation(t *testing.T) {
	many := func(n int, c caller) (all []caller) {
		for range n {
			all = append(all, c)
		}
		return all
	}
	var weights, zipf []caller
	for i := range 10 {
		weights = append(weights, caller{rate: 1000, weight: int64(i%4 + 1)})
	}
	for i := range 50 {
		zipf = append(zipf, caller{rate: 1110 / float64(i+1), weight: 1}) // 5,000 together
	}
	for name, test := range map[string]struct {
		callers []caller
		within  int // so many of them, the first ones, ask for less than their share
		jain    float64
	}{
		"eight at 10 a second beside two at 5,000 and 500": {append(many(8, caller{rate: 10, weight: 1}), caller{rate: 5000, weight: 1}, caller{rate: 500, weight: 1}), 8, 0.98},
		"ten at 1,000 a second, of weights 1 to 4":         {weights, 0, 0.99},
		"fifty by Zipf's law":                              {zipf, 0, 0.98},
		"five at 300, at times, beside one at 3,000":       {append(many(5, caller{rate: 300, weight: 1, on: time.Second}), caller{rate: 3000, weight: 1}), 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(limitertest.Rounds(20, 3)) {
				for _, plain := range []bool{true, false} {
					asked, served := simulate(test.callers, plain, 20*time.Second, rand.New(rand.NewPCG(seed, 0)))
					total, least, per := 0.0, 1.0, []float64{}
					for i, c := range test.callers {
						total += served[i]
						if i < test.within {
							least = min(least, served[i]/asked[i])
						} else {
							per = append(per, served[i]/float64(c.weight))
						}
					}
					t.Logf("seed %d, plain %v: %.1f %% within the share, Jain of the others %.3f, %.1f %% used, %.0f", seed, plain, 100*least, jain(per), total/205, served)
					if plain {
						continue
					}
					require.GreaterOrEqual(t, least, 0.99, "a few calls come before their tenant is counted")
					require.GreaterOrEqual(t, jain(per), test.jain)
					require.Greater(t, total, 20_500*0.995, "of the rate, and of the burst but for what is kept")
					if name == "ten at 1,000 a second, of weights 1 to 4" {
						require.InEpsilon(t, slices.Max(per), slices.Min(per), 0.05)
					}
				}
			}
		})
	}
}
