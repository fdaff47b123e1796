package connectlimit

import (
	"context"
	"errors"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/integration"
	"github.com/tryacquire/ratelimit/internal/rpclimit"
)

// A Decision is what the limiter answered to a call that is denied, and what the error follows
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

// Err is what [DefaultDenialHandler] answers: connect.CodeResourceExhausted with the details
// RetryInfo, whose delay is RetryDelay, and QuotaFailure, which names the policy:
//
//	subject: "policy:api"  description: "limit 5, window 1s"  quota_id: "api"  quota_value: 5
//
// Where no limit is known (Result.Limit is 0), description and quota_value are left out. A
// denial because of an outage, as by a [ratelimit.Fallback] to [ratelimit.DenyAll], is no
// fault of the client's: it is connect.CodeUnavailable, with RetryInfo alone. The error matches
// ratelimit.ErrDenied too, for the interceptors and callers in this process.
func (d Decision) Err() *connect.Error {
	retry := &errdetails.RetryInfo{RetryDelay: durationpb.New(d.RetryDelay())}
	cause := d.Result.Err()
	if integration.IsOutageDenial(d.Result) {
		return withDetails(connect.CodeUnavailable, rpclimit.TextUndecided, cause, retry)
	}
	subject, description := rpclimit.Decision(d).Violation()
	return withDetails(connect.CodeResourceExhausted, rpclimit.Decision(d).Text(), cause, retry,
		&errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{{
			Subject: subject, Description: description, QuotaId: d.Policy, QuotaValue: int64(d.Result.Limit),
		}}})
}

// RetryAfter returns how long to wait before a call that failed with err is made again, as the
// RetryInfo in its details says: of a server's denial, and of a client's own. ok is false if err
// has no RetryInfo.
func RetryAfter(err error) (wait time.Duration, ok bool) {
	var failure *connect.Error
	if !errors.As(err, &failure) {
		return 0, false
	}
	for _, detail := range failure.Details() {
		value, err := detail.Value()
		if err != nil {
			continue
		}
		if retry, is := value.(*errdetails.RetryInfo); is && retry.GetRetryDelay().CheckValid() == nil {
			return max(retry.GetRetryDelay().AsDuration(), 0), true
		}
	}
	return 0, false
}

// DefaultDenialHandler returns d.Err().
func DefaultDenialHandler(_ context.Context, _ Call, d Decision) error { return d.Err() }

// DefaultErrorHandler returns the error of a call for which there is no decision. It never lets a
// call go on, and the client learns only the code of err:
//
//	canceled, deadline_exceeded  the call's own context has ended
//	invalid_argument  ErrNoKey and ErrBadKey; ratelimit.ErrExceedsLimit: a cost that no wait would help
//	resource_exhausted  a limiter that returns its denials as errors: ratelimit.ErrDenied, ErrWaitTooLong
//	internal          a mistake of the service's: ratelimit.ErrInvalidConfig, ErrInvalidKey, ErrInvalidPermits, ErrCrossSlot;
//	                  a key in Redis that is damaged: ratelimit.ErrCorruptState
//	unavailable       everything else: Redis is down, for example; with RetryInfo if there is WithOutageRetryAfter
//
// For the interceptors and callers in this process, errors.Is and errors.As find err (but io.EOF,
// which would end a stream).
func DefaultErrorHandler(ctx context.Context, _ Call, err error) error {
	code, text := rpclimit.CodeOf(ctx, err)
	if delay := rpclimit.RetryDelayOf(code, err); delay > 0 {
		return withDetails(connect.Code(code), text, err, &errdetails.RetryInfo{RetryDelay: durationpb.New(delay)})
	}
	return withDetails(connect.Code(code), text, err)
}

// ServeInOutages is an error handler (see [WithErrorHandler]) that lets calls go on without a
// limit while there is no decision because of Redis or the network: those that
// [DefaultErrorHandler] answers with unavailable. It answers all other errors as
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

func withDetails(code connect.Code, text string, cause error, details ...proto.Message) *connect.Error {
	err := connect.NewError(code, &hidden{text, rpclimit.Wrapped{Err: cause}})
	for _, message := range details {
		if detail, fault := connect.NewErrorDetail(message); fault == nil {
			err.AddDetail(detail)
		}
	}
	return err
}

// hidden has a text for clients, and its cause for this process: connect sends the text of the
// error inside a connect.Error.
type hidden struct {
	text string
	rpclimit.Wrapped
}

func (e *hidden) Error() string { return e.text }

const (
	nameRetryAfter = "Retry-After"
	namePushback   = "Grpc-Retry-Pushback-Ms"
)

// withMetadata is err with the metadata that tells clients of the call's protocol when to retry.
func withMetadata(_ context.Context, call Call, err error, delay time.Duration, pushback string) error {
	copied := clone(err)
	if call.Peer.Protocol == connect.ProtocolConnect {
		seconds := (delay-1)/time.Second + 1 // rounded up; delay is more than 0
		copied.Meta()[nameRetryAfter] = []string{strconv.FormatInt(int64(seconds), 10)}
	} else {
		copied.Meta()[namePushback] = []string{pushback}
	}
	return copied
}

// withoutCaching is err with the fields that keep caches from storing it, as RFC 6585 asks for: the answer to a GET is
// not that of the next. Connect adds them to what a middleware outside has set, and of a list no-store counts.
func withoutCaching(call Call, err error) error {
	if call.Peer.Protocol != connect.ProtocolConnect {
		return err
	}
	copied := clone(err)
	for _, name := range []string{"Cache-Control", "Cdn-Cache-Control", "Surrogate-Control"} {
		copied.Meta()[name] = []string{"no-store"}
	}
	return copied
}

// clone is a copy, as a connect.Error, because a handler may return one error again and again.
func clone(err error) *connect.Error {
	var failure *connect.Error
	if !errors.As(err, &failure) {
		failure = connect.NewError(connect.CodeUnknown, err)
	}
	copied := connect.NewError(failure.Code(), failure.Unwrap())
	for _, detail := range failure.Details() {
		copied.AddDetail(detail)
	}
	if !connect.IsWireError(failure) { // the header of another server's answer stays here, as connect has it
		for name, values := range failure.Meta() {
			copied.Meta()[name] = values
		}
	}
	return copied
}
