package ratelimit

import (
	"context"
	"runtime/debug"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// TestAllocationsOfALoneCall, on a real server: miniredis would allocate in this process.
func TestAllocationsOfALoneCall(t *testing.T) {
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("the race detector makes sync.Pool forget")
	}
	client := redistest.Shared(t).Client(t)
	require.NoError(t, client.FlushAll(ctx).Err()) // other tests leave other states there
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, merging := range [][]TokenBucketOption{nil, {WithoutMerging()}} {
		l := Must(NewTokenBucket(client, PerMinute(1), 1_000_000, merging...))
		for _, test := range []struct {
			ctx  context.Context
			want float64
			what string
		}{
			{ctx, 5, "the context never ends"},
			{within, 7, "the context can be cancelled"},
		} {
			allocs := testing.AllocsPerRun(1000, func() {
				_, err := l.TryAcquire(test.ctx, "user:1")
				require.NoError(t, err)
			})
			require.LessOrEqual(t, allocs, test.want, "%s; unmerged: %v", test.what, merging != nil)
		}
	}
}
