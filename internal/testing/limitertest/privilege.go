package limitertest

import (
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
)

// The privileges that a Redis user needs, as docs/privileges.md lists them. Redis checks
// the commands of a script against the user that runs it.
const (
	EveryPrivilege   = "+evalsha +eval"
	ResetPrivilege   = "+unlink" // some scripts need it too
	PreloadPrivilege = "+script|load"
	TimePrivilege    = "+time" // with the server's clock, which a fixed window without WithAlignment does not read

	RingPrivilege    = "+ping"                           // its heartbeat
	ClusterPrivilege = "+cluster|slots +asking +command" // where slots are, are moving to, and what a command's key is
)

// RepairPrivilege lets a denial of a bucket give a key that has lost its TTL a new one.
// Without it the scripts go on.
const RepairPrivilege = "+pttl +pexpire"

// CancelPrivilege is what a bucket needs beside its own to cancel the only reservation of a key.
const CancelPrivilege = "+unlink"

// InFlightPrivilege is what an InFlight needs, which is no Limiter.
const InFlightPrivilege = "+zrange +zcount +zscore +zrangebyscore +zadd +zcard +zremrangebyrank +zrem +pttl +pexpire"

// TicketsPrivilege is what a limiter with WithTicketLease needs beside its own.
const TicketsPrivilege = "+zrange +zcount +zadd +zrem +zscore +zcard +zrangebyscore +zremrangebyrank +pttl +pexpire"

// Privileges are the commands in the scripts of each limiter.
var Privileges = []struct {
	Limiter, Commands string
	ReadsTime         bool
	Build             func(c ratelimit.Client, o ...ratelimit.Option) ratelimit.Limiter
}{
	{"FixedWindow", "+get +set +incrby +pttl", false, func(c ratelimit.Client, o ...ratelimit.Option) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewFixedWindow(c, 5, time.Second, o...))
	}},
	{"FixedWindow aligned", "+get +set +pttl", true, func(c ratelimit.Client, o ...ratelimit.Option) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewFixedWindow(c, 5, time.Second, append(o, ratelimit.WithAlignment(0))...))
	}},
	{"CalendarWindow", "+get +set +pttl", true, func(c ratelimit.Client, o ...ratelimit.Option) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewCalendarWindow(c, 5, ratelimit.Daily(time.UTC), o...))
	}},
	{"Pause", "+get +set +unlink +pttl", true, func(c ratelimit.Client, o ...ratelimit.Option) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewPause(c, append(o, ratelimit.WithProbe(time.Second))...))
	}},
	{"SlidingWindow Hash", "+hmget +hset +hdel +unlink +pexpire +pttl", true, func(c ratelimit.Client, o ...ratelimit.Option) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewSlidingWindow(c, 5, time.Second, append(o, ratelimit.WithStorage(ratelimit.StorageHash))...))
	}},
	{"SlidingWindow List", "+llen +lrange +lset +ltrim +rpush +unlink +pexpire +pttl", true, func(c ratelimit.Client, o ...ratelimit.Option) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewSlidingWindow(c, 5, time.Second, o...))
	}},
	{"SlidingWindow ZSet", "+zcount +zrange +zadd +zrangebyscore +zcard +zremrangebyrank +unlink +pexpire +pttl", true, func(c ratelimit.Client, o ...ratelimit.Option) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewSlidingWindow(c, 5, time.Second, append(o, ratelimit.WithStorage(ratelimit.StorageZSet))...))
	}},
	{"SlidingLog", "+llen +lrange +lset +ltrim +rpush +unlink +pexpire +pttl", true, func(c ratelimit.Client, o ...ratelimit.Option) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewSlidingLog(c, []ratelimit.Rule{{Limit: 5, Window: time.Second}}, o...))
	}},
	{"TokenBucket", "+get +set", true, func(c ratelimit.Client, o ...ratelimit.Option) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerSecond(5), 5, o...))
	}},
	{"TokenBucket stepped", "+get +set", true, func(c ratelimit.Client, o ...ratelimit.Option) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewTokenBucket(c, ratelimit.PerSecond(5), 5, append(o, ratelimit.WithRefillEvery(time.Second))...))
	}},
	{"LeakyBucket", "+get +set", true, func(c ratelimit.Client, o ...ratelimit.Option) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewLeakyBucket(c, ratelimit.PerSecond(5), 5, o...))
	}},
	{"FairTokenBucket", "+get +set +setrange", true, func(c ratelimit.Client, o ...ratelimit.Option) ratelimit.Limiter {
		return ratelimit.Must(ratelimit.NewFairTokenBucket(c, ratelimit.PerSecond(5), 5, o...))
	}},
}

// LeastPrivilege returns the ACL rules of a user for all limiters and Preload. The name,
// the keys, and what a cluster or ring needs come in addition.
func LeastPrivilege() []string {
	commands := strings.Fields(EveryPrivilege + " " + ResetPrivilege + " " + PreloadPrivilege + " " + TimePrivilege)
	for _, p := range Privileges {
		for _, c := range strings.Fields(p.Commands) {
			if !slices.Contains(commands, c) {
				commands = append(commands, c)
			}
		}
	}
	for _, c := range strings.Fields(InFlightPrivilege) {
		if !slices.Contains(commands, c) {
			commands = append(commands, c)
		}
	}
	return append([]string{"on", ">secret", "resetchannels", "-@all"}, commands...)
}

// AsLimiter makes a client log in as the user with LeastPrivilege.
func AsLimiter(o *redis.Options) { o.Username, o.Password = "limiter", "secret" }
