package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/tryacquire/ratelimit/ratelimittest"
)

func init() { log.SetOutput(io.Discard) }

// A site is a login with the one user alice, whose password is "secret".
type site struct {
	*login
	t       *testing.T
	env     *ratelimittest.Env
	mu      sync.Mutex // guards checked
	checked int        // how many passwords were looked at
}

func inBubble(t *testing.T, test func(t *testing.T, s *site)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &site{t: t, env: ratelimittest.New(t)}
		var err error
		s.login, err = newLogin(s.env.Client(), func(ctx context.Context, user, password string) (bool, error) {
			s.mu.Lock()
			s.checked++
			s.mu.Unlock()
			return check(ctx, user, password)
		})
		require.NoError(t, err)
		test(t, s)
	})
}

// try tries a password and returns the answer: status, Retry-After and body.
func (s *site) try(address, user, password string) string {
	form := url.Values{"user": {user}, "password": {password}}
	r := httptest.NewRequestWithContext(s.t.Context(), "POST", "/", strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.RemoteAddr = address + ":1234"
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return strings.TrimSpace(fmt.Sprintln(w.Code, w.Header().Get("Retry-After"), w.Body.String()))
}

const (
	welcome = "200  welcome"
	wrong   = "401  wrong user or password"
	later   = "503  try again later"
)

func denied(seconds int) string {
	return fmt.Sprintf(`429 %d {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",`+
		`"title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"violated-policies":["login"]}`, seconds)
}

// The sixth try is denied, with the right password too, and from every address; a quarter of an
// hour after it, the user is free.
func TestAUserIsLimited(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		for i, name := range []string{"alice", "Alice", " alice ", "ALICE", "alicE"} { // one user
			require.Equal(t, wrong, s.try(fmt.Sprintf("192.0.2.%d", i), name, "guess"))
			s.env.Advance(time.Second)
		}
		require.Equal(t, denied(900), s.try("192.0.2.9", "alice", "secret"))
		require.Equal(t, 5, s.checked, "the password was not looked at")
		s.env.Advance(900*time.Second - time.Microsecond)
		require.Equal(t, denied(1), s.try("192.0.2.9", "alice", "secret"))
		s.env.Advance(time.Microsecond)
		require.Equal(t, welcome, s.try("192.0.2.9", "alice", "secret"))
	})
}

// guess tries wrong passwords until the user is denied, for so many seconds.
func (s *site) guess(address, user string, seconds int) {
	s.t.Helper()
	for range 5 {
		require.Equal(s.t, wrong, s.try(address, user, "guess"))
	}
	require.Equal(s.t, denied(seconds), s.try(address, user, "guess"))
}

// Who goes on guessing is banned for longer each time; after a quiet day all begins again.
func TestBansGrow(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		for _, minutes := range []int{15, 30, 60, 60} {
			s.guess("192.0.2.1", "alice", 60*minutes)
			s.env.Advance(time.Minute)
			require.Equal(t, denied(60*minutes-60), s.try("192.0.2.2", "alice", "secret"), "no second strike")
			s.env.Advance(time.Duration(minutes-1)*time.Minute - time.Microsecond)
			require.Equal(t, denied(1), s.try("192.0.2.2", "alice", "secret"))
			s.env.Advance(time.Microsecond)
		}
		s.env.Advance(quiet - time.Microsecond)
		s.guess("192.0.2.1", "alice", 3600)
		s.env.Advance(time.Hour + quiet)
		s.guess("192.0.2.1", "alice", 900)
	})
}

// A success does not forget bans: whoever guesses is still there.
func TestASuccessKeepsBans(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		for _, minutes := range []int{15, 30, 60} {
			s.guess("192.0.2.1", "alice", 60*minutes)
			s.env.Advance(time.Duration(minutes) * time.Minute)
			require.Equal(t, welcome, s.try("192.0.2.2", "alice", "secret"))
		}
	})
}

// A try that was under way when an operator paused its user does not lift that.
func TestASuccessLiftsNoPause(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		s.check = func(ctx context.Context, _, _ string) (bool, error) {
			_, err := s.perUser.Pause(ctx, "user:"+hashed("alice"), 48*time.Hour)
			return true, err
		}
		require.Equal(t, welcome, s.try("192.0.2.1", "alice", "secret"))
		require.Equal(t, denied(48*3600), s.try("192.0.2.2", "alice", "secret"))
	})
}

// An address that is banned brings about no ban of a user, however many of its tries come at once. On a Ring, as on a Cluster,
// the keys of the address and of the user are asked one by one.
func TestABannedAddressBansNobody(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		ring := redis.NewRing(&redis.RingOptions{
			Addrs:     map[string]string{"a": "redis:6379"},
			NewClient: func(*redis.Options) *redis.Client { return redis.NewClient(s.env.Options()) },
		})
		defer ring.Close()
		var err error
		s.login, err = newLogin(ring, s.check)
		require.NoError(t, err)
		_, err = s.perAddress.Pause(t.Context(), "ip:192.0.2.1", time.Hour)
		require.NoError(t, err)
		var tries sync.WaitGroup
		for range 40 {
			tries.Go(func() { s.try("192.0.2.1", "alice", "guess") })
		}
		tries.Wait()
		require.Equal(t, denied(3600), s.try("192.0.2.1", "alice", "secret"))
		require.Equal(t, welcome, s.try("192.0.2.2", "alice", "secret"))
	})
}

// A success forgets the user's failures.
func TestASuccessForgetsFailures(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		for range 3 {
			for range 4 {
				require.Equal(t, wrong, s.try("192.0.2.1", "alice", "guess"))
			}
			require.Equal(t, welcome, s.try("192.0.2.1", "alice", "secret"))
		}
	})
}

// An address cannot go through many users, and its own successes do not help it. What it has
// failed counts; what has succeeded does not, so that an office of sixty can log in.
func TestAnAddressIsLimited(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		for range 60 {
			require.Equal(t, welcome, s.try("192.0.2.1", "alice", "secret"))
		}
		for i := range 50 {
			require.Equal(t, wrong, s.try("192.0.2.1", fmt.Sprintf("user-%d", i), "guess"))
			if i < 5 {
				require.Equal(t, welcome, s.try("192.0.2.1", "alice", "secret"))
			}
		}
		require.Equal(t, denied(900), s.try("192.0.2.1", "alice", "secret"))
		require.Equal(t, welcome, s.try("192.0.2.2", "alice", "secret"))

		// What the address was denied took nothing of the user.
		for range 10 {
			require.Equal(t, denied(900), s.try("192.0.2.1", "alice", "guess"))
		}
		require.Equal(t, welcome, s.try("192.0.2.2", "alice", "secret"))

		s.env.Advance(15 * time.Minute)
		require.Equal(t, welcome, s.try("192.0.2.1", "alice", "secret"))
		for i := range 50 {
			require.Equal(t, wrong, s.try("192.0.2.1", fmt.Sprintf("user-%d", i), "guess"))
		}
		require.Equal(t, denied(3600), s.try("192.0.2.1", "alice", "secret"), "the second ban")
	})
}

// Whoever tries gets the same answers for a user that there is and for one that there is not.
func TestNoAnswerTellsWhoIsAUser(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		s.guess("192.0.2.1", "somebody", 900) // connects, and loads the scripts
		work := func(address, user string) (answer string, commands int) {
			before := s.env.Miniredis().CommandCount()
			answer = s.try(address, user, "guess")
			return answer, s.env.Miniredis().CommandCount() - before
		}
		for i := range 7 {
			known, knownWork := work(fmt.Sprintf("192.0.2.%d", 10+i), "alice")
			unknown, unknownWork := work(fmt.Sprintf("192.0.2.%d", 20+i), "nobody")
			require.Equal(t, known, unknown)
			require.Equal(t, knownWork, unknownWork)
			s.env.Advance(time.Second)
		}
		require.Equal(t, denied(898), s.try("192.0.2.1", "alice", "guess"))
		require.Equal(t, denied(898), s.try("192.0.2.1", "nobody", "guess"))
	})
}

// Tries at the same time are counted before a password is looked at.
func TestTriesAtTheSameTime(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		var tries sync.WaitGroup
		for range 40 {
			tries.Go(func() { s.try("192.0.2.1", "alice", "guess") })
		}
		tries.Wait()
		require.Equal(t, 5, s.checked)
	})
}

// Without a decision nobody logs in, and no password is looked at.
func TestAnOutageDenies(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		require.Equal(t, welcome, s.try("192.0.2.1", "alice", "secret"))
		for _, begin := range []func(){s.env.Down, func() { s.env.FailWith("LOADING Redis is loading the dataset in memory") }, func() { s.env.Slow(time.Hour) }} {
			begin()
			require.Equal(t, later, s.try("192.0.2.1", "alice", "secret"))
			s.env.Up()
		}
		s.env.Advance(0)
		require.Equal(t, 1, s.checked)
		require.Equal(t, welcome, s.try("192.0.2.1", "alice", "secret"))

		// An outage between the try and the success: the user is in, and the try counts a while.
		s.check = func(context.Context, string, string) (bool, error) {
			s.env.Down()
			return true, nil
		}
		require.Equal(t, welcome, s.try("192.0.2.1", "alice", "secret"))
		s.env.Up()
		r, err := s.failures.Peek(t.Context(), "user:"+hashed("alice"))
		require.NoError(t, err)
		require.Equal(t, 4, r.Remaining)
	})
}

// A check that fails counts: otherwise an attacker who can make it fail has tries for nothing.
func TestACheckThatFails(t *testing.T) {
	inBubble(t, func(t *testing.T, s *site) {
		s.check = func(context.Context, string, string) (bool, error) { return true, errors.New("the database is down") }
		for range 5 {
			require.Equal(t, later, s.try("192.0.2.1", "alice", "secret"))
		}
		require.Equal(t, denied(900), s.try("192.0.2.1", "alice", "secret"))
		require.Equal(t, "400  bad request", s.try("nowhere", "alice", "secret"))
	})
}
