package ratelimit

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/scripts"
)

// TestScriptsOfAGroupAreFound: those of limiters as they decide together, in any order.
func TestScriptsOfAGroupAreFound(t *testing.T) {
	client := onMini(t).client
	bucket := &Must(NewTokenBucket(client, PerSecond(1), 1)).core
	fixed := &Must(NewFixedWindow(client, 1, time.Second)).core
	log := &Must(NewSlidingLog(client, []Rule{{Limit: 1, Window: time.Second}, {Limit: 2, Window: time.Hour}})).core
	held := &Must(NewInFlight(client, 1, time.Second)).core
	dated := &Must(NewFixedWindow(client, 1, time.Second, WithAlignment(0))).core
	calendar := &Must(NewCalendarWindow(client, 1, Daily(time.UTC))).core
	list, hash := &Must(NewSlidingWindow(client, 1, time.Second)).core, &Must(NewSlidingWindow(client, 1, time.Second, WithStorage(StorageHash))).core
	zset := &Must(NewSlidingWindow(client, 1, time.Second, WithStorage(StorageZSet))).core
	stepped := &Must(NewTokenBucket(client, PerSecond(1), 1, WithRefillEvery(time.Second))).core
	for _, test := range []struct {
		cores    []*core
		tickets  []bool
		limiters []string
	}{
		{[]*core{bucket, fixed}, []bool{false, false}, []string{"fixedwindow", "bucket"}},
		{[]*core{log, bucket}, []bool{false, true}, []string{"slidinglog,2", "bucket,estimate"}},
		{[]*core{held, dated, calendar, hash}, []bool{false, false, false, false}, []string{"inflight", "datedwindow", "calendarwindow", "slidingwindow_hash"}},
		{[]*core{list, zset, stepped}, []bool{false, false, false}, []string{"slidingwindow_list", "slidingwindow_zset", "steppedbucket"}},
	} {
		g, err := newGroup(test.cores, test.tickets)
		require.NoError(t, err)
		found, err := scripts.Group(test.limiters)
		require.NoError(t, err)
		var digests []string
		for _, s := range found {
			digests = append(digests, s.Digest())
		}
		want := []string{g.exec.One.Digest(), g.scripts.Once.One.Digest(), g.exec.Peek.Digest(), g.exec.Many.Digest(),
			g.scripts.Once.Many.Digest(), g.scripts.Once.ManyOfSeveral.Digest(), g.scripts.Finish.Digest(), g.scripts.FinishOfSeveral.Digest()}
		for _, l := range g.exec.Several {
			want = append(want, l.Common.Digest())
		}
		want = append(want, g.scripts.ManyOfSeveral.Digest())
		for _, l := range g.exec.Several {
			want = append(want, l.CommonOfSeveral.Digest())
		}
		require.Equal(t, want, digests, "%v", test.limiters)
	}
}
