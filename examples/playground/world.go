package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/algorithms"
	held "github.com/tryacquire/ratelimit/internal/state"
)

const (
	name        = "demo" // of the limiter
	shown       = 60     // seconds of the chart
	linesShown  = 14
	tick        = 20 * time.Millisecond
	longestWait = 8 * time.Second // of a caller that waits
	maxInFlight = 8               // calls of one caller, beside a burst
	callTimeout = 2 * time.Second
)

// A world is one limiter with its callers and its Redis.
type world struct {
	where  string // which Redis it is
	prefix string
	budget time.Duration // how long a call waits for Redis before its policy decides
	link   *link
	client *redis.Client
	pauses *ratelimit.Pause // beside the limiter, whichever it is

	ctx    context.Context // of the calls
	cancel context.CancelFunc
	calls  sync.WaitGroup

	mu       sync.Mutex
	settings settings
	built    built
	seconds  []second
	outages  []outage
	lines    []line // the newest first
	totals   counts
	waiting  int
	inFlight [maxCallers + 1]int
}

// built is what settings were made into.
type built struct {
	plans   map[string]ratelimit.Limiter
	paused  map[string]ratelimit.Limiter // the same, each beside the pause
	limiter ratelimit.Limiter            // picks the plan, and has the policy for outages around it
	breaker *ratelimit.Breaker
}

// counts are of calls; each call is one of the first three.
type counts struct {
	Allowed   int `json:"allowed"`
	Denied    int `json:"denied"`
	Failed    int `json:"failed"`    // there was no decision
	Secondary int `json:"secondary"` // decided without Redis
}

// A second is what happened in it.
type second struct {
	At int64 `json:"at"` // Unix time
	counts
	of [maxCallers + 1]counts // of each caller
}

// An outage is a time in which Redis was down, in seconds of Unix time.
type outage struct {
	From int64 `json:"from"`
	To   int64 `json:"to"` // 0: it goes on
}

// A line is one answer.
type line struct {
	At   string `json:"at"`
	Who  string `json:"who"`
	Kind string `json:"kind"` // allow, deny or fail
	Text string `json:"text"`
}

func newWorld(connect func(context.Context) (net.Conn, error), where, prefix string, budget time.Duration) (*world, error) {
	w := &world{where: where, prefix: prefix, budget: budget, link: newLink(connect)}
	w.client = redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", Dialer: w.link.dial, MaxRetries: -1, PoolSize: 32})
	w.ctx, w.cancel = context.WithCancel(context.Background())
	var err error
	if w.pauses, err = ratelimit.NewPause(w.client, ratelimit.WithPrefix(prefix), ratelimit.WithName(name)); err != nil {
		return nil, err
	}
	return w, w.set(usual)
}

// close is for when run has ended. It leaves no key.
func (w *world) close() {
	w.mu.Lock()
	w.cancel()
	w.mu.Unlock()
	w.calls.Wait()
	w.link.setDown(false)
	w.reset(context.Background())
	_ = w.client.Close()
}

// set puts other settings into force. The usage so far is kept, as after a change of a service's
// configuration.
func (w *world) set(s settings) error {
	if err := s.check(); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.built.limiter == nil || !s.sameLimiter(w.settings) {
		b, err := w.build(s)
		if err != nil {
			return err
		}
		w.built = b
	}
	if now := time.Now().Unix(); s.Down && !w.settings.Down {
		w.outages = slices.DeleteFunc(append(w.outages, outage{From: now}), func(o outage) bool { return o.To != 0 && o.To < now-shown })
	} else if !s.Down && w.settings.Down {
		w.outages[len(w.outages)-1].To = now
	}
	w.settings = s
	w.link.setDown(s.Down)
	return nil
}

func (w *world) build(s settings) (built, error) {
	window := time.Duration(s.Window) * time.Second
	b := built{plans: map[string]ratelimit.Limiter{}, paused: map[string]ratelimit.Limiter{}}
	for plan, limit := range map[string]int{"basic": s.Limit, "pro": proFactor * s.Limit} {
		limiter, err := limiters[s.Algorithm](w.client, limit, window, ratelimit.WithPrefix(w.prefix), ratelimit.WithName(name))
		if err != nil {
			return built{}, err
		}
		b.plans[plan] = limiter
		if b.paused[plan], err = ratelimit.NewAll(w.pauses, limiter); err != nil {
			return built{}, err
		}
	}
	choice, err := ratelimit.NewChoice(func(context.Context, string) (ratelimit.Limiter, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		return b.paused[w.settings.Plan], nil
	})
	if err != nil {
		return built{}, err
	}
	b.limiter = choice
	secondary := secondaries[s.Policy]
	if secondary == nil {
		return b, nil
	}
	local, err := secondary(s.Limit, window)
	if err != nil {
		return built{}, err
	}
	b.breaker = new(ratelimit.Breaker)
	b.limiter, err = ratelimit.NewFallback(choice, local, ratelimit.WithBudget(w.budget), ratelimit.WithBreaker(b.breaker))
	return b, err
}

// run makes the callers' requests until ctx ends.
func (w *world) run(ctx context.Context) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	var due [maxCallers + 1]time.Duration // of each caller; a request is due for each second
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := time.Now()
		elapsed := min(now.Sub(last), time.Second) // a process that was suspended does not catch up
		last = now
		w.mu.Lock()
		s := w.settings
		w.mu.Unlock()
		for caller := 1; caller <= s.Callers; caller++ {
			due[caller] += elapsed * time.Duration(s.rate(caller))
			for ; due[caller] >= time.Second; due[caller] -= time.Second {
				w.begin(s, caller, maxInFlight)
			}
		}
	}
}

// burst makes n requests at once, of all callers in turn.
func (w *world) burst(n int) {
	w.mu.Lock()
	s := w.settings
	w.mu.Unlock()
	for i := range n {
		w.begin(s, i%s.Callers+1, n+maxInFlight)
	}
}

// begin makes a call, unless its caller has so many under way.
func (w *world) begin(s settings, caller, most int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.inFlight[caller] >= most || w.ctx.Err() != nil {
		return
	}
	w.inFlight[caller]++
	if s.Wait {
		w.waiting++
	}
	limiter := w.built.limiter
	if s.Wait { // for a bucket itself, on which those who wait have a turn
		limiter = w.built.plans[s.Plan]
	}
	w.calls.Go(func() {
		began := time.Now()
		result, err := w.call(limiter, s, s.key(caller))
		w.mu.Lock()
		defer w.mu.Unlock()
		w.inFlight[caller]--
		if s.Wait {
			w.waiting--
		}
		if w.ctx.Err() == nil {
			w.record(caller, s, result, err, time.Since(began))
		}
	})
}

func (w *world) call(limiter ratelimit.Limiter, s settings, key string) (ratelimit.Result, error) {
	if s.Wait {
		ctx, cancel := context.WithTimeout(w.ctx, longestWait)
		defer cancel()
		if result, err := ratelimit.Wait(ctx, w.pauses, key); err != nil {
			return result, err
		}
		return ratelimit.Wait(ctx, limiter, key)
	}
	ctx, cancel := context.WithTimeout(w.ctx, callTimeout)
	defer cancel()
	return limiter.TryAcquire(ctx, key)
}

// record counts an answer. w is locked.
func (w *world) record(caller int, s settings, result ratelimit.Result, err error, took time.Duration) {
	now := time.Now()
	l := line{At: now.Format("15:04:05.000"), Who: fmt.Sprintf("caller %d, %s", caller, s.key(caller))}
	var one counts
	var tooLong *ratelimit.WaitError
	switch {
	case errors.As(err, &tooLong):
		one.Denied, l.Kind, l.Text = 1, "deny", "does not wait: its turn would come in "+held.Brief(tooLong.Wait)
	case err != nil:
		one.Failed, l.Kind, l.Text = 1, "fail", "failed: "+err.Error()
	case result.ByShare:
		one.Denied, l.Kind, l.Text = 1, "deny", "denied: what is left is kept for other callers"
	case !result.Allowed:
		one.Denied, l.Kind, l.Text = 1, "deny", "denied, retry after "+held.Brief(result.RetryAfter)
	case s.Wait:
		one.Allowed, l.Kind, l.Text = 1, "allow", "allowed, after a wait of "+held.Brief(took)
	case result.Unlimited():
		one.Allowed, l.Kind, l.Text = 1, "allow", "allowed without a limit"
	default:
		one.Allowed, l.Kind, l.Text = 1, "allow", fmt.Sprintf("allowed, %d of %d left", result.Remaining, result.Limit)
	}
	if err == nil && result.Fallback {
		one.Secondary = 1
		l.Text += " (decided without Redis)"
	}
	w.totals.add(one)
	at := now.Unix()
	if len(w.seconds) == 0 || w.seconds[len(w.seconds)-1].At < at {
		w.seconds = append(w.seconds, second{At: at})
		if len(w.seconds) > shown {
			w.seconds = slices.Delete(w.seconds, 0, len(w.seconds)-shown)
		}
	}
	last := &w.seconds[len(w.seconds)-1]
	last.add(one)
	last.of[caller].add(one)
	w.lines = slices.Insert(w.lines, 0, l)
	w.lines = w.lines[:min(len(w.lines), linesShown)]
}

func (c *counts) add(d counts) {
	c.Allowed += d.Allowed
	c.Denied += d.Denied
	c.Failed += d.Failed
	c.Secondary += d.Secondary
}

// pause stops the key of the first caller, for all who have it.
func (w *world) pause(ctx context.Context, d time.Duration) error {
	_, err := w.pauses.Pause(ctx, w.firstKey(), d)
	return err
}

// lift ends the pause.
func (w *world) lift(ctx context.Context) error { return w.pauses.Reset(ctx, w.firstKey()) }

func (w *world) firstKey() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.settings.key(1)
}

// reset gives every key its full limit back, under each algorithm, ends its pause, and forgets what was counted.
func (w *world) reset(ctx context.Context) {
	names := []string{w.name(algorithms.FairTokenBucket, sharedKey)}
	for algorithm, f := range formats {
		for caller := 1; caller <= maxCallers; caller++ {
			key := settings{Algorithm: algorithm}.key(caller)
			names = append(names, w.name(f.id, key), w.name(algorithms.Pause, key))
		}
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = w.client.Unlink(ctx, names...).Err() // an outage: the keys expire
	w.mu.Lock()
	defer w.mu.Unlock()
	w.totals, w.seconds, w.lines = counts{}, nil, nil
}
