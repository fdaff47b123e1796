package grpclimit

import (
	"context"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/integration"
	"github.com/tryacquire/ratelimit/internal/rpclimit"
)

// A Decision is what the limiter answered to a call that is denied, and what the status follows
// from. It does not have the key, because clients must not see it.
type Decision struct {
	Policy   string // the name of the limit, see WithPolicy
	InFlight bool   // the limiter is a ratelimit.InFlight

	// Result is the limiter's answer. Of an InFlight, RetryAfter is that of WithRetryAfter.
	Result ratelimit.Result
}

// RetryDelay is Result.RetryAfter in whole milliseconds, rounded up, so that no client comes
// back too early. It is at least a millisecond.
func (d Decision) RetryDelay() time.Duration { return rpclimit.Decision(d).RetryDelay() }

// Status is what [DefaultDenialHandler] answers: RESOURCE_EXHAUSTED with the details RetryInfo,
// whose delay is RetryDelay, and QuotaFailure, which names the policy:
//
//	subject: "policy:api"  description: "limit 5, window 1s"  quota_id: "api"  quota_value: 5
//
// Where no limit is known (Result.Limit is 0), description and quota_value are left out. A
// denial because of an outage, as by a [ratelimit.Fallback] to [ratelimit.DenyAll], is no
// fault of the client's: it is UNAVAILABLE, with RetryInfo alone.
func (d Decision) Status() *status.Status {
	retry := &errdetails.RetryInfo{RetryDelay: durationpb.New(d.RetryDelay())}
	if integration.IsOutageDenial(d.Result) {
		return withDetails(codes.Unavailable, rpclimit.TextUndecided, retry)
	}
	subject, description := rpclimit.Decision(d).Violation()
	return withDetails(codes.ResourceExhausted, rpclimit.Decision(d).Text(), retry,
		&errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{{
			Subject: subject, Description: description, QuotaId: d.Policy, QuotaValue: int64(d.Result.Limit),
		}}})
}

// RetryAfter returns how long to wait before a call that failed with err is made again, as the
// RetryInfo in its status says: of a server's denial, and of a client's own. ok is false if err
// has no RetryInfo.
func RetryAfter(err error) (wait time.Duration, ok bool) {
	for _, detail := range status.Convert(err).Details() {
		if retry, is := detail.(*errdetails.RetryInfo); is && retry.GetRetryDelay().CheckValid() == nil {
			return max(retry.GetRetryDelay().AsDuration(), 0), true
		}
	}
	return 0, false
}

// DefaultDenialHandler returns d.Status() as an error. The error matches
// ratelimit.ErrDenied too, for the interceptors and callers in this process.
func DefaultDenialHandler(_ context.Context, _ Call, d Decision) error {
	return &statusError{d.Status(), rpclimit.Wrapped{Err: d.Result.Err()}}
}

// DefaultErrorHandler returns the error of a call for which there is no decision. It never lets a
// call go on, and the client learns only the code of err:
//
//	CANCELLED, DEADLINE_EXCEEDED  the call's own context has ended
//	INVALID_ARGUMENT  ErrNoKey and ErrBadKey; ratelimit.ErrExceedsLimit: a cost that no wait would help
//	RESOURCE_EXHAUSTED  a limiter that returns its denials as errors: ratelimit.ErrDenied, ErrWaitTooLong
//	INTERNAL          a mistake of the service's: ratelimit.ErrInvalidConfig, ErrInvalidKey, ErrInvalidPermits, ErrCrossSlot;
//	                  a key in Redis that is damaged: ratelimit.ErrCorruptState
//	UNAVAILABLE       everything else: Redis is down, for example; with RetryInfo if there is WithOutageRetryAfter
//
// For the interceptors and callers in this process, errors.Is and errors.As find err (but io.EOF,
// which would end a stream).
func DefaultErrorHandler(ctx context.Context, _ Call, err error) error {
	code, text := rpclimit.CodeOf(ctx, err)
	st := status.New(codes.Code(code), text)
	if delay := rpclimit.RetryDelayOf(code, err); delay > 0 {
		st = withDetails(codes.Code(code), text, &errdetails.RetryInfo{RetryDelay: durationpb.New(delay)})
	}
	return &statusError{st, rpclimit.Wrapped{Err: err}}
}

// ServeInOutages is an error handler (see [WithErrorHandler]) that lets calls go on without a
// limit while there is no decision because of Redis or the network: those that
// [DefaultErrorHandler] answers with UNAVAILABLE. It answers all other errors as
// DefaultErrorHandler does, and also every error of a key function, so that no call without a key
// goes on, none after a mistake of the service, and none whose key in Redis is damaged.
//
// Make the client with [ratelimit.ClientOptions]: a call goes on only when the call to Redis has failed. A
// [ratelimit.Fallback] also has a budget, a breaker, and other policies.
func ServeInOutages(ctx context.Context, call Call, err error) error {
	if rpclimit.IsOutage(ctx, err) {
		return nil
	}
	return DefaultErrorHandler(ctx, call, err)
}

func withDetails(code codes.Code, text string, details ...protoadapt.MessageV1) *status.Status {
	plain := status.New(code, text)
	st, err := plain.WithDetails(details...)
	if err != nil { // a code that is not OK, and messages of known types
		return plain
	}
	return st
}

// A statusError is a status for clients, and its cause for this process.
type statusError struct {
	status *status.Status
	rpclimit.Wrapped
}

func (e *statusError) Error() string              { return e.status.Err().Error() }
func (e *statusError) GRPCStatus() *status.Status { return e.status }
