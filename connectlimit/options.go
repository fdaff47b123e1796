package connectlimit

import (
	"context"
	"math"
	"time"

	"github.com/tryacquire/ratelimit"
)

// An Option is what the functions With… of this package return. Where an option does not apply,
// the constructor returns an error that names it.
type Option struct {
	name  string
	sides sides
	set   func(*limit) error
}

// sides are the constructors that an option is for.
type sides uint8

const (
	server sides = 1 << iota
	client

	everywhere = server | client
)

func (s sides) String() string {
	return map[sides]string{server: "NewServer", client: "NewClient"}[s]
}

// UntilDeadline, as the longest wait, waits as long as the call's context allows: until its
// deadline, or until it is cancelled.
const UntilDeadline = time.Duration(math.MaxInt64)

const (
	defaultPolicy      = "default"
	mostPolicyName     = 128 // bytes
	defaultMaxPushback = time.Minute
	leastWait          = time.Millisecond
)

// newLimit checks what the constructors are given.
func newLimit(side sides, limiter ratelimit.Limiter, key KeyFunc, opts []Option) (*limit, error) {
	l := &limit{
		side: side, call: taker{limiter: limiter, policy: defaultPolicy}, key: key, maxPushback: defaultMaxPushback,
		denied: DefaultDenialHandler, failed: DefaultErrorHandler,
	}
	if limiter == nil {
		return nil, invalidConfig("%v: the limiter is nil", side)
	}
	if key == nil {
		return nil, invalidConfig("%v: the key function is nil; ClientIP and User return such", side)
	}
	given := map[string]bool{}
	for i, o := range opts {
		if o.set == nil {
			return nil, invalidConfig("%v: option %d is empty", side, i+1)
		}
		if o.sides&side == 0 {
			return nil, invalidConfig("%v: %s does not apply here; its documentation says where it does", side, o.name)
		}
		if given[o.name] {
			return nil, invalidConfig("%s is given twice", o.name)
		}
		given[o.name] = true
		if err := o.set(l); err != nil {
			return nil, err
		}
	}
	l.received.policy = l.call.policy + ".received"
	l.sent.policy = l.call.policy + ".sent"
	l.heldPolicy = l.call.policy + ".inflight"
	return l, nil
}

// WithPolicy names the limit for clients, in the status of a denial; "default" if not given. It
// is for the limiter's name, or what the limit is called in the service's documentation: 1 to
// 128 printable ASCII characters.
func WithPolicy(name string) Option {
	return Option{"WithPolicy", everywhere, func(l *limit) error {
		if name == "" || len(name) > mostPolicyName {
			return invalidConfig("WithPolicy: a name of %d bytes; give 1 to %d", len(name), mostPolicyName)
		}
		for i := range len(name) {
			if name[i] < ' ' || name[i] > '~' {
				return invalidConfig("WithPolicy: %q holds a character that is not printable ASCII", name)
			}
		}
		l.call.policy = name
		return nil
	}}
}

// WithCost says how many permits a call takes; 1 if not given. A stream takes them when it
// starts; its messages take one each, see [WithReceived]. A call of cost 0 goes on without
// asking the limiter. A cost below 0 is an error, and so is one above what the limiter can ever
// allow.
func WithCost(cost func(ctx context.Context, call Call) int) Option {
	return Option{"WithCost", everywhere, func(l *limit) error {
		if cost == nil {
			return invalidConfig("WithCost: the function is nil")
		}
		l.cost = cost
		return nil
	}}
}

// WithSkip lets the calls for which skip is true go on without any limit: health checks, for
// example. It is asked before the key function. It must rest on nothing that a client can forge.
func WithSkip(skip func(ctx context.Context, call Call) bool) Option {
	return Option{"WithSkip", everywhere, func(l *limit) error {
		if skip == nil {
			return invalidConfig("WithSkip: the function is nil")
		}
		l.skip = skip
		return nil
	}}
}

// WithWait lets a call wait for its permits, for at most the time given and never beyond its
// deadline, in place of denying it at once; see [ratelimit.WaitN] for the order in which waiting
// calls get them. A call whose permits would come later than that is denied at once. On a
// server, each waiting call holds a goroutine and its stream. WithWait is for [NewServer] and
// [NewClient]; most is at least a millisecond, or [UntilDeadline].
func WithWait(most time.Duration) Option {
	return Option{"WithWait", server | client, func(l *limit) error {
		if most < leastWait {
			return invalidConfig("WithWait: %v is shorter than %v", most, leastWait)
		}
		l.call.wait = most
		return nil
	}}
}

// WithReceived limits the messages that streams receive: each takes a permit of limiter, under
// the key of the stream, before the program gets it. With a wait of 0 a message without a
// permit is denied, which ends the stream; otherwise it waits, for as long as [WithWait] would.
// While it waits, no further one is read, so that HTTP/2's flow control slows the sender. Its
// policy is that of the call with ".received" appended. For a limit on messages alone, give the
// constructor [ratelimit.AllowAll].
//
// On a server these are the client's messages, on a client the server's. The permit that a stream takes at its start
// is another one; unary calls take none of limiter. It is for [NewServer] and [NewClient].
func WithReceived(limiter ratelimit.Limiter, wait time.Duration) Option {
	return Option{"WithReceived", server | client, func(l *limit) error {
		return l.received.of("WithReceived", limiter, wait)
	}}
}

// WithSent limits the messages that streams send, as [WithReceived] those that they receive:
// each takes a permit before it is sent. Its policy is that of the call with ".sent" appended.
func WithSent(limiter ratelimit.Limiter, wait time.Duration) Option {
	return Option{"WithSent", server | client, func(l *limit) error {
		return l.sent.of("WithSent", limiter, wait)
	}}
}

// WithInFlight limits how many calls of a key run at once, beside the rate: a call holds a
// permit of inFlight while its handler runs, and is denied if none is free. The handler's
// context is cancelled if the lease is lost, see [ratelimit.InFlight.Do]. A call that is denied
// for this takes no permit of the rate's limiter. Its policy is that of the call with ".inflight"
// appended. Calls of cost 0 hold a permit too. WithInFlight is for [NewServer].
func WithInFlight(inFlight *ratelimit.InFlight) Option {
	return Option{"WithInFlight", server, func(l *limit) error {
		if inFlight == nil {
			return invalidConfig("WithInFlight: the limiter is nil")
		}
		l.inFlight = inFlight
		return nil
	}}
}

// WithMaxPushback says how long clients may be told to wait before they retry on their own; a
// minute if not given. The retry policy of gRPC clients obeys grpc-retry-pushback-ms: it sleeps for as
// long, even beyond the call's deadline, and the caller learns nothing before. So a denial
// that lasts longer than most, or than the call's deadline, tells the client not to retry (-1): it
// gets the error at once, with RetryInfo. most is 0 to 24 hours; with 0, clients never retry on
// their own. In the Connect protocol, it has no effect. WithMaxPushback is for [NewServer].
func WithMaxPushback(most time.Duration) Option {
	return Option{"WithMaxPushback", server, func(l *limit) error {
		if most < 0 || most > 24*time.Hour {
			return invalidConfig("WithMaxPushback: %v is not between 0 and 24h", most)
		}
		l.maxPushback = most
		return nil
	}}
}

// WithDenialHandler returns the error of denied calls, in place of [DefaultDenialHandler], such
// as a status with details of your own. The trailer grpc-retry-pushback-ms is sent beside it. If it returns
// nil, the call is denied all the same, as by DefaultDenialHandler.
func WithDenialHandler(denied func(ctx context.Context, call Call, d Decision) error) Option {
	return Option{"WithDenialHandler", everywhere, func(l *limit) error {
		if denied == nil {
			return invalidConfig("WithDenialHandler: the function is nil")
		}
		l.denied = denied
		return nil
	}}
}

// WithErrorHandler returns the error of calls for which there is no decision, in place of
// [DefaultErrorHandler]: without a key, or while Redis is down. If it returns nil, the call goes
// on without a limit; [OpenErrorHandler] does so in an outage. To log, and answer as usual:
//
//	connectlimit.WithErrorHandler(func(ctx context.Context, call connectlimit.Call, err error) error {
//		log.Print(err)
//		return connectlimit.DefaultErrorHandler(ctx, call, err)
//	})
//
// err is that of the key function or of the limiter. It is for the log, and not for clients.
func WithErrorHandler(failed func(ctx context.Context, call Call, err error) error) Option {
	return Option{"WithErrorHandler", everywhere, func(l *limit) error {
		if failed == nil {
			return invalidConfig("WithErrorHandler: the function is nil")
		}
		l.failed = failed
		return nil
	}}
}
