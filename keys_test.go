package ratelimit

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// joined returns every text of 1 to most of the segments, joined by colons.
func joined(segments []string, most int) []string {
	all, shorter := segments, segments
	for range most - 1 {
		var longer []string
		for _, text := range shorter {
			for _, segment := range segments {
				longer = append(longer, text+":"+segment)
			}
		}
		all, shorter = append(all, longer...), longer
	}
	return all
}

// Every limiter that can be built of these segments, with every key: no two of them
// are the same key in Redis.
func TestKeysOfTwoLimitersNeverMeet(t *testing.T) {
	segments := []string{"api", "tokenbucket", "leakybucket", "tokenbucket2", "x", ""}
	keys := joined(segments, 3)
	owners := map[string]string{}
	limiters := 0
	for _, prefix := range joined(segments, 2) {
		for _, name := range joined(segments, 2) {
			for _, build := range []func(Client, ...Option) (Limiter, error){
				func(c Client, o ...Option) (Limiter, error) {
					return NewTokenBucket(c, PerSecond(1), 1, WithOptions(o...))
				},
				func(c Client, o ...Option) (Limiter, error) {
					return NewLeakyBucket(c, PerSecond(1), 1, WithOptions(o...))
				},
			} {
				l, err := build(offline{t}, WithPrefix(prefix), WithName(name))
				if err != nil {
					require.ErrorIs(t, err, ErrInvalidConfig)
					continue
				}
				limiters++
				begin := coreOf(t, l).prefix
				for _, key := range keys {
					owner, taken := owners[begin+key]
					require.False(t, taken, "%q is a key of %q and of %q", begin+key, owner, begin)
					owners[begin+key] = begin
				}
			}
		}
	}
	require.Equal(t, (2+9)*2*2, limiters, "two prefixes of one segment, nine of two, two names and two algorithms")
}

func TestPrefixAndNameAreRefusedWhereKeysCouldMeet(t *testing.T) {
	for _, c := range []struct {
		option Option
		want   string
	}{
		{WithPrefix(""), `WithPrefix: the prefix is empty; leave the option out for "ratelimit"`},
		{WithPrefix("{api}"), `WithPrefix: "{api}" holds a brace`},
		{WithPrefix("api:tokenbucket"), `WithPrefix: "api:tokenbucket" holds "tokenbucket", the id of an algorithm`},
		{WithPrefix("slidingwindow-zset:api"), `holds "slidingwindow-zset"`},
		{WithPrefix("fixedwindow12"), `holds "fixedwindow12"`},
		{WithName(""), `WithName: the name is empty; leave the option out for "default"`},
		{WithName("a}b"), `WithName: "a}b" holds a brace`},
		{WithName("a:b"), `WithName: "a:b" holds a colon`},
		{WithName("leakybucket"), `WithName: "leakybucket" holds "leakybucket", the id of an algorithm`},
	} {
		_, err := NewFixedWindow(offline{t}, 1, time.Second, c.option)
		require.ErrorIs(t, err, ErrInvalidConfig)
		require.ErrorContains(t, err, c.want)
	}
	for _, option := range []Option{WithPrefix("api:v1"), WithPrefix("tokenbuckets"), WithName("per user"), WithName("2tokenbucket")} {
		_, err := NewFixedWindow(offline{t}, 1, time.Second, option)
		require.NoError(t, err)
	}
}

func TestErrorsNameTheLimiterAndTheKey(t *testing.T) {
	s := onMini(t)
	l := Must(NewTokenBucket(s.client, PerSecond(1), 3, WithName("login")))
	require.NoError(t, s.admin.SAdd(ctx, "ratelimit:login:tokenbucket:k", "x").Err())
	_, err := l.TryAcquire(ctx, "k")
	require.ErrorContains(t, err, `ratelimit: token bucket "login", key "k": `)
	_, err = l.TryAcquireN(ctx, "k", 4)
	require.EqualError(t, err, `ratelimit: more permits than the limit: 4 permits of token bucket "login", which allows 3 at most`)
}

// The state of each algorithm, under the key of each other one.
func TestNoAlgorithmTakesTheStateOfAnother(t *testing.T) {
	// The same text by the same script: these decide alike.
	alike := func(a, b variant) bool {
		list := func(v variant) bool {
			return strings.Contains(v.key, idSlidingWindowList) || strings.Contains(v.key, idSlidingLog)
		}
		bucket := func(v variant) bool { return strings.Contains(v.key, "bucket") }
		return a.key == b.key || list(a) && list(b) || bucket(a) && bucket(b)
	}
	everywhere(t, func(t *testing.T, s *stage) {
		for _, from := range variants() {
			for _, to := range variants() {
				if alike(from, to) {
					continue
				}
				t.Run(from.name+" as "+to.name, func(t *testing.T) {
					require.NoError(t, wipe(s))
					l, err := from.build(s.client, s.opts...)
					require.NoError(t, err)
					must(t)(l.TryAcquireN(ctx, "k", 2))
					require.NoError(t, s.admin.(redis.Cmdable).Rename(ctx, from.key, to.key).Err())
					before := s.look(t, to.key)
					other, err := to.build(s.client, s.opts...)
					require.NoError(t, err)
					_, err = other.TryAcquire(ctx, "k")
					require.ErrorIs(t, err, ErrCorruptState)
					require.Equal(t, before, s.look(t, to.key))
				})
			}
		}
	})
}
