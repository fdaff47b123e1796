package merge

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/internal/redisexec"
	"github.com/tryacquire/ratelimit/internal/script"
	"github.com/tryacquire/ratelimit/internal/testing/redistest"
)

var ctx = context.Background()

func TestMain(m *testing.M) {
	defer redistest.StopShared()
	m.Run()
}

// How the keys of these tests are named in Redis.
func asGiven(key string) string { return key }

// given is a limit that is not asked.
var given = &Limit{Exec: &redisexec.Executor{}, Name: asGiven}

func behindP(key string) string { return "p:" + key }

// A server is a client that decides as a script would: each key has permits, and the
// first of equal requests get theirs. The words are how many were allowed, and the
// permits that were left before; a ticket is the permits that were used then, and zero.
// Charges are taken up to so many permits again.
type server struct {
	*redisexec.Executor
	permits int        // of each key
	hold    chan error // each command waits for one; nil: none waits

	mu       sync.Mutex // guards all below
	used     map[string]int
	sent     []string          // the commands, in the order in which they came
	scripts  []string          // the sources of theirs
	contexts []context.Context // theirs
	broken   map[string][]int  // executions for many requests that will fail for a key, after so many of its runs
	late     []int             // runs for which the next executions for many requests have time
	errs     map[string]error  // of the executions for one run of a key
}

func newServer(permits int) *server {
	s := &server{permits: permits, used: map[string]int{}, broken: map[string][]int{}, errs: map[string]error{}}
	operations := script.New("operations")
	s.Executor = &redisexec.Executor{
		Client: s, One: script.New("one"), Peek: script.New("peek"), Many: script.New("many"), Operations: operations, Alone: operations, Words: 2, Pooled: true,
	}
	return s
}

func (s *server) Process(ctx context.Context, cmd redis.Cmder) error {
	err := s.answer(ctx, cmd.(*redisexec.Once).Cmder.(*redis.IntSliceCmd))
	cmd.SetErr(err)
	return err
}

func (s *server) answer(ctx context.Context, cmd *redis.IntSliceCmd) error {
	var args []string
	for _, arg := range cmd.Args() {
		switch arg := arg.(type) {
		case *string:
			args = append(args, *arg)
		case *int:
			args = append(args, fmt.Sprint(*arg))
		case []byte:
			args = append(args, string(arg))
		default:
			args = append(args, fmt.Sprint(arg))
		}
	}
	script := s.scriptOf(args[1])
	keys, requests := args[3:4], args[4:5]
	if script == s.Many || script == s.Operations {
		count := (len(args) - 4) / 2
		keys, requests = args[3:3+count], args[4+count:]
	}
	alone := script == s.One || script == s.Operations && len(keys) == 1 && !strings.Contains(requests[0], ",")
	var about []string
	for i, key := range keys {
		about = append(about, key+" "+requests[i])
	}
	s.mu.Lock()
	s.sent = append(s.sent, strings.Join(about, ", "))
	s.scripts = append(s.scripts, script.Source())
	s.contexts = append(s.contexts, ctx)
	s.mu.Unlock()
	if s.hold != nil {
		if err := <-s.hold; err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var words []int64
	time := math.MaxInt
	if !alone && len(s.late) > 0 {
		time, s.late = s.late[0], s.late[1:]
	}
	for i, key := range keys {
		if alone && s.errs[key] != nil {
			return s.errs[key]
		}
		runs := strings.Split(requests[i], ",")
		fails := !alone && len(s.broken[key]) > 0
		if fails {
			runs = runs[:s.broken[key][0]]
			s.broken[key] = s.broken[key][1:]
		}
		enough := len(runs) <= time
		runs = runs[:min(len(runs), time)]
		time -= len(runs)
		for _, run := range runs {
			words = append(words, s.decide(key, run)...)
		}
		if !enough {
			words = append(words, -2)
		} else if fails {
			words = append(words, -1)
		}
	}
	cmd.SetVal(words)
	return nil
}

func (s *server) scriptOf(digest string) *script.Script {
	for _, of := range []*script.Script{s.One, s.Many, s.Operations} {
		if of.BySHA()[1] == digest {
			return of
		}
	}
	panic("an unknown script")
}

// decide returns the words of a run. It is called with mu held.
func (s *server) decide(key, run string) []int64 {
	n, calls, op := 1, 1, 'x'
	var where, which int64
	if i := strings.IndexByte(run, 'g'); i > 0 {
		fmt.Sscanf(run, "%dg%d/%d", &n, &where, &which)
		s.used[key] -= n
		return []int64{int64(n)}
	}
	fmt.Sscanf(run, "%d%c%d", &n, &op, &calls)
	left := s.permits - s.used[key]
	room := left
	if op == 'c' {
		room += s.permits
	}
	allowed := min(max(room, 0)/n, calls)
	s.used[key] += allowed * n
	words := []int64{int64(allowed), int64(left)}
	if op == 'e' {
		words = append(words, int64(s.used[key]), 0)
	}
	return words
}

// take returns the commands that came since it was last called.
func (s *server) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	sent := s.sent
	s.sent = nil
	return sent
}

// answerNext lets the oldest command through, or fails it.
func (s *server) answerNext(err error) {
	s.hold <- err
	synctest.Wait()
}

// answerFew lets the commands of few through.
func (s *server) answerFew() {
	for range FewCalls {
		s.answerNext(nil)
	}
}

// A call is one of Acquire, and what came of it.
type call struct {
	returned, allowed bool
	left              int64
	err               error
}

// acquire calls Acquire in a goroutine, and returns when that waits or has returned.
func acquire(ctx context.Context, m *Merger, key string, n int) *call {
	c := &call{}
	go func() {
		reply, err := m.Acquire(ctx, key, n)
		c.returned, c.err = true, err
		if err != nil {
			return
		}
		allowed := reply.Words[0]
		c.allowed = reply.Index < allowed
		c.left = reply.Words[1] - min(reply.Index+1, allowed)*int64(n)
		reply.Done()
	}()
	synctest.Wait()
	return c
}

// acquireAll makes several, in their order.
func acquireAll(m *Merger, n int, keys ...string) []*call {
	var calls []*call
	for _, key := range keys {
		calls = append(calls, acquire(ctx, m, key, n))
	}
	return calls
}

// few makes as many calls as are sent at once, so that the next ones wait.
func few(t *testing.T, s *server, m *Merger) []*call {
	t.Helper()
	keys := slices.Repeat([]string{"few"}, FewCalls)
	calls := acquireAll(m, 1, keys...)
	require.Equal(t, singly(keys...), s.take())
	return calls
}

// singly is the commands of calls that are sent on their own.
func singly(keys ...string) []string {
	var commands []string
	for _, key := range keys {
		commands = append(commands, key+" 1")
	}
	return commands
}

// held runs a test with a server that holds every command, and the clock of a bubble,
// which stands still unless the test sleeps.
func held(t *testing.T, permits int, test func(t *testing.T, s *server, m *Merger)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		defer func(before time.Time) { epoch = before }(epoch)
		epoch = time.Now() // in the bubble
		s := newServer(permits)
		s.hold = make(chan error)
		test(t, s, New(s.Executor, asGiven))
		close(s.hold)
		synctest.Wait()
	})
}

var (
	allowed = func(left int64) call { return call{returned: true, allowed: true, left: left} }
	denied  = func(left int64) call { return call{returned: true, left: left} }
	failed  = func(err error) call { return call{returned: true, err: err} }
	waiting = call{}
)

func requireCalls(t *testing.T, calls []*call, want ...call) {
	t.Helper()
	var got []call
	for _, c := range calls {
		got = append(got, *c)
	}
	require.Equal(t, want, got)
}
