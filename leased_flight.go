package ratelimit

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/tryacquire/ratelimit/internal/await"
	"github.com/tryacquire/ratelimit/internal/decision"
	"github.com/tryacquire/ratelimit/internal/exact"
	"github.com/tryacquire/ratelimit/internal/lease"
	"github.com/tryacquire/ratelimit/internal/redisexec"
)

// land waits for a flight, and returns its error or that of ctx.
func (l *Leased) land(ctx context.Context, f *lease.Flight) error {
	select {
	case <-f.Over():
		return f.Outcome().Err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// direct asks for n permits without a slice.
func (l *Leased) direct(ctx context.Context, key string, n int, f *lease.Flight) (Result, error) {
	r, err := l.limiter.TryAcquireN(ctx, key, n)
	if err != nil {
		return r, err
	}
	reply := l.reply(r)
	if r.Allowed {
		reply.Taken = n
	}
	f.Landed(reply, l.now())
	return r, nil
}

// flightTime bounds what nobody waits for: no slice lasts longer. A client without timeouts may never return.
const flightTime = 10 * time.Second

// fly sends what a flight asks for in goroutines of their own.
func (l *Leased) fly(f *lease.Flight) {
	for _, u := range f.Back {
		go l.giveBackInTime(f.Key(), u)
	}
	if f.Ahead != nil {
		go l.ask(f.Ahead)
	}
	if f.Long > 0 {
		go l.ask(f)
	}
}

// ask asks Redis for a slice. It is called in a goroutine of its own, because whoever needs the slice may leave.
func (l *Leased) ask(f *lease.Flight) {
	await.GrowStack()
	ctx, cancel := context.WithTimeout(context.Background(), flightTime)
	defer cancel()
	began := l.watch.begin()
	o := Observation{Call: callLease, Key: f.Key(), N: f.Want, Source: SourceRedis}
	returned := false
	defer func() {
		if !returned { // a hook of the client panicked, or ended the goroutine
			o.Err = await.Unfinished(recover())
			f.Lost(o.Err)
		}
		if l.watch != nil {
			l.watch.end(context.Background(), began, o)
		}
	}()
	reply, err := l.core.operate(ctx, f.Key(), redisexec.Operation{
		Op: redisexec.Lease, N: f.Want, Times: 1,
		Detail: &redisexec.Detail{
			Waiting: f.Waiting, Shortest: f.Short.Microseconds(), Longest: f.Long.Microseconds(), Epoch: 2 + rand.Int64N(exact.Bound-2),
		},
	})
	o.sent(began, reply.Batch)
	returned = true
	if err != nil {
		o.Err = err
		f.Lost(err)
		return
	}
	words, own := reply.Words, l.core.exec.Words
	taken := words[1+decision.WordAllowed]
	o.Result = l.core.explain(words[1:1+own], 1, taken, taken > 0)
	r := l.reply(o.Result)
	r.Taken, r.Lasts, r.Ticket = int(taken), exact.Duration(words[0]), lease.Ticket{Where: words[1+own], Which: words[2+own]}
	unused := f.Landed(r, l.now())
	reply.Done()
	o.Taken = f.Outcome().Left // the permit of a call that waited is observed with that call
	if unused.N > 0 {
		l.giveBackInTime(f.Key(), unused)
	}
}

// reply is what a flight brings, as far as a Result says it.
func (l *Leased) reply(r Result) lease.Reply {
	reply := lease.Reply{Left: r.Remaining, RetryAfter: r.RetryAfter, ResetAfter: r.ResetAfter}
	if l.known[0].Window == 0 {
		l.window.Store(int64(r.Window))
		return reply
	}
	for i := range l.known {
		if l.known[i].Window == r.Window {
			reply.Of = i
		}
	}
	if l.logs && r.Allowed { // its permits leave the longest window when the slot does
		reply.Ends = r.ResetAfter - l.known[len(l.known)-1].Window
	}
	return reply
}

// giveBackInTime is giveBack in the background.
func (l *Leased) giveBackInTime(key string, u lease.Unused) {
	ctx, cancel := context.WithTimeout(context.Background(), flightTime)
	defer cancel()
	_ = l.giveBack(ctx, key, u)
}

// giveBack gives back permits of a slice that nobody will spend.
func (l *Leased) giveBack(ctx context.Context, key string, u lease.Unused) (err error) {
	if u.Over(l.now()) {
		return nil
	}
	o := Observation{Call: callReturn, Key: key, N: u.N}
	began := l.watch.begin()
	done := l.returns(key)
	returned := false
	defer func() {
		if !returned {
			err = await.Unfinished(recover())
		}
		done()
		if o.Err = err; l.watch != nil {
			l.watch.end(ctx, began, o)
		}
	}()
	reply, err := l.core.operate(ctx, key, redisexec.Operation{
		Op: redisexec.GiveBack, N: u.N, Times: 1, Detail: &redisexec.Detail{Where: u.Where, Which: u.Which},
	})
	o.sent(began, reply.Batch)
	returned = true
	if err != nil {
		return l.core.failed(ctx, key, err)
	}
	o.N = int(reply.Words[0])
	reply.Done()
	return nil
}
