package grpclimit

import (
	"context"
	"time"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/integration"
	"github.com/tryacquire/ratelimit/internal/rpclimit"
)

// An Option is what the functions With… of this package return. Where an option does not apply,
// the constructor returns an error that names it.
type Option struct{ rpc rpclimit.Option[Call] }

// UntilDeadline, as the longest wait, waits as long as the call's context allows: until its
// deadline, or until it is cancelled.
const UntilDeadline time.Duration = integration.UntilDeadline

// WithPolicy names the limit for clients, in the status of a denial. Without it, that is the
// limiter's own name (see ratelimit.WithName), and "default" for a limiter that has none, as a
// decorator. name is 1 to 128 printable ASCII characters.
func WithPolicy(name string) Option {
	return Option{rpclimit.WithPolicy[Call](name)}
}

// WithCost says how many permits a call takes; without it, 1. A stream takes them when it
// starts; its messages take one each, see [WithReceived]. A call of cost 0 goes on without
// asking the limiter. A cost below 0 is an error, and so is one above what the limiter can ever
// allow.
func WithCost(cost func(ctx context.Context, call Call) int) Option {
	return Option{rpclimit.WithCost(cost)}
}

// WithSkip lets the calls for which skip is true go on without any limit: health checks, for
// example. It is asked before the key function. It must not depend on anything that a client can
// forge.
func WithSkip(skip func(ctx context.Context, call Call) bool) Option {
	return Option{rpclimit.WithSkip(skip)}
}

// WithMaxWait lets a call wait for its permits, for at most the time given and never beyond its
// deadline, in place of denying it at once; see [ratelimit.WaitN] for the order in which waiting
// calls get them. A call whose permits would come later than that is denied at once, and so is
// one that a [ratelimit.Fallback] denies because of an outage. On a server, each waiting call
// holds a goroutine and its stream. WithMaxWait is for [NewServer] and
// [NewClient]; most is at least a millisecond, or [UntilDeadline].
func WithMaxWait(most time.Duration) Option {
	return Option{rpclimit.WithMaxWait[Call](most)}
}

// WithReceived limits the messages that streams receive: each takes a permit of limiter, under
// the key of the stream, before the program gets it. With a wait of 0 a message without a
// permit is denied, which ends the stream; otherwise it waits, for as long as [WithMaxWait] would.
// While it waits, no further one is read, so that HTTP/2's flow control slows the sender. Its
// policy is that of the call with ".received" appended. To limit only the messages, give the
// constructor [ratelimit.AllowAll].
//
// On a server these are the client's messages, on a client the server's. The permit that a stream
// takes at its start is another one; unary calls take none of limiter. It is for [NewServer] and
// [NewClient].
func WithReceived(limiter ratelimit.Limiter, wait time.Duration) Option {
	return Option{rpclimit.WithReceived[Call](limiter, wait)}
}

// WithSent limits the messages that streams send, as [WithReceived] limits those that they receive:
// each message takes a permit before it is sent. Its policy is that of the call with ".sent"
// appended.
func WithSent(limiter ratelimit.Limiter, wait time.Duration) Option {
	return Option{rpclimit.WithSent[Call](limiter, wait)}
}

// WithInFlight limits how many calls of a key run at once, beside the rate: a call holds a permit of inFlight while its
// handler runs, and is denied if none is free. The handler's context is cancelled if the lease is lost, see
// [ratelimit.InFlight.Do]. Around it, [ratelimit.NewHoldFallback] is the policy in an outage. A call that finds none
// free takes no permit of the rate's limiter, and its RetryAfter is a second, see [WithRetryAfter]. Its policy is that
// of the call with ".inflight" appended. Calls of cost 0 hold a permit too. To limit only the calls at once, give the
// constructor [ratelimit.AllowAll]. WithInFlight is for [NewServer].
func WithInFlight(inFlight ratelimit.Holder) Option {
	return Option{rpclimit.WithInFlight[Call](inFlight)}
}

// WithRetryAfter sets the RetryAfter of denials by [WithInFlight]; a second if not given, because a
// call can end at any moment, and nobody knows when. Choose about the time that a call takes. d is
// more than 0. WithRetryAfter is for [NewServer].
func WithRetryAfter(d time.Duration) Option {
	return Option{rpclimit.WithRetryAfter[Call](d)}
}

// WithOutageRetryAfter gives the error UNAVAILABLE of [DefaultErrorHandler] a RetryInfo, and a server's call also the
// trailer grpc-retry-pushback-ms, within [WithMaxPushback]. Without the option it has none, because nobody knows when
// Redis is back: the retry policies of clients then wait a random time, and longer each time, while with it all clients
// come back when it has passed. So choose a time after which the service can bear them all. Denials have a RetryInfo of
// their own, also those of a [ratelimit.Fallback] to [ratelimit.DenyAll]. d is at least a millisecond.
func WithOutageRetryAfter(d time.Duration) Option {
	return Option{rpclimit.WithOutageRetryAfter[Call](d)}
}

// WithRetrySpread makes the RetryAfter of each denial (RetryInfo and grpc-retry-pushback-ms) longer by a random time up to
// most, which is more than 0, so that clients that were denied together do not come back together. Choose twice to three
// times what all of them need: of 50 clients under a limit of 50 a second, 2 to 3 seconds. WithRetrySpread is for
// [NewServer].
func WithRetrySpread(most time.Duration) Option {
	return Option{rpclimit.WithRetrySpread[Call](most)}
}

// WithMaxPushback sets the longest time after which clients retry on their own; without it, a
// minute. The retry policy of gRPC clients obeys the trailer grpc-retry-pushback-ms: the client
// sleeps for that time, even beyond the call's deadline, and its caller gets no answer before. So
// if a denial lasts longer than most, or beyond the call's deadline, the trailer is -1, which means
// no retry: the caller gets RESOURCE_EXHAUSTED at once, with RetryInfo. most is 0 to 24 hours; with
// 0, clients never retry on their own. WithMaxPushback is for [NewServer].
func WithMaxPushback(most time.Duration) Option {
	return Option{rpclimit.WithMaxPushback[Call](most)}
}

// WithDenialHandler returns the error of denied calls, in place of [DefaultDenialHandler], such as
// a status with details of your own. The trailer grpc-retry-pushback-ms is sent beside it. If it
// returns nil, the call is denied all the same, as by DefaultDenialHandler.
func WithDenialHandler(denied func(ctx context.Context, call Call, d Decision) error) Option {
	if denied == nil {
		return Option{rpclimit.WithDenialHandler[Call](nil)}
	}
	return Option{rpclimit.WithDenialHandler(func(ctx context.Context, call Call, d rpclimit.Decision) error {
		return denied(ctx, call, Decision(d))
	})}
}

// WithErrorHandler returns the error of calls for which there is no decision, in place of
// [DefaultErrorHandler]: without a key, or while Redis is down. If it returns nil, the call goes
// on without a limit; [ServeInOutages] does so in an outage. To log, and answer as usual:
//
//	grpclimit.WithErrorHandler(func(ctx context.Context, call grpclimit.Call, err error) error {
//		log.Print(err)
//		return grpclimit.DefaultErrorHandler(ctx, call, err)
//	})
//
// err is that of the key function or of the limiter. It is for the log, and not for clients.
func WithErrorHandler(failed func(ctx context.Context, call Call, err error) error) Option {
	return Option{rpclimit.WithErrorHandler(failed)}
}
