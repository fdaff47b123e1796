package main

import (
	"context"
	"fmt"
	"strconv"

	redis_rate "github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislimiter"
	"github.com/throttled/throttled/v2"
	throttledstore "github.com/throttled/throttled/v2/store/goredisstore.v9"
	ulule "github.com/ulule/limiter/v3"
	ululestore "github.com/ulule/limiter/v3/drivers/store/redis"
	"github.com/valkey-io/valkey-go"
	"github.com/valkey-io/valkey-go/valkeylimiter"
	zero "github.com/zeromicro/go-zero/core/limit"
)

const (
	// reference is the peer that the others are compared with.
	reference = "redis_rate"
	// returnOne is the floor of one script execution.
	returnOne = "EVALSHA return 1"
	// commandsAlone is the floor of a fixed window that reads before it writes:
	// its commands without a decision, and one integer back.
	commandsAlone = "GET, PTTL and INCRBY alone"
	// sharedPing is the floor of calls that are merged.
	sharedPing = "PING shared by all callers"
)

// peers are the other libraries, each with the limit of ours and the client and
// the settings it comes with.
func peers() []contestant {
	return []contestant{
		{name: reference, script: reference, kind: peer, selected: true, open: openRedisRate},
		{name: "ulule/limiter", script: "ulule/limiter", kind: peer, open: openUlule},
		{name: "throttled", kind: peer, open: openThrottled, cost: throttledCost},
		{name: "go-zero period", script: "go-zero period", kind: peer, open: openGoZero},
		{name: "rueidislimiter", script: "rueidislimiter", kind: peer, open: openRueidisLimiter},
		{name: "rueidis by hand", script: "rueidis by hand", kind: peer, selected: true, open: openRueidis},
	}
}

// floors are what no limiter on Redis can be faster than.
func floors() []contestant {
	return []contestant{
		{name: returnOne, script: returnOne, kind: floor, only: allowed, selected: true, open: openReturnOne},
		{name: commandsAlone, script: commandsAlone, kind: floor, open: openCommands},
		{name: "PING", kind: floor, only: allowed, open: openPing, cost: pingCost},
		{name: sharedPing, kind: floor, only: allowed, open: openSharing, cost: pingCost},
	}
}

func openRedisRate(b *testbed, v verdict, tag string) (decide, error) {
	l := redis_rate.NewLimiter(b.client)
	rate, burst := bucket(v)
	limit := redis_rate.Limit{Rate: rate.Count, Period: rate.Period, Burst: burst}
	return func(ctx context.Context, key string) (bool, error) {
		r, err := l.Allow(ctx, tag+key, limit)
		return err == nil && r.Allowed > 0, err
	}, nil
}

func openUlule(b *testbed, v verdict, tag string) (decide, error) {
	store, err := ululestore.NewStoreWithOptions(b.client, ulule.StoreOptions{Prefix: tag})
	if err != nil {
		return nil, err
	}
	l := ulule.New(store, ulule.Rate{Limit: int64(windowLimit(v)), Period: plentyWindow})
	return func(ctx context.Context, key string) (bool, error) {
		r, err := l.Get(ctx, key)
		return err == nil && !r.Reached, err
	}, nil
}

func openThrottled(b *testbed, v verdict, tag string) (decide, error) {
	store, err := throttledstore.NewCtx(b.client, tag)
	if err != nil {
		return nil, err
	}
	quota := throttled.RateQuota{MaxRate: throttled.PerMin(1), MaxBurst: plenty}
	if v == denied {
		quota = throttled.RateQuota{MaxRate: throttled.PerHour(1)}
	}
	l, err := throttled.NewGCRARateLimiterCtx(store, quota)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, key string) (bool, error) {
		limited, _, err := l.RateLimitCtx(ctx, key, 1)
		return err == nil && !limited, err
	}, nil
}

// throttledCost: it sends TIME and GET, then a script, which calls GET too. Of
// those, as many were sent on their own as TIME.
func throttledCost(t tally) float64 {
	gets := 1.0
	if all := t.commands["get"].calls; all > 0 {
		gets = float64(t.commands["time"].calls) / float64(all)
	}
	return t.scripts() + t.usec("time", "setnx", "expire") + gets*t.usec("get")
}

func openGoZero(b *testbed, v verdict, tag string) (decide, error) {
	l := zero.NewPeriodLimit(int(plentyWindow.Seconds()), windowLimit(v), b.zero, tag)
	return func(ctx context.Context, key string) (bool, error) {
		code, err := l.TakeCtx(ctx, key)
		return code == zero.Allowed || code == zero.HitQuota, err
	}, nil
}

// byHand is a fixed window as it is written by hand, with all that a caller
// needs in the answer.
const byHand = `local used = redis.call('INCRBY', KEYS[1], ARGV[1])
if used == tonumber(ARGV[1]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return {used, tonumber(ARGV[2])}
end
return {used, redis.call('PTTL', KEYS[1])}`

func openRueidis(b *testbed, v verdict, tag string) (decide, error) {
	script := rueidis.NewLuaScript(byHand)
	return decideByHand(v, tag, func(ctx context.Context, keys, args []string) ([]int64, error) {
		return script.Exec(ctx, b.rueidis, keys, args).AsIntSlice()
	}), nil
}

func openRueidisLimiter(b *testbed, v verdict, tag string) (decide, error) {
	l, err := rueidislimiter.NewRateLimiter(rueidislimiter.RateLimiterOption{
		ClientBuilder: func(rueidis.ClientOption) (rueidis.Client, error) { return b.rueidis, nil },
		KeyPrefix:     tag, Limit: windowLimit(v), Window: plentyWindow,
	})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, key string) (bool, error) {
		r, err := l.Allow(ctx, key)
		return r.Allowed, err
	}, nil
}

func openValkeyLimiter(b *testbed, v verdict, tag string) (decide, error) {
	l, err := valkeylimiter.NewRateLimiter(valkeylimiter.RateLimiterOption{
		ClientBuilder: func(valkey.ClientOption) (valkey.Client, error) { return b.valkey, nil },
		KeyPrefix:     tag, Limit: windowLimit(v), Window: plentyWindow,
	})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, key string) (bool, error) {
		r, err := l.Allow(ctx, key)
		return r.Allowed, err
	}, nil
}

// windowLimit is the limit of a window that gives the verdict.
func windowLimit(v verdict) int {
	if v == denied {
		return 1
	}
	return plenty
}

func openValkey(b *testbed, v verdict, tag string) (decide, error) {
	script := valkey.NewLuaScript(byHand)
	return decideByHand(v, tag, func(ctx context.Context, keys, args []string) ([]int64, error) {
		return script.Exec(ctx, b.valkey, keys, args).AsIntSlice()
	}), nil
}

func decideByHand(v verdict, tag string, exec func(ctx context.Context, keys, args []string) ([]int64, error)) decide {
	limit, args := int64(windowLimit(v)), []string{"1", strconv.FormatInt(plentyWindow.Milliseconds(), 10)}
	return func(ctx context.Context, key string) (bool, error) {
		reply, err := exec(ctx, []string{tag + key}, args)
		if err == nil && len(reply) != 2 {
			err = fmt.Errorf("a reply of %d integers", len(reply))
		}
		return err == nil && reply[0] <= limit, err
	}
}

func openReturnOne(b *testbed, _ verdict, tag string) (decide, error) {
	script := redis.NewScript("return 1")
	if err := script.Load(context.Background(), b.client).Err(); err != nil {
		return nil, err
	}
	hash := script.Hash()
	return func(ctx context.Context, key string) (bool, error) {
		one, err := b.client.EvalSha(ctx, hash, []string{tag + key}).Int()
		return one == 1, err
	}, nil
}

func openPing(b *testbed, _ verdict, _ string) (decide, error) {
	return func(ctx context.Context, _ string) (bool, error) {
		err := b.client.Ping(ctx).Err()
		return err == nil, err
	}, nil
}

func pingCost(t tally) float64 { return t.usec("ping") }

func openCommands(b *testbed, v verdict, tag string) (decide, error) {
	source := `if not redis.call('GET', KEYS[1]) then
  redis.call('SET', KEYS[1], '0', 'PX', '3600000')
end
local left = redis.call('PTTL', KEYS[1])
`
	if v == allowed {
		source += "redis.call('INCRBY', KEYS[1], ARGV[1])\n"
	}
	script := redis.NewScript(source + "return left")
	return func(ctx context.Context, key string) (bool, error) {
		err := script.Run(ctx, b.client, []string{tag + key}, 1).Err()
		return v == allowed, err
	}, nil
}
