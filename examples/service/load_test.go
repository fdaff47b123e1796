package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A load sends requests to the processes in turn, at a steady rate. It sends the next one when that is due, even if earlier ones
// have no answer yet.
type load struct {
	all   []*process
	rate  int // requests a second
	began time.Time
	stop  atomic.Bool
	done  sync.WaitGroup

	mu       sync.Mutex
	asked    []*asked
	problems []string
}

// asked is a request of the load.
type asked struct {
	subject         *subject
	process         int
	due, call, back time.Duration // since the load began
	status          int
	allowed         bool // by the limits
	memory          bool // decided by the process's own memory
	left            int  // of the subject's limit
}

// A subject is somebody whose requests come in a load, and what is read of them.
type subject struct {
	share int // of 100 requests
	call  func(n int) call

	// Of the limit that is judged, and of what all answers of Redis, and of memory, say about limits.
	limit         string
	redis, memory []string
	allowed       int // the status of what is allowed
	denied        int
}

const (
	ofEverybody = `"everybody";q=2000;w=2`
	ofAddress   = `"address";q=600;w=60`
)

// subjects: two that are far over their limit, one for each kind of limiter, and two who stay below all limits.
func subjects() (customer, stranger *subject, all []*subject) {
	address := func(n int) string { return fmt.Sprintf("10.%d.%d.%d", n>>16&255, n>>8&255, n&255) }
	customer = &subject{
		share: 50, limit: "customer", allowed: 202, denied: 429,
		call:   func(n int) call { return call{path: "/invite", apiKey: "secret-1", from: address(n), form: "to=x"} },
		redis:  []string{ofAddress, ofEverybody, `"customer";q=60;w=6`},
		memory: []string{`"address";q=200;w=60`, `"everybody";q=666;w=2`, `"customer";q=20;w=6`},
	}
	stranger = &subject{
		share: 20, limit: "address", allowed: 401, denied: 429,
		call:  func(int) call { return call{path: "/invite", apiKey: "made up", from: "192.0.2.1"} },
		redis: []string{ofAddress}, memory: []string{`"address";q=200;w=60`},
	}
	visitors := &subject{
		share: 10, limit: "address", allowed: 401, denied: 429,
		call:  func(n int) call { return call{path: "/invite", apiKey: "made up", from: address(n)} },
		redis: []string{ofAddress}, memory: []string{`"address";q=200;w=60`},
	}
	logins := &subject{
		share: 10, limit: "login-user", allowed: 401, denied: 503,
		call: func(n int) call {
			return call{path: "/login", from: address(n), form: fmt.Sprintf("password=x&user=u%d", n)}
		},
		redis: []string{`"login-address";q=50;w=900`, `"login-user";q=5;w=900`}, // none in memory: DenyAll has no limit
	}
	bare := &subject{share: 10, allowed: 404, call: func(int) call { return call{path: "/nothing"} }} // has no limit, and shows how fast the machine is
	return customer, stranger, []*subject{customer, stranger, visitors, logins, bare}
}

const callers = 256 // more than are ever in flight, so that a slow answer does not delay the next request

func startLoad(all []*process, rate int, subjects []*subject) *load {
	l := &load{all: all, rate: rate, began: time.Now()}
	var turns []*subject // mixed
	for i := range 100 {
		for _, s := range subjects {
			if i*s.share/100 != (i+1)*s.share/100 {
				turns = append(turns, s)
			}
		}
	}
	var next atomic.Int64
	for range callers {
		l.done.Go(func() {
			for !l.stop.Load() {
				n := int(next.Add(1) - 1)
				due := time.Duration(n) * time.Second / time.Duration(rate)
				time.Sleep(time.Until(l.began.Add(due)))
				l.ask(n, due, turns[n%len(turns)])
			}
		})
	}
	return l
}

func (l *load) ask(n int, due time.Duration, s *subject) {
	a := &asked{subject: s, process: (n / 100) % len(l.all), due: due, call: time.Since(l.began)}
	got, err := l.all[a.process].ask(s.call(n))
	a.back = time.Since(l.began)
	problem := ""
	if err != nil {
		problem = err.Error()
	} else {
		problem = a.read(got)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = append(l.asked, a)
	if problem != "" && len(l.problems) < 10 {
		l.problems = append(l.problems, fmt.Sprintf("at %v: %s: %+v", a.call, problem, got))
	}
}

// read notes what got says, and returns what it should not say.
func (a *asked) read(got answer) (problem string) {
	s := a.subject
	a.status, a.allowed = got.status, got.retryAfter == ""
	a.memory = !slices.Equal(got.policies, s.redis)
	switch {
	case a.memory && !slices.Equal(got.policies, s.memory):
		return "these are neither the policies of Redis nor those of memory"
	case a.allowed && got.status != s.allowed && !strings.HasPrefix(got.body, "too much mail"):
		return "this is no answer to what is allowed"
	case !a.allowed && got.status != s.denied:
		return "this is no denial"
	case len(got.rateLimits) != len(got.policies):
		return "each policy has a RateLimit"
	case !a.allowed && got.retryAfter != "1" && s.limit != "address":
		return "a permit comes back within a second"
	}
	for i, policy := range got.policies {
		var left, seconds int
		var limit, window int
		name, parameters, _ := strings.Cut(policy, ";")
		if _, err := fmt.Sscanf(parameters, "q=%d;w=%d", &limit, &window); err != nil {
			return err.Error()
		}
		if _, err := fmt.Sscanf(strings.TrimPrefix(got.rateLimits[i], name), ";r=%d;t=%d", &left, &seconds); err != nil {
			return err.Error()
		}
		if name != strconv.Quote(s.limit) {
			continue
		}
		a.left = left
		switch {
		case !a.allowed && (left != 0 || strconv.Itoa(seconds) != got.retryAfter):
			return "the denial's own t is Retry-After"
		case a.allowed && (a.memory || s.limit == "customer") && seconds != max(1, (left*window+limit-1)/limit):
			return "t is the time in which a bucket gets r permits"
		}
	}
	return ""
}

// since is what has been asked after the first n.
func (l *load) since(n int) []*asked {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.asked[n:])
}

// await waits until each process has answered n requests of a subject, made since then, as is asked for.
func (l *load) await(t *testing.T, what string, of *subject, since time.Duration, n int, is func(*asked) bool) {
	t.Helper()
	seen, counts := 0, make([]int, len(l.all))
	eventually(t, what, func() bool {
		more := l.since(seen)
		seen += len(more)
		for _, a := range more {
			if a.subject == of && a.call >= since && is(a) {
				counts[a.process]++
			}
		}
		return slices.Min(counts) >= n
	})
}

func (l *load) end() []*asked {
	l.stop.Store(true)
	l.done.Wait()
	return l.asked
}

func (l *load) now() time.Duration { return time.Since(l.began) }
