// Package otellimit reports limiters as OpenTelemetry metrics and span events.
//
//	metrics, err := otellimit.New()
//	...
//	watched := ratelimit.WithObserver(metrics.Observe)
//	limiter, err := ratelimit.NewTokenBucket(client, ratelimit.PerSecond(10), 20, ratelimit.WithName("api"), watched)
//
// Give the same observer to limiters, DenyCaches, Fallbacks and Breakers;
// [ratelimit.WithObserver] says which of them reports a call. OpenTelemetry has no
// conventions for rate limits; the metrics follow its rules for names, units and
// error.type.
//
//	metric                      kind                       about
//	ratelimit.decisions         counter, {decision}        calls that ask for permits
//	ratelimit.duration          histogram, s               how long they took, without the time of a Wait
//	ratelimit.permits           counter, {permit}          permits that were taken
//	ratelimit.slices            counter, {permit}          permits that a Leased took ahead, or gave back
//	ratelimit.batch.size        histogram, {decision}      for each decision of Redis, how many were sent with it
//	ratelimit.wait.duration     histogram, s               how long callers of Wait waited for their turn
//	ratelimit.operations        counter, {operation}       calls that ask for none: Peek, Reset, Charge, Settle, Release…
//	ratelimit.in_flight         up-down counter, {permit}  permits of an InFlight that this process holds
//	ratelimit.breaker.state     gauge                      0 closed, 1 half-open, 2 open; from the first change on
//	ratelimit.breaker.changes   counter, {change}          changes of a breaker's state
//
//	attribute                   of                                        values
//	ratelimit.policy            all                                       the limiter's name
//	ratelimit.result            decisions, duration                       allowed, denied, untaken, failed
//	                            operations                                done, failed
//	ratelimit.source            decisions, duration, permits, operations  none, redis, memory, fallback, local, lease
//	ratelimit.operation         operations                                peek, reset, charge, credit, settle, cancel, extend, release
//	                            operations, slices                        lease, return
//	ratelimit.breaker.state     breaker.changes                           closed, half-open, open
//	error.type                  decisions and operations that failed      see observe.ErrorType
//	ratelimit.fallback.reason   decisions with the source fallback        see observe.ErrorType
//
// Neither a key nor the text of an error, which holds the key, is ever an attribute of a metric
// or of a span event. All values except the limiters' names are from fixed lists. So give each
// limit a name, not each user.
//
// Prometheus gets these metrics through OpenTelemetry's exporter, as ratelimit_decisions_total
// and so on; dashboard.json is a Grafana dashboard of them.
//
// A decision costs some 600 ns more with the SDK (go test -bench . in this module), and allocates
// nothing, unless the context has a span that is recorded.
package otellimit
