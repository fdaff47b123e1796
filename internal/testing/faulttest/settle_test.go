package faulttest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// TestASettlementWhoseReplyIsLostIsExecutedOnce: go-redis, with its retries, sends none of
// the calls that settle again, and what is not known stays charged.
func TestASettlementWhoseReplyIsLostIsExecutedOnce(t *testing.T) {
	t.Parallel()
	g := startGrid(t)
	g.each(t, 5*time.Second, func(t *testing.T, r *rig) {
		for _, a := range ample {
			built, err := a.build(r.client, r.opts...)
			require.NoError(t, err)
			truth, err := a.build(r.admin)
			require.NoError(t, err)
			l := built.(interface {
				ratelimit.Settler
				TryAcquireUpTo(ctx context.Context, key string, n int) (taken int, r ratelimit.Result, err error)
			})
			settle := func(key string, actual int, lose func()) error {
				ticket, _, err := l.Estimate(ctx, key, 100)
				require.NoError(t, err)
				lose()
				return ticket.Settle(ctx, actual)
			}
			for i, test := range []struct {
				call func(key string, lose func()) error
				used int
			}{
				{func(key string, lose func()) error { lose(); _, _, err := l.Estimate(ctx, key, 100); return err }, 100},
				{func(key string, lose func()) error { lose(); _, err := l.Charge(ctx, key, 30); return err }, 30},
				{func(key string, lose func()) error { lose(); _, _, err := l.TryAcquireUpTo(ctx, key, 7); return err }, 7},
				{func(key string, lose func()) error { return settle(key, 40, lose) }, 40},
				{func(key string, lose func()) error { return settle(key, 140, lose) }, 140},
			} {
				key := fmt.Sprintf("{%s, %s, %d}", t.Name(), a.name, i)
				require.NoError(t, test.call(key+" loads the script", func() {})) // of the key's slot
				faults := []*redistest.Fault{}
				err := test.call(key, func() {
					r.all(func(p *redistest.Proxy) { faults = append(faults, p.CutReplyAfter(0, redistest.OnScript())) })
				})
				r.all((*redistest.Proxy).Disarm)
				hits := 0
				for _, f := range faults {
					hits += f.Hits()
				}
				require.Equal(t, 1, hits, "call %d of a %s was sent once", i, a.name)
				require.ErrorContains(t, err, a.name)
				require.Equal(t, test.used, used(t, truth, key), "call %d of a %s was executed once", i, a.name)
				_, _ = built.Peek(ctx, t.Name()) // it may notice the cut connection
			}
		}
	})
}
