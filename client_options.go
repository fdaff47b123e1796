package ratelimit

import (
	"runtime"
	"time"

	"github.com/redis/go-redis/v9"
)

// ClientOptions sets in o, the options of a go-redis client, what suits limiters with a budget, and returns o. Give
// it the budget that you give to [WithBudget].
//
//	client := redis.NewClient(ratelimit.Must(ratelimit.ClientOptions(
//		20*time.Millisecond, &redis.Options{Addr: "localhost:6379"})))
//
// DialTimeout, ReadTimeout and WriteTimeout become 100 ms, or five budgets where that is longer; PoolTimeout one
// budget; DialerRetries 1; MaxRetries -1; PoolSize 100, or ten for each processor if these are more;
// ContextTimeoutEnabled true. Options that are set keep their values, except for ContextTimeoutEnabled. Use the
// client for limiters only. docs/outages.md says what each of them does in an outage.
//
// The error wraps ErrInvalidConfig: o is nil, or budget is not above 0 and at most a minute.
func ClientOptions[O redis.Options | redis.ClusterOptions | redis.RingOptions | redis.FailoverOptions | redis.UniversalOptions](budget time.Duration, o *O) (*O, error) {
	if o == nil {
		return nil, invalidConfig("ClientOptions: the options are nil; give at least an address")
	}
	if budget <= 0 || budget > time.Minute {
		return nil, invalidConfig("ClientOptions: a budget of %v is not above 0 and at most %v; give that of WithBudget", budget, time.Minute)
	}
	var f clientFields
	switch o := any(o).(type) {
	case *redis.Options:
		f = clientFields{&o.ContextTimeoutEnabled, &o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout, &o.PoolTimeout, &o.DialerRetries, &o.MaxRetries, &o.PoolSize}
	case *redis.ClusterOptions:
		f = clientFields{&o.ContextTimeoutEnabled, &o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout, &o.PoolTimeout, &o.DialerRetries, &o.MaxRetries, &o.PoolSize}
	case *redis.RingOptions:
		f = clientFields{&o.ContextTimeoutEnabled, &o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout, &o.PoolTimeout, &o.DialerRetries, &o.MaxRetries, &o.PoolSize}
	case *redis.FailoverOptions:
		f = clientFields{&o.ContextTimeoutEnabled, &o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout, &o.PoolTimeout, &o.DialerRetries, &o.MaxRetries, &o.PoolSize}
	case *redis.UniversalOptions:
		f = clientFields{&o.ContextTimeoutEnabled, &o.DialTimeout, &o.ReadTimeout, &o.WriteTimeout, &o.PoolTimeout, &o.DialerRetries, &o.MaxRetries, &o.PoolSize}
	}
	f.suit(budget)
	return o, nil
}

const (
	// budgetsOfAClient is how many budgets a client waits for a reply. A pause of the server that is a little longer than
	// the budget costs no connection then.
	budgetsOfAClient = 5

	// leastClientTimeout is enough for a new connection with TLS to a server nearby.
	leastClientTimeout = 100 * time.Millisecond

	leastPoolSize = 100
)

// clientFields are the fields that the options of all kinds of clients have.
type clientFields struct {
	honourDeadlines             *bool
	dial, read, write, wait     *time.Duration
	dials, retries, connections *int
}

func (f clientFields) suit(budget time.Duration) {
	timeout := max(budgetsOfAClient*budget, leastClientTimeout)
	*f.honourDeadlines = true
	setUnset(f.dial, timeout)
	setUnset(f.read, timeout)
	setUnset(f.write, timeout)
	setUnset(f.wait, budget)
	setUnset(f.dials, 1)
	setUnset(f.retries, -1) // go-redis's word for none
	setUnset(f.connections, max(leastPoolSize, 10*runtime.GOMAXPROCS(0)))
}

func setUnset[T comparable](field *T, value T) {
	var unset T
	if *field == unset {
		*field = value
	}
}
