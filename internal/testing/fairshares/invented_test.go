package fairshares

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// TestInventedTenants has the bounds that docs/fair.md states: somebody invents tenants beside ten honest ones, of a limit
// of 1,000 a second and as many at once.
func TestInventedTenants(t *testing.T) {
	raceflag.SkipSequential(t)
	const honest, burst = 10, 1000
	rule := Rule{Burst: burst, Permit: 1000, Flow: 1, Kept: 375, Spare: 125, Grain: 1_000_000, Epoch: 1_000_000}
	begin := func(invented int) (*Limit, []Tenant, int64) { // the honest ones count
		l, tenants, now := &Limit{}, make([]Tenant, honest+invented), int64(1_000_000)
		for i := range honest {
			require.True(t, rule.Call(l, &tenants[i], now, 1, 1, 0).Allowed)
		}
		return l, tenants, now
	}
	upTo := func(most int, l *Limit, tenant *Tenant, now int64) (taken int) {
		for taken < most && rule.Call(l, tenant, now, 1, 1, 0).Allowed {
			taken++
		}
		return taken
	}

	t.Run("at once", func(t *testing.T) {
		for _, of := range []struct{ invented, got, each int }{
			{0, 0, 37},       // 375 among ten
			{40, 40, 7},      // 375 among 50
			{1000, 662, 2},   // what is owed to nine of ten, 338 of 375, stays; two calls are more than 375 among 672
			{10_000, 662, 2}, // no more, however many there are
		} {
			l, tenants, now := begin(of.invented)
			upTo(burst, l, &tenants[0], now) // the others are behind
			now += 800_000                   // the bucket is full
			got := 0
			for i := range of.invented {
				got += upTo(1, l, &tenants[honest+i], now)
			}
			require.Equal(t, of.got, got, "of %d that are invented", of.invented)
			for i := 1; i < honest; i++ {
				require.Equal(t, of.each, upTo(of.each, l, &tenants[i], now), "tenant %d beside %d", i, of.invented)
			}
		}
	})

	t.Run("always", func(t *testing.T) {
		const invented = 1000
		l, tenants, now := begin(invented)
		taken, all, apart := make([]int, len(tenants)), 0, 0
		for range 5_000 { // milliseconds: a permit comes, and all ask, the honest ones last
			for i := len(tenants) - 1; i >= 0; i-- {
				n := upTo(1, l, &tenants[i], now)
				taken[i] += n
				all += n
			}
			least, most := taken[0], 0
			for i, n := range taken {
				if i < honest {
					least = min(least, n)
				} else {
					most = max(most, n)
				}
			}
			apart = max(apart, most-least)
			now += 1000
		}
		require.Equal(t, burst-honest+4999, all, "all that there was")
		require.Equal(t, 2, apart, "an invented one is at most so many calls ahead of an honest one")
		require.GreaterOrEqual(t, taken[0], all/len(tenants)-1)
	})
}
