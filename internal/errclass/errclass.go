// Package errclass says what an error means: whose fault it is, and its short name for metrics and logs. Its two tables
// hold every error that can be matched, and every error of a server that is not simply an outage, so that limiters,
// Fallback, breakers, observers, HTTP and RPC agree. The packages that export the errors document them.
package errclass

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"
)

// A Class is whose fault it is that there is no permit.
type Class int

const (
	// Outage: Redis or the network. Only of this class do a Fallback ask its secondary, a breaker
	// count a failure, and ServeInOutages let a call pass. It is also the class of unknown errors.
	Outage Class = iota
	// Mistake: the program's. Nothing was decided, and it fails again until the program is changed.
	Mistake
	// NoKey: the client's, which lacks what its limit's key is made of.
	NoKey
	// TooMuch: a call for more permits than the limiter can ever allow.
	TooMuch
	// Decision: there is a decision, against the caller.
	Decision
	// Lost: permits that a hold had are gone, as Redis or the clock says.
	Lost
	// Damaged: one key holds what no limiter of its kind wrote. Redis works, so it is no outage:
	// a secondary that allowed everything would take the limit off this key for good.
	Damaged
	// Unpicked: the caller's function that picks the limiter of a call failed, so that the limit is not
	// known. It says nothing about Redis.
	Unpicked
)

// Answered reports whether Redis has answered.
func (c Class) Answered() bool { return c == Decision || c == Lost }

// IsMistake reports whether the call itself was wrong, so that nothing was decided.
func (c Class) IsMistake() bool { return c == Mistake || c == NoKey || c == TooMuch }

// A Kind is what is known of an error.
type Kind struct {
	Class Class
	Type  string // a short name, which holds nothing of the error's text
}

// The types that others ask for.
const (
	TypeCanceled = "context_canceled"
	TypeOther    = "_OTHER"
)

// sentinels are the errors that errors.Is recognizes. The first match counts: an error that joins
// an outage with a mistake or a damaged key, as that of a Fallback both of whose limiters failed,
// is never treated as an outage alone.
var sentinels = []struct {
	is error
	Kind
}{
	{ErrCorruptState, Kind{Damaged, "corrupt_state"}},
	{ErrNoKey, Kind{NoKey, "no_key"}},
	{ErrBadKey, Kind{NoKey, "bad_key"}},
	{ErrInvalidKey, Kind{Mistake, "invalid_key"}},
	{ErrInvalidPermits, Kind{Mistake, "invalid_permits"}},
	{ErrExceedsLimit, Kind{TooMuch, "exceeds_limit"}},
	{ErrInvalidConfig, Kind{Mistake, "invalid_config"}},
	{ErrCrossSlot, Kind{Mistake, "cross_slot"}},
	{ErrIDReused, Kind{Mistake, "id_reused"}},
	{ErrSettled, Kind{Mistake, "settled"}},
	{ErrDenied, Kind{Decision, "denied"}},
	{ErrWaitTooLong, Kind{Decision, "wait_too_long"}},
	{ErrTooMuchDebt, Kind{Decision, "too_much_debt"}},
	{ErrTooManyTickets, Kind{Decision, "too_many_tickets"}},
	{ErrLeaseLost, Kind{Lost, "lease_lost"}},
	{ErrOverBudget, Kind{Outage, "over_budget"}},
	{ErrBreakerOpen, Kind{Outage, "breaker_open"}},
	{context.Canceled, Kind{Outage, TypeCanceled}}, // whether it is the caller's own, the context says
	{context.DeadlineExceeded, Kind{Outage, "context_deadline_exceeded"}},
	{redis.ErrPoolTimeout, Kind{Outage, "pool_timeout"}},
	{redis.ErrClosed, Kind{Outage, "client_closed"}},
	{io.EOF, Kind{Outage, "connection"}},
	{io.ErrUnexpectedEOF, Kind{Outage, "connection"}},
}

// errNoCommand is of a server that stays as it is until somebody configures it: no outage, which would
// take the limits off for good.
var errNoCommand = fmt.Errorf("%w: the server lacks a command that limiters need; "+
	"rename no command, and use a server that runs Lua scripts", ErrInvalidConfig)

// errNoLua is of a Valkey, from 9.1 on, that was built without Lua: it knows EVALSHA and EVAL, and answers the first with
// NOSCRIPT.
var errNoLua = fmt.Errorf("%w: the server cannot run Lua scripts; load Valkey's Lua module (loadmodule libvalkeylua.so), "+
	"or use a server that was built with Lua", ErrInvalidConfig)

// errForbidden is of a user who may not run a command, or may not touch a key. An access list stays as it is too. Not so
// NOAUTH and WRONGPASS, which are outages: while a password is changed, some connections have the old one.
var errForbidden = fmt.Errorf("%w: the server's user may not do what limiters need; give it the privileges of docs/privileges.md",
	ErrInvalidConfig)

// replies are the errors of servers and of the scripts, by the words that they begin with. is is
// the error that a caller can match.
var replies = []struct {
	words string
	is    error
	Kind
}{
	{"CORRUPT", ErrCorruptState, Kind{Damaged, "corrupt_state"}}, // the scripts' own
	{"REUSED", ErrIDReused, Kind{Mistake, "id_reused"}},          // of all_once.lua
	{"WRONGTYPE", ErrCorruptState, Kind{Damaged, "corrupt_state"}},
	{"value is not an integer", ErrCorruptState, Kind{Damaged, "corrupt_state"}},  // INCRBY's, for a number that INCRBY does not write
	{"CROSSSLOT", ErrCrossSlot, Kind{Mistake, "cross_slot"}},                      // of a node of a cluster
	{"Error compiling script", ErrInvalidConfig, Kind{Mistake, "invalid_config"}}, // such as one of too many limiters
	{"unknown command", errNoCommand, Kind{Mistake, "invalid_config"}},
	{"Could not find scripting engine", errNoLua, Kind{Mistake, "invalid_config"}},
	{"Unknown Redis command called from script", errNoCommand, Kind{Mistake, "invalid_config"}},
	{"NOPERM", errForbidden, Kind{Mistake, "invalid_config"}},
	{"The user executing the script can't", errForbidden, Kind{Mistake, "invalid_config"}},
	{"ACL failure in script", errForbidden, Kind{Mistake, "invalid_config"}}, // of later servers
	{"BUSY", nil, Kind{Outage, "redis_busy"}},
	{"CLUSTERDOWN", nil, Kind{Outage, "redis_clusterdown"}},
	{"LOADING", nil, Kind{Outage, "redis_loading"}},
	{"MASTERDOWN", nil, Kind{Outage, "redis_masterdown"}},
	{"MISCONF", nil, Kind{Outage, "redis_misconf"}},
	{"NOAUTH", nil, Kind{Outage, "redis_noauth"}},
	{"NOREPLICAS", nil, Kind{Outage, "redis_noreplicas"}},
	{"OOM", nil, Kind{Outage, "redis_oom"}},
	{"READONLY", nil, Kind{Outage, "redis_readonly"}},
	{"TRYAGAIN", nil, Kind{Outage, "redis_tryagain"}},
	{"WRONGPASS", nil, Kind{Outage, "redis_wrongpass"}},
	{"", nil, Kind{Outage, "redis"}}, // any other
}

// A PickError is the error of a function that picks the limiter of a call. What it wraps is not about Redis: a
// timeout there is that of a database. Only a mistake stays a mistake.
type PickError struct{ Err error }

func (e *PickError) Error() string { return e.Err.Error() }

func (e *PickError) Unwrap() error { return e.Err }

// Of returns what is known of err, which is not nil.
func Of(err error) Kind {
	unpicked := errors.As(err, new(*PickError))
	for i := range sentinels {
		if errors.Is(err, sentinels[i].is) && (!unpicked || sentinels[i].Class.IsMistake()) {
			return sentinels[i].Kind
		}
	}
	if unpicked {
		return Kind{Unpicked, "pick_failed"}
	}
	if kind, _, ok := ofReply(err); ok {
		return kind
	}
	var network net.Error
	switch {
	case errors.As(err, &network) && network.Timeout():
		return Kind{Outage, "timeout"}
	case errors.As(err, &network), errors.As(err, new(*net.OpError)):
		return Kind{Outage, "connection"}
	}
	return Kind{Outage, TypeOther}
}

// Is reports whether err is an error of this class. nil is of none.
func Is(err error, class Class) bool { return err != nil && Of(err).Class == class }

// IsOfOneCall reports whether err is about what one key holds, or one id stands for: it says nothing of calls that were sent
// with it.
func IsOfOneCall(err error) bool {
	return err != nil && (Of(err).Class == Damaged || errors.Is(Matchable(err), ErrIDReused))
}

// IsMistake reports whether err says that the call itself was wrong.
func IsMistake(err error) bool { return err != nil && Of(err).Class.IsMistake() }

// Matchable returns err, of a server or a script, joined with the error that a caller can match, if
// there is one.
func Matchable(err error) error {
	if _, is, _ := ofReply(err); is != nil {
		return errors.Join(is, err)
	}
	return err
}

// ofReply finds a server's error. go-redis removes no "ERR " in front of the words.
func ofReply(err error) (kind Kind, is error, ok bool) {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return Kind{}, nil, false
	}
	text := strings.TrimPrefix(reply.Error(), "ERR ")
	for _, r := range replies {
		if rest, found := strings.CutPrefix(text, r.words); found && (r.words == "" || rest == "" || rest[0] == ' ') {
			return r.Kind, r.is, true
		}
	}
	return Kind{}, nil, false
}
