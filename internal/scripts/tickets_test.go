package scripts

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// TestTicketsOfManyKeys: in one execution each key has the tickets of its own. Callers would not notice if it failed, because each
// key is then asked on its own.
func TestTicketsOfManyKeys(t *testing.T) {
	const now, lease = 1_800_000_000_000_000, 5_000_000
	server := miniredis.RunT(t)
	server.SetTime(time.UnixMicro(now))
	c := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { c.Close() })
	run := func(source string, requests ...any) (reply []int64) {
		keys := []string{"a", "b", "c", "a:tickets", "b:tickets", "c:tickets"}
		args := append([]any{"", 10_000_000, 1_000_000, 1, "/1000000/1"}, requests...) // 10 permits, and one a second
		reply, err := c.Eval(context.Background(), source, keys, args...).Int64Slice()
		require.NoError(t, err)
		return reply
	}
	tickets := func() (all []string) {
		for _, key := range []string{"a:tickets", "b:tickets", "c:tickets"} {
			members, err := server.SortedSet(key)
			if err != nil {
				members = nil
			}
			all = append(all, fmt.Sprint(members))
		}
		return all
	}
	ticket := func(n int, id string) string { return fmt.Sprintf("%d/%d/0/%d/%s", n, int64(now), lease, id) }
	scripts := WithTickets("bucket").Get(false)

	require.Equal(t, []int64{
		1, 0, 0, 0, 0, now, 0, // a: an estimate
		1, 0, 0, 0, 0, now, 0, 1, 4_000_000, 0, 0, 0, now, 0, // b: two
		1, 0, 0, 0, 0, // c: a take
	}, run(scripts.Operations.Source(), "3a2/5000000/A", "4a2/5000000/B,5a2/5000000/C", "6x1"))
	const ends = now + lease
	require.Equal(t, []string{
		fmt.Sprint(map[string]float64{ticket(3, "A"): ends}),
		fmt.Sprint(map[string]float64{ticket(4, "B"): ends, ticket(5, "C"): ends}),
		"map[]",
	}, tickets())

	// b: less was used than estimated, more, and nothing of one that is not there; c: something of such a one.
	require.Equal(t, []int64{1, 2, 1, 1, 2, 1, 8_000_000, 0, 0, 0, 3, 0, 1, 6_000_000, 0, 0, 0}, run(scripts.Operations.Source(),
		"1u2/"+ticket(3, "A"), "3u2/"+ticket(4, "B")+",6u2/"+ticket(5, "C")+",0u2/"+ticket(5, "C"), "1u2/"+ticket(3, "A")))
	require.Equal(t, []string{"map[]", "map[]", "map[]"}, tickets())

	require.Equal(t, []int64{1, 1_000_000, 0, 0, 0, 0, 9_000_000, 0, 0, 0, 1, 7_000_000, 0, 0, 0}, run(scripts.Many.Source(), "1", "2x1", "1"))
}
