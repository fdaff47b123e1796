package ratelimit_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/testing/leases"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/model"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
)

// A replay runs histories of the search on the scripts. Each history has a key of its own.
type replay struct {
	client *redis.Client
	set    func(time.Time)
	fake   bool // miniredis keeps what is left of a TTL when its clock steps back
	at     int64
	keys   map[int]*model.InFlight
	count  int
}

// event runs one event of history h, and compares what is replied and what is stored with
// the model.
func (r *replay) event(t *testing.T, h int, e leases.Event) {
	if e.Call.Server != r.at {
		r.set(time.UnixMicro(e.Call.Server))
		if r.fake && e.Call.Server < r.at {
			for _, key := range r.keys {
				key.Expires -= r.at - e.Call.Server
			}
		}
		r.at = e.Call.Server
	}
	if r.keys[h] == nil {
		r.keys[h] = &model.InFlight{}
	}
	key := r.keys[h]
	r.count++
	opts := []ratelimit.Option{ratelimit.WithPrefix("replay")}
	if e.Call.ByCaller {
		opts = append(opts, ratelimit.WithMaxSkew(time.Duration(e.Call.Spare)*time.Microsecond),
			ratelimit.WithClock(func() time.Time { return time.UnixMicro(e.Call.Now) }))
	}
	f, err := ratelimit.NewInFlight(r.client, e.Call.Limit, time.Duration(e.Call.Lease)*time.Microsecond, opts...)
	require.NoError(t, err)
	name := fmt.Sprint("history", h)
	hold := ratelimit.HoldOf(f, name, e.ID, e.Permits)
	switch e.Kind {
	case "acquire":
		want := key.Acquire(e.Call, e.ID, e.Permits)
		words, err := hold.Take(ctx)
		require.NoError(t, err)
		require.Equal(t, heldOf(want), words)
	case "extend":
		found, err := hold.Find(ctx)
		require.NoError(t, err)
		require.Equal(t, key.Extend(e.Call, e.ID, e.Permits), found)
	case "release":
		key.Release(e.Call.Server, e.ID)
		require.NoError(t, hold.Release(ctx))
	}
	// A look agrees with the model too, and changes nothing.
	words, err := f.Look(ctx, name)
	require.NoError(t, err)
	require.Equal(t, heldOf(key.Peek(e.Call)), words)

	var want []string
	for _, l := range key.Leases {
		for i := range l.Permits {
			rule := fmt.Sprint("/", l.Length)
			if l.ByCaller {
				rule += fmt.Sprint("@", e.Call.Spare/1000)
			}
			want = append(want, fmt.Sprintf("%d %d/%s%s", l.Ends, i+1, l.ID, rule))
		}
	}
	slices.Sort(want) // the ends have equally many digits
	var got []string
	stored := "replay:default:inflight{" + name + "}"
	for _, z := range r.client.ZRangeWithScores(ctx, stored, 0, -1).Val() {
		got = append(got, fmt.Sprintf("%.0f %s", z.Score, z.Member))
	}
	require.Equal(t, want, got)
	if len(want) > 0 {
		require.Equal(t, time.Duration(key.Expires-r.at)*time.Microsecond, r.client.PTTL(ctx, stored).Val())
	}
}

func heldOf(h model.Held) []int64 {
	words := []int64{0, int64(h.Used), h.Wait, h.Reset}
	if h.Allowed {
		words[0] = 1
	}
	return words
}

// run replays histories. Those whose clock never steps back share its ticks, because to set
// the clock of a real server takes a moment.
func (r *replay) run(t *testing.T, histories []*leases.History) {
	type entry struct {
		history int
		event   leases.Event
	}
	var together []entry
	for i, h := range histories {
		stepped := len(h.Scope.Steps) > 0
		for _, e := range h.Events {
			if stepped {
				r.checked(t, i, h, e)
			} else {
				together = append(together, entry{i, e})
			}
		}
		if stepped {
			delete(r.keys, i) // what it has does not matter any more
		}
	}
	slices.SortStableFunc(together, func(a, b entry) int { return int(a.event.Call.Server - b.event.Call.Server) })
	for _, e := range together {
		r.checked(t, e.history, histories[e.history], e.event)
	}
}

func (r *replay) checked(t *testing.T, i int, h *leases.History, e leases.Event) {
	t.Helper()
	ok := false
	defer func() {
		if !ok {
			t.Logf("history %d of scope %+v, at %s of %s:\n%s", i, h.Scope, e.Kind, e.ID, strings.Join(h.Moves, "\n"))
		}
	}()
	r.event(t, i, e)
	ok = true
}

// histories are random ones of every scope, and those of the mistakes.
func histories(t *testing.T, each int) (all []*leases.History) {
	rng := model.Seeded(limitertest.Seed(t))
	scopes := leases.Scopes()
	for _, name := range slices.Sorted(maps.Keys(scopes)) {
		for range each {
			all = append(all, leases.Random(scopes[name], rng))
		}
	}
	return append(all, mistaken()...)
}

// mistaken are the shortest histories in which each mistake is one.
var mistaken = sync.OnceValue(func() (all []*leases.History) {
	mistakes := leases.Mistakes()
	for _, mistake := range slices.Sorted(maps.Keys(mistakes)) {
		_, h := leases.Search(mistakes[mistake])
		all = append(all, h)
	}
	return all
})

func TestInFlightScriptsDoWhatTheSearchedModelDoes(t *testing.T) {
	raceflag.SkipSequential(t)
	t.Run("miniredis", func(t *testing.T) {
		server := miniredis.RunT(t)
		server.ClockTTL(true)
		client := redis.NewClient(&redis.Options{Addr: server.Addr()})
		t.Cleanup(func() { _ = client.Close() })
		r := &replay{client: client, set: server.SetTime, fake: true, keys: map[int]*model.InFlight{}}
		r.run(t, histories(t, limitertest.Rounds(500, 30)))
		t.Logf("%d events", r.count)
	})
	t.Run("Redis", func(t *testing.T) {
		server, client := limitertest.HeldServer(t)
		r := &replay{client: client, set: server.HoldClock, keys: map[int]*model.InFlight{}}
		r.run(t, histories(t, limitertest.Rounds(2000, 80)))
		t.Logf("%d events", r.count)
	})
}
