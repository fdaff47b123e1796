package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/keyname"
	"github.com/tryacquire/ratelimit/internal/testing/fakes"
	"github.com/tryacquire/ratelimit/internal/testing/limitertest"
	"github.com/tryacquire/ratelimit/internal/testing/raceflag"
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
	raceflag.SkipSequential(t)
	segments := []string{"api", "tokenbucket", "leakybucket", "tokenbucket2", "x", ""}
	keys := joined(append(segments, "{", "}", "{x}"), 3)
	owners := map[string]string{}
	limiters := 0
	algorithms := map[keyname.Head]limitertest.Variant{}
	for _, v := range limitertest.Variants() {
		algorithms[v.Head()] = v
	}
	for _, prefix := range joined(segments, 2) {
		for _, name := range joined(segments, 2) {
			for _, v := range algorithms {
				var sent string // the key of the last script
				client := fakes.NewClient(func(_ context.Context, cmd redis.Cmder) error {
					sent = limitertest.Text(cmd.Args()[3])
					return redis.Nil
				})
				l, err := v.Build(client, ratelimit.WithPrefix(prefix), ratelimit.WithName(name))
				if err != nil {
					require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
					continue
				}
				limiters++
				for _, key := range keys {
					if key == "" {
						continue
					}
					if _, err := l.TryAcquire(ctx, key); errors.Is(err, ratelimit.ErrInvalidKey) && v.Tenants {
						continue
					}
					of := fmt.Sprintf("%s:%s, %T, %q", prefix, name, l, key)
					owner, taken := owners[sent]
					require.False(t, taken, "%q is a key of %q and of %q", sent, owner, of)
					owners[sent] = of
				}
			}
		}
	}
	require.Equal(t, (2+9)*2*len(algorithms), limiters, "two prefixes of one segment, nine of two, and two names")
}

func TestPrefixAndNameAreErrorsWhereKeysCouldMeet(t *testing.T) {
	for _, c := range []struct {
		option ratelimit.Option
		want   string
	}{
		{ratelimit.WithPrefix(""), `WithPrefix: the prefix is empty; leave the option out for "ratelimit"`},
		{ratelimit.WithPrefix("{api}"), `WithPrefix: "{api}" holds a brace`},
		{ratelimit.WithPrefix("api:tokenbucket"), `WithPrefix: "api:tokenbucket" holds "tokenbucket", the id of an algorithm`},
		{ratelimit.WithPrefix("slidingwindow-zset:api"), `holds "slidingwindow-zset"`},
		{ratelimit.WithPrefix("fixedwindow12"), `holds "fixedwindow12"`},
		{ratelimit.WithName(""), `WithName: the name is empty; leave the option out for "default"`},
		{ratelimit.WithName("a}b"), `WithName: "a}b" holds a brace`},
		{ratelimit.WithName("a:b"), `WithName: "a:b" holds a colon`},
		{ratelimit.WithName("leakybucket"), `WithName: "leakybucket" holds "leakybucket", the id of an algorithm`},
	} {
		_, err := ratelimit.NewFixedWindow(limitertest.Offline(t), 1, time.Second, c.option)
		require.ErrorIs(t, err, ratelimit.ErrInvalidConfig)
		require.ErrorContains(t, err, c.want)
	}
	for _, option := range []ratelimit.Option{ratelimit.WithPrefix("api:v1"), ratelimit.WithPrefix("tokenbuckets"), ratelimit.WithName("per user"), ratelimit.WithName("2tokenbucket")} {
		_, err := ratelimit.NewFixedWindow(limitertest.Offline(t), 1, time.Second, option)
		require.NoError(t, err)
	}
}

func TestErrorsNameTheLimiterAndTheKey(t *testing.T) {
	s := limitertest.OnMiniredis(t)
	l := ratelimit.Must(ratelimit.NewTokenBucket(s.Client, ratelimit.PerSecond(1), 3, ratelimit.WithName("login")))
	require.NoError(t, s.Admin.SAdd(ctx, "ratelimit:login:tokenbucket{k}", "x").Err())
	_, err := l.TryAcquire(ctx, "k")
	require.ErrorContains(t, err, `ratelimit: token bucket "login", key "k": `)
	_, err = l.TryAcquireN(ctx, "k", 4)
	require.EqualError(t, err, `ratelimit: more permits than the limit: 4 permits of token bucket "login", which allows 3 at most`)
}

// The state of each algorithm, under the key of each other one.
func TestNoAlgorithmTakesTheStateOfAnother(t *testing.T) {
	raceflag.SkipSequential(t)
	// The same text by the same script: these decide alike.
	alike := func(a, b limitertest.Variant) bool {
		list := func(v limitertest.Variant) bool {
			return strings.Contains(v.Key, "slidingwindow-list") || strings.Contains(v.Key, "slidinglog")
		}
		bucket := func(v limitertest.Variant) bool { return strings.Contains(v.Key, "bucket") }
		return a.Key == b.Key || list(a) && list(b) || bucket(a) && bucket(b)
	}
	limitertest.Everywhere(t, func(t *testing.T, s *limitertest.Stage) {
		for _, from := range limitertest.Variants() {
			for _, to := range limitertest.Variants() {
				if alike(from, to) {
					continue
				}
				t.Run(from.Name+" as "+to.Name, func(t *testing.T) {
					s.Wipe(t)
					l, err := from.Build(s.Client, s.Opts...)
					require.NoError(t, err)
					must(t)(l.TryAcquireN(ctx, from.Of("k"), 2))
					require.NoError(t, s.Admin.(redis.Cmdable).Rename(ctx, from.Key, to.Key).Err())
					before := s.Look(t, to.Key)
					other, err := to.Build(s.Client, s.Opts...)
					require.NoError(t, err)
					_, err = other.TryAcquire(ctx, to.Of("k"))
					require.ErrorIs(t, err, ratelimit.ErrCorruptState)
					require.Equal(t, before, s.Look(t, to.Key))
				})
			}
		}
	})
}
