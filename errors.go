package ratelimit

import (
	"errors"
	"fmt"
	"time"

	"github.com/tryacquire/ratelimit/internal/errclass"
)

// The errors that a caller can match with errors.Is. Any other error means that there is no decision; if a reply was lost,
// the permits may have been taken. Such an error wraps its cause, names the limiter and the key, and is joined with the
// context's error if the context had ended. redis.HasErrorPrefix finds the codes of the server's errors.
var (
	// ErrInvalidConfig: a constructor got a value that cannot work; the error names it and what would be right. Methods
	// return it for a limiter that no constructor made, for a clock out of range, a maxWait below 0, a Choice that
	// picked nil, claims that cannot be decided together, and a server that cannot run the scripts as configured.
	ErrInvalidConfig = errclass.ErrInvalidConfig
	// ErrInvalidKey: the key is empty, or longer than 4,096 bytes; use a hash of longer keys.
	ErrInvalidKey = errclass.ErrInvalidKey
	// ErrInvalidPermits: fewer than one permit was asked for, or Settle got a number below 0.
	ErrInvalidPermits = errclass.ErrInvalidPermits
	// ErrExceedsLimit: more permits were asked for than the limiter can ever allow, so that waiting does not help.
	ErrExceedsLimit = errclass.ErrExceedsLimit
	// ErrCrossSlot: the keys of limiters that decide together may be in several slots of a cluster, or on several shards
	// of a ring. It is a mistake of the caller, never an outage: nothing was executed.
	ErrCrossSlot = errclass.ErrCrossSlot
	// ErrTooMuchDebt: nothing was charged, because the state of the key cannot hold so large a debt.
	ErrTooMuchDebt = errclass.ErrTooMuchDebt
	// ErrTooManyTickets: the key has 10,000 tickets with a lease ([WithTicketLease]) that are not settled. Nothing was taken.
	ErrTooManyTickets = errclass.ErrTooManyTickets
	// ErrIDReused: the id of [TryAcquireOnce] stands for other claims, or for a limit that has changed; that of [Claim.As]
	// for another number of permits. Nothing was taken.
	ErrIDReused = errclass.ErrIDReused
	// ErrSettled: the ticket has been settled before, or an earlier Settle failed after it may have been settled.
	ErrSettled = errclass.ErrSettled
	// ErrDenied: the call was denied. It matches every *DeniedError.
	ErrDenied = errclass.ErrDenied
	// ErrWaitTooLong: the permits would come later than the context's deadline, or than maxWait. It matches every
	// *WaitError.
	ErrWaitTooLong = errclass.ErrWaitTooLong
	// ErrCorruptState: the key holds something that no limiter of this kind wrote. Nothing was changed; Reset deletes it.
	// It is about one key, and neither a mistake nor an outage: a [Fallback] returns it.
	ErrCorruptState = errclass.ErrCorruptState
	// ErrLeaseLost: a [Hold] no longer has its permits. Its lease ended and another hold needed the place, it was
	// released, the key was reset, or Redis has forgotten it. It is also the cause with which Do cancels the work. Of a
	// [Ticket]: its lease ended, and its permits were given back.
	ErrLeaseLost = errclass.ErrLeaseLost
	// ErrOverBudget is why a [Fallback] did not wait for its primary: the call took longer than the budget, or as many
	// abandoned calls as a Fallback allows are still running.
	ErrOverBudget = errclass.ErrOverBudget
	// ErrBreakerOpen is why a [Fallback] did not ask its primary: the last calls failed, and it is not yet time to try
	// again, or another call is trying.
	ErrBreakerOpen = errclass.ErrBreakerOpen
)

var (
	errEmptyKey = fmt.Errorf("%w: it is empty", ErrInvalidKey)

	// errUnmade is returned by the methods of a limiter's zero value.
	errUnmade = invalidConfig("the limiter was not made by its constructor")

	errCancelled = errors.New("the reservation was cancelled")
	errLateReply = errors.New("ratelimit: the reply came when the lease could have ended")
	errNoWork    = invalidConfig("Do: the work is nil")
)

func errTooFew(n int) error { return fmt.Errorf("%w: %d; ask for at least 1", ErrInvalidPermits, n) }

// A DeniedError is a denial as an error, see [Result.Err].
type DeniedError struct {
	Key    string // optional; the caller may set it, Result.Err leaves it empty
	Result Result
}

// Error says when to try again.
func (e *DeniedError) Error() string {
	if e == nil {
		return ErrDenied.Error()
	}
	if e.Key == "" {
		return fmt.Sprintf("ratelimit: denied, retry after %v", e.Result.RetryAfter)
	}
	return fmt.Sprintf("ratelimit: %s denied, retry after %v", shortKey(e.Key), e.Result.RetryAfter)
}

// Is reports whether target is ErrDenied.
func (e *DeniedError) Is(target error) bool { return target == ErrDenied }

// A WaitError says why a wait or a reservation did not begin: the permits would come
// too late. No permits were taken, or they were given back as [Reservation.Cancel] does
// it.
type WaitError struct {
	Key  string
	Wait time.Duration // how long the wait would have been
}

// Error says how long the wait would have been.
func (e *WaitError) Error() string {
	if e == nil {
		return ErrWaitTooLong.Error()
	}
	return fmt.Sprintf("ratelimit: %s would have to wait %v, which is too long", shortKey(e.Key), e.Wait)
}

// Is reports whether target is ErrWaitTooLong.
func (e *WaitError) Is(target error) bool { return target == ErrWaitTooLong }

// shortKey quotes a key for a message. It cuts a long one, so that a hostile key cannot
// flood a log.
func shortKey(key string) string {
	const most = 100
	if len(key) <= most {
		return fmt.Sprintf("%q", key)
	}
	return fmt.Sprintf("%q… (%d bytes)", key[:most], len(key))
}

func invalidConfig(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalidConfig, fmt.Sprintf(format, args...))
}
