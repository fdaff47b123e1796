package httplimit

import (
	"cmp"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/tryacquire/ratelimit"
)

// PerClient limits each client by its address, with what most services need. The rate is a text as
// [ratelimit.ParseRate] reads it: with "100/m" a client may send 100 requests at once, and then 100 a minute. trusted are the
// networks of the proxies in front of the service, see [ClientIP]; nil if there are none.
//
//	limit, err := httplimit.PerClient(client, "100/m", nil)
//	...
//	http.Handle("/", limit(handler))
//
// While Redis is down or slow, each process limits on its own, by the same rate. PerClient stands for these lines, of
// which those who need something else write their own:
//
//	bucket, err := ratelimit.NewTokenBucket(client, ratelimit.PerMinute(100), 100, ratelimit.WithName("client"))
//	local, err := ratelimit.NewLocalTokenBucket(ratelimit.PerMinute(100), 100)
//	guarded, err := ratelimit.NewFallback(bucket, local,
//		ratelimit.WithBudget(20*time.Millisecond), ratelimit.WithBreaker(&ratelimit.Breaker{}))
//	address, err := httplimit.ClientIP(nil)
//	limit, err := httplimit.New(guarded, address, httplimit.WithBucket())
//
// The options are those of [New]. [WithPolicy] names the limiter too: limits of different rates need different names, because
// a name stands for what is counted together. Make the client with [ratelimit.ClientOptions]. The error wraps
// ratelimit.ErrInvalidConfig.
func PerClient(c ratelimit.Client, rate string, trusted []netip.Prefix, opts ...Option) (func(http.Handler) http.Handler, error) {
	failed := func(err error) error { return fmt.Errorf("%w (httplimit.PerClient)", err) }
	var named limit
	if err := apply("PerClient", opts, &named, newMiddleware()); err != nil {
		return nil, err
	}
	per, err := ratelimit.ParseRate(rate)
	if err != nil {
		return nil, failed(err)
	}
	bucket, err := ratelimit.NewTokenBucket(c, per, per.Count, ratelimit.WithName(cmp.Or(named.decision.Policy, "client")))
	if err != nil {
		return nil, failed(err)
	}
	local, err := ratelimit.NewLocalTokenBucket(per, per.Count)
	if err != nil {
		return nil, failed(err)
	}
	guarded, err := ratelimit.NewFallback(bucket, local,
		ratelimit.WithBudget(20*time.Millisecond), ratelimit.WithBreaker(&ratelimit.Breaker{}))
	if err != nil {
		return nil, failed(err)
	}
	address, err := ClientIP(trusted)
	if err != nil {
		return nil, err
	}
	return New(guarded, address, append([]Option{WithBucket()}, opts...)...)
}
