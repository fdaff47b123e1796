package connectlimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tryacquire/ratelimit"
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
func (d Decision) RetryDelay() time.Duration {
	wait := d.Result.RetryAfter
	if wait > math.MaxInt64-time.Millisecond {
		return wait.Truncate(time.Millisecond)
	}
	return max(time.Millisecond, (wait + time.Millisecond - 1).Truncate(time.Millisecond))
}

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
	delay := d.RetryDelay()
	retry := &errdetails.RetryInfo{RetryDelay: durationpb.New(delay)}
	cause := d.Result.Err()
	if isOutage(d.Result) {
		return withDetails(connect.CodeUnavailable, textUndecided, cause, retry)
	}
	v := &errdetails.QuotaFailure_Violation{Subject: "policy:" + d.Policy, QuotaId: d.Policy}
	if limit := d.Result.Limit; limit > 0 {
		v.Description = fmt.Sprintf("limit %d, window %v", limit, d.Result.Window)
		if d.InFlight {
			v.Description = fmt.Sprintf("limit %d, at once", limit)
		}
		v.QuotaValue = int64(limit)
	}
	text := fmt.Sprintf("the limit %q is used up, retry after %v", d.Policy, delay)
	return withDetails(connect.CodeResourceExhausted, text, cause,
		retry, &errdetails.QuotaFailure{Violations: []*errdetails.QuotaFailure_Violation{v}})
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

// The texts of errors without a decision. They say nothing of the cause.
const (
	textUndecided = "the rate limit could not be decided"
	textMistake   = "the rate limit is set up wrongly"
	textNoKey     = "the call lacks what it is limited by"
	textTooMuch   = "the call takes more than the rate limit can ever allow"
)

// DefaultDenialHandler returns d.Err().
func DefaultDenialHandler(_ context.Context, _ Call, d Decision) error { return d.Err() }

// DefaultErrorHandler returns the error of a call for which there is no decision. No call goes on
// after it, and of err it tells the client only the code:
//
//	canceled, deadline_exceeded  the call's own context has ended
//	invalid_argument  ErrNoKey and ErrBadKey; ratelimit.ErrExceedsLimit: a cost that no wait would help
//	internal          a mistake of the service's: ratelimit.ErrInvalidConfig, ErrInvalidKey, ErrInvalidPermits, ErrCrossSlot
//	unavailable       everything else: Redis is down, for example
//
// For the interceptors and callers in this process, errors.Is and errors.As find err (but io.EOF,
// which would end a stream).
func DefaultErrorHandler(ctx context.Context, _ Call, err error) error {
	code, text := codeOf(ctx, err)
	return withDetails(code, text, err)
}

// ServeInOutages is an error handler (see [WithErrorHandler]) that lets calls pass without a limit
// while there is no decision because of Redis or the network: those that [DefaultErrorHandler]
// answers with unavailable. It answers all other errors as DefaultErrorHandler does, and also
// every error of a key function, so that no call without a key goes on, and none after a mistake
// of the service.
//
// Set the client's timeouts: a call passes only when the call to Redis has failed. A
// [ratelimit.Fallback] also has a budget, a breaker, and other policies.
func ServeInOutages(ctx context.Context, call Call, err error) error {
	if code, _ := codeOf(ctx, err); code == connect.CodeUnavailable && !isKeyError(err) {
		return nil
	}
	return DefaultErrorHandler(ctx, call, err)
}

func codeOf(ctx context.Context, err error) (connect.Code, string) {
	is := func(sentinels ...error) bool {
		return slices.ContainsFunc(sentinels, func(s error) bool { return errors.Is(err, s) })
	}
	switch end := endOf(ctx); {
	case is(ratelimit.ErrInvalidConfig, ratelimit.ErrInvalidKey, ratelimit.ErrInvalidPermits, ratelimit.ErrCrossSlot):
		return connect.CodeInternal, textMistake
	case is(ErrNoKey, ErrBadKey):
		return connect.CodeInvalidArgument, textNoKey
	case is(ratelimit.ErrExceedsLimit):
		return connect.CodeInvalidArgument, textTooMuch
	case errors.Is(end, context.DeadlineExceeded):
		return connect.CodeDeadlineExceeded, end.Error()
	case end != nil:
		return connect.CodeCanceled, end.Error()
	}
	return connect.CodeUnavailable, textUndecided
}

func withDetails(code connect.Code, text string, cause error, details ...proto.Message) *connect.Error {
	err := connect.NewError(code, &hidden{text, cause})
	for _, message := range details {
		if detail, fault := connect.NewErrorDetail(message); fault == nil {
			err.AddDetail(detail)
		}
	}
	return err
}

// hidden has a text for clients, and its cause for this process only, where errors.Is and
// errors.As find it: connect sends the text of the error inside a connect.Error. It is never
// io.EOF, as the cause may be when Redis closes a connection: connect would take that for the end
// of a stream.
type hidden struct {
	text  string
	cause error
}

func (e *hidden) Error() string        { return e.text }
func (e *hidden) Is(target error) bool { return target != io.EOF && errors.Is(e.cause, target) }
func (e *hidden) As(target any) bool   { return errors.As(e.cause, target) }

const (
	nameRetryAfter = "Retry-After"
	namePushback   = "Grpc-Retry-Pushback-Ms"
	neverRetry     = "-1"
)

// pushedBack is err with the metadata that tells clients of the call's protocol when to retry. It
// changes a copy: a denial handler may return one error again and again.
func (l *limit) pushedBack(ctx context.Context, call Call, err error, delay time.Duration, midway bool) error {
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
	switch {
	case call.Peer.Protocol == connect.ProtocolConnect:
		seconds := (delay-1)/time.Second + 1 // rounded up; delay is more than 0
		copied.Meta()[nameRetryAfter] = []string{strconv.FormatInt(int64(seconds), 10)}
	case midway:
		copied.Meta()[namePushback] = []string{neverRetry}
	default:
		copied.Meta()[namePushback] = []string{l.pushback(ctx, delay)}
	}
	return copied
}

// pushback tells a client's retry policy when to retry, or not to where no retry can help.
func (l *limit) pushback(ctx context.Context, delay time.Duration) string {
	deadline, ok := ctx.Deadline()
	if delay > l.maxPushback || ok && time.Until(deadline) <= delay {
		return neverRetry
	}
	return strconv.FormatInt(delay.Milliseconds(), 10)
}
