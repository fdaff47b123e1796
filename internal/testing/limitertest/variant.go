package limitertest

import (
	"cmp"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/keyname"
)

// A Variant is one way to limit to 3 a second; the calendar window's day ends a second after
// Start.
type Variant struct {
	Name  string
	Build func(c ratelimit.Client, opts ...ratelimit.Option) (ratelimit.Limiter, error)
	Keys
	Key string // the key that v.Of("k") has in Redis

	// What a Result says; 3 and a second if not set. Beyond three permits, a limit has
	// headroom.
	Limit  int
	Window time.Duration

	// Resets holds the ResetAfter of three calls at Start, and Retry the RetryAfter of
	// the denial that follows. A call that is Grain earlier than Retry is still denied.
	Resets       [3]time.Duration
	Retry, Grain time.Duration

	Spare int           // permits of the limit that the caller alone does not get
	Lives time.Duration // how long the state is kept after a call, if not until ResetAfter

	// Corrupt writes a value that is no state of the limiter. It is nil if every value of
	// the type is a state.
	Corrupt func(c redis.UniversalClient, key string) error
}

// ByShare reports whether a denial of n permits to a caller with so many left is not the limit's.
func (v Variant) ByShare(n, left int) bool { return n <= left+v.Spare }

// Head is what the names of its keys in Redis begin with.
func (v Variant) Head() keyname.Head {
	name, _ := keyname.Parse(v.Key)
	return keyname.NewHead(name.Prefix, name.Name, name.Algorithm)
}

// Title is how errors name a limiter with the default name.
func (v Variant) Title() string {
	name, _ := keyname.Parse(v.Key)
	of, _ := algorithms.Of(name.Algorithm)
	return of.Title + ` "default"`
}

func corruptString(value string) func(redis.UniversalClient, string) error {
	return func(c redis.UniversalClient, key string) error { return c.Set(ctx, key, value, time.Hour).Err() }
}

// Variants are all algorithms, storages and ways to count.
func Variants() []Variant {
	const s, us = time.Second, time.Microsecond
	thirds := [3]time.Duration{333_334 * us, 666_667 * us, s}
	variants := []Variant{
		{
			Name: "FixedWindow", Key: "ratelimit:default:fixedwindow{k}",
			Build: func(c ratelimit.Client, o ...ratelimit.Option) (ratelimit.Limiter, error) {
				return ratelimit.NewFixedWindow(c, 3, s, o...)
			},
			Resets: [3]time.Duration{s, s, s}, Retry: s, Grain: time.Millisecond,
			Corrupt: corruptString("three"),
		},
		{
			Name: "FixedWindow aligned", Key: "ratelimit:default:fixedwindow{k}",
			Build: func(c ratelimit.Client, o ...ratelimit.Option) (ratelimit.Limiter, error) {
				return ratelimit.NewFixedWindow(c, 3, s, append(o, ratelimit.WithAlignment(-250*time.Millisecond))...)
			},
			Resets: [3]time.Duration{750 * time.Millisecond, 750 * time.Millisecond, 750 * time.Millisecond},
			Retry:  750 * time.Millisecond, Grain: us,
			Corrupt: corruptString("1/2/3/4"),
		},
		{
			Name: "CalendarWindow", Key: "ratelimit:default:calendarwindow{k}",
			Build: func(c ratelimit.Client, o ...ratelimit.Option) (ratelimit.Limiter, error) {
				return ratelimit.NewCalendarWindow(c, 3, ratelimit.Daily(EndOfDay), o...)
			},
			Window: 24 * time.Hour, Resets: [3]time.Duration{s, s, s}, Retry: s, Grain: us,
			Corrupt: corruptString("1/2"),
		},
		{
			Name: "SlidingWindow Hash", Key: "ratelimit:default:slidingwindow-hash{k}",
			Build: func(c ratelimit.Client, o ...ratelimit.Option) (ratelimit.Limiter, error) {
				return ratelimit.NewSlidingWindow(c, 3, s, append(o, ratelimit.WithStorage(ratelimit.StorageHash))...)
			},
			Resets: [3]time.Duration{1_024_999 * us, 1_024_999 * us, 1_024_999 * us}, Retry: 1_024_999 * us, Grain: us,
			Corrupt: func(c redis.UniversalClient, key string) error { return c.HSet(ctx, key, "instant", "1").Err() },
		},
		{
			Name: "SlidingWindow List", Key: "ratelimit:default:slidingwindow-list{k}",
			Build: func(c ratelimit.Client, o ...ratelimit.Option) (ratelimit.Limiter, error) {
				return ratelimit.NewSlidingWindow(c, 3, s, o...)
			},
			Resets: [3]time.Duration{1_024_999 * us, 1_024_999 * us, 1_024_999 * us}, Retry: 1_024_999 * us, Grain: us,
			Corrupt: func(c redis.UniversalClient, key string) error { return c.RPush(ctx, key, "7").Err() },
		},
		{
			Name: "SlidingWindow of one sub-window", Key: "ratelimit:default:slidingwindow-hash{k}",
			Build: func(c ratelimit.Client, o ...ratelimit.Option) (ratelimit.Limiter, error) {
				return ratelimit.NewSlidingWindow(c, 3, s, append(o, ratelimit.WithStorage(ratelimit.StorageHash), ratelimit.WithSubWindows(1))...)
			},
			Resets: [3]time.Duration{1_999_999 * us, 1_999_999 * us, 1_999_999 * us}, Retry: 1_999_999 * us, Grain: us,
			Corrupt: func(c redis.UniversalClient, key string) error {
				return c.HSet(ctx, key, "rule", "1000000/1000000", "first", "1", "last", "3", "instant", "1763670000999999", "total", "2", "base", "0", "oldest", "5", "2", "x").Err()
			},
		},
		{
			Name: "SlidingWindow ZSet", Key: "ratelimit:default:slidingwindow-zset{k}",
			Build: func(c ratelimit.Client, o ...ratelimit.Option) (ratelimit.Limiter, error) {
				return ratelimit.NewSlidingWindow(c, 3, s, append(o, ratelimit.WithStorage(ratelimit.StorageZSet))...)
			},
			Resets: [3]time.Duration{s, s, s}, Retry: s, Grain: us,
		},
		{
			Name: "SlidingLog", Key: "ratelimit:default:slidinglog{k}",
			Build: func(c ratelimit.Client, o ...ratelimit.Option) (ratelimit.Limiter, error) {
				return ratelimit.NewSlidingLog(c, []ratelimit.Rule{{Limit: 3, Window: s}}, o...)
			},
			Resets: [3]time.Duration{s, s, s}, Retry: s, Grain: us,
			Corrupt: func(c redis.UniversalClient, key string) error { return c.RPush(ctx, key, "0", "0", "x", "1").Err() },
		},
		{
			Name: "SlidingLog with a resolution", Key: "ratelimit:default:slidinglog{k}",
			Build: func(c ratelimit.Client, o ...ratelimit.Option) (ratelimit.Limiter, error) {
				return ratelimit.NewSlidingLog(c, []ratelimit.Rule{{Limit: 3, Window: s}}, append(o, ratelimit.WithResolution(50*time.Millisecond))...)
			},
			Resets: [3]time.Duration{1_049_999 * us, 1_049_999 * us, 1_049_999 * us}, Retry: 1_049_999 * us, Grain: us,
			Corrupt: func(c redis.UniversalClient, key string) error { return c.RPush(ctx, key, "1", "2", "3").Err() },
		},
		{
			Name: "TokenBucket", Key: "ratelimit:default:tokenbucket{k}",
			Build: func(c ratelimit.Client, o ...ratelimit.Option) (ratelimit.Limiter, error) {
				return ratelimit.NewTokenBucket(c, ratelimit.PerSecond(3), 3, o...)
			},
			Resets: thirds, Retry: 333_334 * us, Grain: us,
			Corrupt: corruptString("full"),
		},
		{
			Name: "TokenBucket in an All", Key: "ratelimit:default:tokenbucket{k}",
			Build: func(c ratelimit.Client, o ...ratelimit.Option) (ratelimit.Limiter, error) {
				l, err := ratelimit.NewTokenBucket(c, ratelimit.PerSecond(3), 3, o...)
				if err != nil {
					return nil, err
				}
				return ratelimit.NewAll(l)
			},
			Resets: thirds, Retry: 333_334 * us, Grain: us,
			Corrupt: corruptString("full"),
		},
		{
			Name: "TokenBucket stepped", Key: "ratelimit:default:tokenbucket{k}",
			Build: func(c ratelimit.Client, o ...ratelimit.Option) (ratelimit.Limiter, error) {
				return ratelimit.NewTokenBucket(c, ratelimit.PerSecond(3), 3, append(o, ratelimit.WithRefillEvery(s))...)
			},
			Resets: [3]time.Duration{s, s, s}, Retry: s, Grain: us,
			Corrupt: corruptString("0/0+1"),
		},
		{
			Name: "LeakyBucket", Key: "ratelimit:default:leakybucket{k}",
			Build: func(c ratelimit.Client, o ...ratelimit.Option) (ratelimit.Limiter, error) {
				return ratelimit.NewLeakyBucket(c, ratelimit.PerSecond(3), 3, o...)
			},
			Resets: thirds, Retry: 333_334 * us, Grain: us,
			Corrupt: corruptString("1763670000123456/1x"),
		},
		{
			Name: "TokenBucket with headroom", Key: "ratelimit:default:tokenbucket{k}",
			Build: func(c ratelimit.Client, o ...ratelimit.Option) (ratelimit.Limiter, error) {
				return ratelimit.NewTokenBucket(c, ratelimit.PerSecond(3), 5, append(o, ratelimit.WithHeadroom(2))...)
			},
			Limit: 5, Window: 1_666_667 * us,
			Resets: thirds, Retry: 333_334 * us, Grain: us,
			Corrupt: corruptString("full"),
		},
		{
			Name: "SlidingLog with headroom", Key: "ratelimit:default:slidinglog{k}",
			Build: func(c ratelimit.Client, o ...ratelimit.Option) (ratelimit.Limiter, error) {
				return ratelimit.NewSlidingLog(c, []ratelimit.Rule{{Limit: 5, Window: s}}, append(o, ratelimit.WithHeadroom(2))...)
			},
			Limit:  5,
			Resets: [3]time.Duration{s, s, s}, Retry: s, Grain: us,
			Corrupt: func(c redis.UniversalClient, key string) error { return c.RPush(ctx, key, "0", "0", "x", "1").Err() },
		},
		{
			Name: "FairTokenBucket", Keys: Keys{Tenants: true}, Key: "ratelimit:default:fairtokenbucket:{k}",
			Build: func(c ratelimit.Client, o ...ratelimit.Option) (ratelimit.Limiter, error) {
				return ratelimit.NewFairTokenBucket(c, ratelimit.PerSecond(3), 4, o...)
			},
			Limit: 4, Window: 1_333_334 * us,
			Resets: thirds, Retry: 333_334 * us, Grain: us, Spare: 1, Lives: 4 * s,
			Corrupt: corruptString("1763670000123456/1x"),
		},
		{
			Name: "FairTokenBucket of weight 2", Keys: Keys{Tenants: true}, Key: "ratelimit:default:fairtokenbucket:{k}:tenant",
			Build: func(c ratelimit.Client, o ...ratelimit.Option) (ratelimit.Limiter, error) {
				l, err := ratelimit.NewFairTokenBucket(c, ratelimit.PerSecond(3), 4, o...)
				if err != nil {
					return nil, err
				}
				return l.Weight(2)
			},
			Limit: 4, Window: 1_333_334 * us,
			Resets: thirds, Retry: 333_334 * us, Grain: us, Spare: 1, Lives: 4 * s,
			Corrupt: corruptString("0,1,x"),
		},
	}
	for i := range variants {
		variants[i].Limit, variants[i].Window = cmp.Or(variants[i].Limit, 3), cmp.Or(variants[i].Window, s)
	}
	return variants
}

// EndOfDay is a zone whose day ends a second after Start.
var EndOfDay = time.FixedZone("EndOfDay", int((24*time.Hour - time.Second - time.Duration(Start.Unix()%86_400)*time.Second).Seconds()))
