// Package state reads what Redis holds of limiters, without their scripts, and puts it in words. It
// only looks: GET, LRANGE, HMGET, ZRANGE, ZCOUNT, PTTL and TIME.
//
// A key does not hold its limiter's limit. So a state says how many permits are used, and not how
// many are left: that is for whoever knows the limit, such as a limiter's Peek.
package state

import (
	"errors"
	"time"

	"github.com/tryacquire/ratelimit/internal/algorithms"
	"github.com/tryacquire/ratelimit/internal/keyname"
)

// A State is what a key holds, at an instant of the server's clock, as the rule that wrote it
// counts.
type State struct {
	Name  string        // in Redis
	Parts keyname.Parts // of the name

	// Exists is whether the key holds anything. Without it, nothing is used.
	Exists bool

	// Err says what is wrong with the key: it holds no state, or Redis did not allow to read it.
	Err error

	// Used are the permits that count now: taken within the window, missing of a token bucket (parts
	// of a permit rounded up), in a leaky bucket, or held. If AtMost is set, more entries of a log
	// have left its window than are read, and as many as Used were taken since the log began.
	Used   int64
	AtMost bool

	// Empty is how long it takes, if nobody takes more, until nothing is used. Of a bucket with aligned steps, of which
	// its state does not tell, it is up to a step too long, and Used what was missing then.
	Empty time.Duration

	// Leased is how long processes may spend slices of it that are out.
	Leased time.Duration

	// Weight is that of a tenant, of a key that holds its share of a limit, 0 of all others.
	Weight int64

	// Promised is how long permits are promised to callers that wait.
	Promised time.Duration

	// Paused is how long the key is still paused. Strikes are those that brought pauses and are not forgotten.
	Paused  time.Duration
	Strikes int64

	// Expires is in how long Redis deletes the key; negative: never, until a limiter repairs that.
	Expires time.Duration

	Rule Rule

	// CallersClock is whether instants of the state are those of a caller's clock (WithClock).
	CallersClock bool
}

// A Rule is what a state says of the rule that wrote it.
type Rule struct {
	Permits int64         // that a bucket gets back each Per; 0 of all others
	Per     time.Duration //
	Every   time.Duration // how far apart the steps of a bucket are, if more than a microsecond

	Window time.Duration // the longest of the rules that took permits; the lease of what is held
	Slot   time.Duration // what permits of a log share an entry by, if more than a microsecond
	Others int           // longer windows of other limiters that the key keeps permits for
}

var errUnknown = errors.New("it is of a state format that this version does not know; use the program of the version that wrote it")

// Kind names the algorithm of an id.
func Kind(id string) string {
	switch a, ok := algorithms.Of(id); {
	case !ok:
		return id
	case id == algorithms.InFlight:
		return "permits in flight"
	case a.Storage != "":
		return a.Title + " (" + a.Storage + ")"
	default:
		return a.Title
	}
}
