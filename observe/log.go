package observe

import (
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"hash/maphash"
	"log/slog"
	"sync"
	"time"

	"github.com/tryacquire/ratelimit"
)

// A Log writes a sample of the denials and failures to a [slog.Logger]: one line for a limiter
// and a key, and no further line for them in the next minute (see [WithEvery]). The line after
// that says how many denials were left out.
//
//	WARN rate limit exceeded limiter=api source=redis n=1 limit=20 window=2s retry_after=100ms
//	WARN rate limit exceeded limiter=api source=memory n=1 limit=20 window=2s retry_after=40ms left_out=118
//	ERROR rate limiter failed limiter=api call=acquire source=redis error.type=timeout
//	WARN rate limiter uses its fallback limiter=api error.type=breaker_open left_out=3120
//	WARN circuit breaker changed limiter=api from=closed to=open open=1
//
// Failures are sampled by limiter, call and [ErrorType], and the answers of a Fallback's
// secondary by limiter and ErrorType of the reason. A call whose caller cancelled its
// context is not logged.
//
// The changes of all breakers are those of one outage: one line when the first opens, one when
// the last closes, and at most one a minute in between. open is how many are not closed then, and
// left_out how many changes were not logged. If breakers open and close all the time, that is
// logged every six seconds (a tenth of WithEvery).
//
// Keys are left out unless [WithKeys] says otherwise. The texts of errors are always left out,
// because they hold the key.
//
// At most 100 lines (see [WithMaxLines]) about denials are written in any minute, and as many
// about failures and fallbacks, not counting those of breakers. The two have a bound each, so
// that a flood of denied keys does not hide an outage. What is left out because of a bound is
// counted too: others_left_out in the next line of the same bound is how many denials, or
// failures and fallbacks, of other limiters, keys or kinds were not logged. So an attack with
// many keys does not fill the log, and the memory is bounded: 200 bytes for each of these lines.
// The logger is called without a lock held. Log is safe for concurrent use.
type Log struct {
	logger *slog.Logger
	every  time.Duration
	most   int
	keys   Keys
	now    func() time.Time
	seed   maphash.Seed

	mu                sync.Mutex // guards what follows
	denials, troubles samples    // failures and fallbacks are troubles
	breakers          breakers
}

// samples are the lines of one budget: a flood of denied keys leaves that of an outage alone.
type samples struct {
	known   map[uint64]*list.Element // by hash, so that no key is kept
	order   *list.List               // of *line, the one that was written the longest ago first
	leftOut int                      // of those that are not known
}

func newSamples() samples { return samples{known: map[uint64]*list.Element{}, order: list.New()} }

// A line is what was written about a limiter and a key.
type line struct {
	hash    uint64
	until   time.Time // nothing more is written about them before
	leftOut int       // since then
}

// A LogOption is [WithEvery], [WithMaxLines] or [WithKeys].
type LogOption func(*Log) error

// WithEvery writes one line for a limiter and a key in every interval of d; without it d is a
// minute. d is at least 1ms.
func WithEvery(d time.Duration) LogOption {
	return func(l *Log) error {
		if d < time.Millisecond {
			return invalidConfig("WithEvery: %v is below 1ms", d)
		}
		l.every = d
		return nil
	}
}

// WithMaxLines writes at most n lines about denials in any interval of WithEvery, and at most n
// about failures and fallbacks; without it, 100. n is 1 to 1,000,000.
func WithMaxLines(n int) LogOption {
	return func(l *Log) error {
		if n < 1 || n > 1_000_000 {
			return invalidConfig("WithMaxLines: %d is not between 1 and 1000000", n)
		}
		l.most = n
		return nil
	}
}

// Keys says what a [Log] writes of a key.
type Keys int

const (
	// NoKeys: nothing.
	NoKeys Keys = iota
	// HashedKeys: the first 16 hex digits of its SHA-256, as key.sha256. It shows which
	// lines are about the same key. But a reader who can guess a key can check the guess:
	// an address or a user's number is found in seconds.
	HashedKeys
	// PlainKeys: the key, cut at 200 bytes. Use it only if your keys may be in logs.
	PlainKeys
)

// WithKeys says what is written of a key; without it, [NoKeys].
func WithKeys(k Keys) LogOption {
	return func(l *Log) error {
		if k < NoKeys || k > PlainKeys {
			return invalidConfig("WithKeys: %d is not one of NoKeys, HashedKeys and PlainKeys", int(k))
		}
		l.keys = k
		return nil
	}
}

// NewLog returns a Log that writes to logger. The error wraps [ratelimit.ErrInvalidConfig]:
// the logger or an option is nil, or an option's value cannot work.
func NewLog(logger *slog.Logger, opts ...LogOption) (*Log, error) {
	if logger == nil {
		return nil, invalidConfig("NewLog: the logger is nil; give slog.Default()")
	}
	l := &Log{
		logger: logger, every: time.Minute, most: 100, now: time.Now,
		seed: maphash.MakeSeed(), denials: newSamples(), troubles: newSamples(),
	}
	for i, o := range opts {
		if o == nil {
			return nil, invalidConfig("NewLog: option %d is nil", i+1)
		}
		if err := o(l); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// Observe is the observer, for [ratelimit.WithObserver].
func (l *Log) Observe(ctx context.Context, o ratelimit.Observation) {
	if l == nil || l.logger == nil { // NewLog did not make it
		return
	}
	switch {
	case o.Call == "breaker":
		l.breakerChanged(ctx, o)
	case o.Outcome == ratelimit.OutcomeFailed:
		kind := ErrorType(o.Err)
		l.write(ctx, slog.LevelError, "rate limiter failed", subject{o.Limiter, o.Call, kind}, func() []slog.Attr {
			return []slog.Attr{
				slog.String("call", string(o.Call)), slog.String("source", o.Source.String()), slog.String("error.type", kind),
			}
		})
	case o.Outcome == ratelimit.OutcomeDenied:
		l.write(ctx, slog.LevelWarn, "rate limit exceeded", subject{o.Limiter, "", o.Key}, func() []slog.Attr { return l.denied(o) })
	}
	if o.Reason != nil {
		kind := ErrorType(o.Reason)
		l.write(ctx, slog.LevelWarn, "rate limiter uses its fallback", subject{o.Limiter, "outage", kind}, func() []slog.Attr {
			return []slog.Attr{slog.String("error.type", kind)}
		})
	}
}

// breakerChanged writes the change of a breaker, if it is one of those that are written.
func (l *Log) breakerChanged(ctx context.Context, o ratelimit.Observation) {
	if !l.logger.Enabled(ctx, slog.LevelWarn) {
		return
	}
	l.mu.Lock()
	written := l.breakers.change(o, l.now(), l.every)
	open, leftOut := l.breakers.open, l.breakers.leftOut
	if written {
		l.breakers.leftOut = 0
	}
	l.mu.Unlock()
	if !written {
		return
	}
	attrs := []slog.Attr{slog.String("limiter", o.Limiter),
		slog.String("from", o.From.String()), slog.String("to", o.Breaker.String()), slog.Int("open", open)}
	if leftOut > 0 {
		attrs = append(attrs, slog.Int("left_out", leftOut))
	}
	l.logger.LogAttrs(ctx, slog.LevelWarn, "circuit breaker changed", attrs...)
}

// denied says what was denied.
func (l *Log) denied(o ratelimit.Observation) []slog.Attr {
	attrs := []slog.Attr{slog.String("source", o.Source.String())}
	switch l.keys {
	case HashedKeys:
		sum := sha256.Sum256([]byte(o.Key))
		attrs = append(attrs, slog.String("key.sha256", hex.EncodeToString(sum[:8])))
	case PlainKeys:
		attrs = append(attrs, slog.String("key", o.Key[:min(len(o.Key), 200)]))
	}
	return append(attrs, slog.Int("n", o.N), slog.Int("limit", o.Result.Limit),
		slog.Duration("window", o.Result.Window), slog.Duration("retry_after", o.Result.RetryAfter))
}

// A subject is what lines are sampled by: a limiter, and the key of a denial (call is 0), the
// type of a failed call's error, or the type of the reason for a fallback (call is -1).
type subject struct {
	limiter string
	call    ratelimit.Call
	what    string
}

// write writes a line, unless one about the same was written a short while ago.
func (l *Log) write(ctx context.Context, level slog.Level, message string, about subject, attrs func() []slog.Attr) {
	if !l.logger.Enabled(ctx, level) {
		return
	}
	leftOut, others, ok := l.sample(about)
	if !ok {
		return
	}
	all := append([]slog.Attr{slog.String("limiter", about.limiter)}, attrs()...)
	if leftOut > 0 {
		all = append(all, slog.Int("left_out", leftOut))
	}
	if others > 0 {
		all = append(all, slog.Int("others_left_out", others))
	}
	l.logger.LogAttrs(ctx, level, message, all...)
}

// sample reports whether a line about it is to be written, and how many
// were left out since the last one, of the same and of others that are not known.
func (l *Log) sample(about subject) (leftOut, others int, ok bool) {
	hash := maphash.Comparable(l.seed, about)
	l.mu.Lock()
	defer l.mu.Unlock()
	of := &l.denials
	if about.call != "" {
		of = &l.troubles
	}
	return of.sample(hash, l.now(), l.every, l.most)
}

func (l *samples) sample(hash uint64, now time.Time, every time.Duration, most int) (leftOut, others int, ok bool) {
	e := l.known[hash]
	if e == nil {
		if len(l.known) == most {
			oldest := l.order.Front().Value.(*line)
			if now.Before(oldest.until) {
				l.leftOut++
				return 0, 0, false
			}
			l.leftOut += oldest.leftOut
			delete(l.known, oldest.hash)
			l.order.Remove(l.order.Front())
		}
		e = l.order.PushBack(&line{hash: hash})
		l.known[hash] = e
	}
	written := e.Value.(*line)
	if now.Before(written.until) {
		written.leftOut++
		return 0, 0, false
	}
	leftOut, others = written.leftOut, l.leftOut
	written.until, written.leftOut, l.leftOut = now.Add(every), 0, 0
	l.order.MoveToBack(e)
	return leftOut, others, true
}
