package main

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

// TestFieldsThroughAnOutage: what clients of each of three processes read right before, during and after an outage, exactly.
func TestFieldsThroughAnOutage(t *testing.T) {
	for _, outage := range outages {
		t.Run(outage.name, func(t *testing.T) {
			server := startRedis(t)
			var all []*process
			for range processes {
				all = append(all, start(t, server.Addr()))
			}
			w := &world{server: server}
			for _, p := range all {
				w.upgrade(t, p)
				w.byRedis(t, p)
			}
			outage.begin(server)
			for _, p := range all {
				w.byMemory(t, p)
			}
			outage.end(server)
			for _, p := range all {
				w.byRedis(t, p)
			}
		})
	}
}

// A world has a new address for each question, so that its limits are unused. acme has the plan pro, and uses it up. umbrella has the
// plan max, of which a permit comes back within 10 ms, or 30 ms in memory: its limits are full again before each question.
type world struct {
	server    *redistest.Server
	addresses int
}

const full = 50 * time.Millisecond // until all buckets of umbrella and of everybody are full, and more

func (w *world) from() string {
	w.addresses++
	return fmt.Sprintf("192.0.2.%d", w.addresses)
}

func (w *world) upgrade(t *testing.T, p *process) {
	t.Helper()
	require.Equal(t, 204, p.must(t, call{method: "PUT", path: "/plans/umbrella/max", admin: true}).status)
}

func (w *world) invite() call {
	return call{path: "/invite", apiKey: "secret-2", from: w.from(), form: "to=x"}
}
func (w *world) chat() call {
	return call{path: "/chat", apiKey: "secret-2", from: w.from(), form: "prompt=why"}
}
func (w *world) stranger() call { return call{path: "/invite", apiKey: "made up", from: w.from()} }
func (w *world) login() call {
	from := w.from()
	return call{path: "/login", from: from, form: "password=x&user=" + from}
}

// decided asks until Redis has decided: a busy machine can make a call miss its budget. Each question is a new one.
func (w *world) decided(t *testing.T, p *process, question func() call) (a answer) {
	t.Helper()
	eventually(t, "a decision of Redis", func() bool {
		time.Sleep(full)
		a = p.must(t, question())
		return len(a.policies) > 0 && !strings.Contains(a.policies[0], ";q=200;")
	})
	// A request leaves the address's window at the end of its sub-window of 1.2 s.
	a.rateLimits[0] = strings.Replace(a.rateLimits[0], "t=62", "t=61", 1)
	return a
}

// drained is acme's denial, with what everybody has left cut out: that depends on how fast acme asked.
func (w *world) drained(t *testing.T, p *process, policy string) (a answer) {
	t.Helper()
	eventually(t, "a denial by "+policy, func() bool {
		a = p.must(t, call{path: "/invite", apiKey: "secret-1", from: w.from(), form: "to=x"})
		return a.status == 429 && a.policies[2] == policy
	})
	require.True(t, strings.HasPrefix(a.rateLimits[1], `"everybody";r=`), a.rateLimits)
	a.rateLimits = append(a.rateLimits[:1:1], a.rateLimits[2:]...)
	return a
}

const quotaExceeded = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
	`"title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"violated-policies":["customer"]}`

func (w *world) byRedis(t *testing.T, p *process) {
	t.Helper()
	address, everybody, customer := `"address";q=600;w=60`, `"everybody";q=2000;w=2`, `"customer";q=600;w=6`
	require.Equal(t, answer{
		202, []string{address, everybody, customer},
		[]string{`"address";r=599;t=61`, `"everybody";r=1999;t=2`, `"customer";r=599;t=6`}, "", "",
	}, w.decided(t, p, w.invite))
	chat := answer{
		200, []string{address, everybody, customer, `"running";q=3;qu="concurrent-requests"`, `"tokens";q=3000;w=30`},
		[]string{`"address";r=599;t=61`, `"everybody";r=1999;t=2`, `"customer";r=599;t=6`, `"running";r=2`, `"tokens";r=2500;t=25`}, "", "You said: why\n",
	}
	var got answer
	// A chat that asked the hung Redis is executed when that goes on, and holds its permit until its lease ends.
	for range 400 {
		if got = w.decided(t, p, w.chat); reflect.DeepEqual(chat, got) {
			break
		}
	}
	require.Equal(t, chat, got)
	require.Equal(t, answer{
		401, []string{address}, []string{`"address";r=599;t=61`}, "", "unknown API key\n",
	}, w.decided(t, p, w.stranger))
	require.Equal(t, answer{
		401, []string{`"login-address";q=50;w=900`, `"login-user";q=5;w=900`},
		[]string{`"login-address";r=49;t=900`, `"login-user";r=4;t=900`}, "", "wrong user or password\n",
	}, w.decided(t, p, w.login))
	require.Equal(t, answer{
		429, []string{address, everybody, `"customer";q=60;w=6`},
		[]string{`"address";r=600;t=0`, `"customer";r=0;t=1`}, "1", quotaExceeded,
	}, w.drained(t, p, `"customer";q=60;w=6`))
}

func (w *world) byMemory(t *testing.T, p *process) {
	t.Helper()
	address, everybody, customer := `"address";q=200;w=60`, `"everybody";q=666;w=2`, `"customer";q=200;w=6`
	time.Sleep(full)
	require.Equal(t, answer{
		202, []string{address, everybody, customer},
		[]string{`"address";r=199;t=60`, `"everybody";r=665;t=2`, `"customer";r=199;t=6`}, "", "",
	}, p.must(t, w.invite()), "the first request of the outage")
	eventually(t, "an open breaker", func() bool { return p.must(t, w.stranger()).status == 401 && strings.Contains(p.log(), "to=open") })
	// The tokens begin with a third of the 2,500 that Redis had left, and refill. On a busy machine memory may have decided some already.
	var chat answer
	eventually(t, "500 tokens", func() bool {
		time.Sleep(full)
		p.must(t, w.stranger()) // probes, if it is time
		chat = p.must(t, w.chat())
		return chat.status == 200
	})
	require.Contains(t, chat.rateLimits[4], `"tokens";r=`)
	chat.rateLimits = chat.rateLimits[:4]
	require.Equal(t, answer{
		200, []string{address, everybody, customer, `"running";q=1;qu="concurrent-requests"`, `"tokens";q=1000;w=30`},
		[]string{`"address";r=199;t=60`, `"everybody";r=665;t=2`, `"customer";r=199;t=6`, `"running";r=0`}, "", "You said: why\n",
	}, chat)
	require.Equal(t, answer{
		401, []string{address}, []string{`"address";r=199;t=60`}, "", "unknown API key\n",
	}, p.must(t, w.stranger()))
	require.Equal(t, answer{
		503, nil, nil, "1", `{"title":"Service Unavailable","status":503}`,
	}, p.must(t, w.login()), "no password is tried without a limit")
	require.Equal(t, answer{
		429, []string{address, everybody, `"customer";q=20;w=6`},
		[]string{`"address";r=200;t=60`, `"customer";r=0;t=1`}, "1", quotaExceeded,
	}, w.drained(t, p, `"customer";q=20;w=6`))
}
