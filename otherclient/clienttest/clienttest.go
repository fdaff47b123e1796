// Package clienttest tests what an otherclient.Conn has to do.
package clienttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/otherclient"
)

// Run tests the Conn that open returns for the server at an address, which is a Redis without RESP3 inside the test's process.
// open closes it when the test ends. The Conn waits at most a second for a reply.
func Run(t *testing.T, open func(t *testing.T, addr string) otherclient.Conn) {
	start := func(t *testing.T) (*server, otherclient.Conn) {
		s := newServer(t)
		return s, open(t, s.addr())
	}
	t.Run("scripts are sent by digest, and whole if the server does not know them", func(t *testing.T) {
		s, conn := start(t)
		l := bucket(t, conn, 5)
		for left := 4; left >= 0; left-- {
			if r := take(t, l, "k"); !r.Allowed || r.Remaining != left {
				t.Fatalf("allowed %v with %d left; want true with %d", r.Allowed, r.Remaining, left)
			}
		}
		if r := take(t, l, "k"); r.Allowed || r.RetryAfter <= 0 {
			t.Fatalf("a sixth permit of five: %+v", r)
		}
		if n := s.whole.Load(); n != 1 {
			t.Errorf("the script was sent %d times as a whole, not once", n)
		}
	})
	t.Run("a lost reply is an error, and the call is executed once", func(t *testing.T) {
		s, conn := start(t)
		l := bucket(t, conn, 100)
		take(t, l, "k") // the server knows the script
		s.lose.Store(true)
		r, err := l.TryAcquire(t.Context(), "k")
		if err == nil {
			t.Fatalf("no error, though no reply came: %+v", r)
		}
		s.lose.Store(false)
		for _, mistake := range []error{ratelimit.ErrInvalidConfig, ratelimit.ErrCorruptState} {
			if errors.Is(err, mistake) {
				t.Errorf("the error matches %v: %v", mistake, err)
			}
		}
		if r = take(t, l, "k"); r.Remaining != 97 {
			t.Errorf("%d of 100 are left after three calls, one of which had no reply; want 97", r.Remaining)
		}
	})
	t.Run("lost replies to several commands are errors, and each command is executed once", func(t *testing.T) {
		s, conn := start(t)
		if r := conn.Do(t.Context(), incr("first")); r.Err != nil {
			t.Fatal(r.Err)
		}
		s.lose.Store(true)
		for i, r := range conn.DoAll(t.Context(), []otherclient.Command{incr("{a}1"), incr("{a}2"), incr("{a}3")}) {
			var server otherclient.ServerError
			if r.Err == nil || errors.As(r.Err, &server) {
				t.Errorf("reply %d, which did not come: %+v; want an error that is no ServerError", i, r)
			}
		}
		s.lose.Store(false)
		for _, key := range []string{"{a}1", "{a}2", "{a}3"} {
			if r := conn.Do(t.Context(), incr(key)); r.Err != nil || r.Value != int64(2) && r.Value != int64(1) {
				t.Errorf("%s after two commands: %+v; want 2, or 1 if the first did not arrive", key, r)
			}
		}
	})
	t.Run("an error of the server says what it is", func(t *testing.T) {
		s, conn := start(t)
		window, err := ratelimit.NewSlidingWindow(otherclient.New(conn), 5, time.Minute, ratelimit.WithName("w"))
		if err != nil {
			t.Fatal(err)
		}
		take(t, window, "k")
		for _, name := range s.redis.Keys() {
			s.redis.Del(name)
			if _, err := s.redis.SetAdd(name, "another type"); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := window.TryAcquire(t.Context(), "k"); !errors.Is(err, ratelimit.ErrCorruptState) {
			t.Errorf("a key of another type: %v; want ErrCorruptState, by a ServerError that begins with WRONGTYPE", err)
		}
		s.redis.SetError("LOADING Redis is loading the dataset in memory")
		if _, err := window.TryAcquire(t.Context(), "other"); err == nil || errors.Is(err, ratelimit.ErrCorruptState) {
			t.Errorf("a server that is loading: %v; want an outage", err)
		}
	})
	t.Run("replies come in the order of the commands, each with its own error", func(t *testing.T) {
		s, conn := start(t)
		if err := s.redis.Set("text", "no number"); err != nil {
			t.Fatal(err)
		}
		load := conn.Do(t.Context(), otherclient.Command{Words: []string{"script", "load", "return redis.call('incrby', KEYS[1], ARGV[1])"}})
		digest, ok := load.Value.(string)
		if b, isBytes := load.Value.([]byte); isBytes {
			digest, ok = string(b), true
		}
		if load.Err != nil || !ok {
			t.Fatalf("script load: %+v; want a digest", load)
		}
		var commands []otherclient.Command
		for i := range 200 {
			key := fmt.Sprintf("{%d}", i)
			if i%10 == 3 {
				key = "text"
			}
			commands = append(commands, otherclient.Command{Words: []string{"evalsha", digest, "1", key, fmt.Sprint(i + 1)}, Key: 3, Keys: 1})
		}
		replies := conn.DoAll(t.Context(), commands)
		if len(replies) != len(commands) {
			t.Fatalf("%d replies to %d commands", len(replies), len(commands))
		}
		for i, r := range replies {
			var server otherclient.ServerError
			if i%10 == 3 {
				if !errors.As(r.Err, &server) {
					t.Errorf("reply %d: %+v; want a ServerError", i, r)
				}
			} else if r.Err != nil || r.Value != int64(i+1) {
				t.Errorf("reply %d: %+v; want %d", i, r, i+1)
			}
		}
		unknown := conn.Do(t.Context(), otherclient.Command{Words: []string{"evalsha", "0123456789012345678901234567890123456789", "1", "k"}, Key: 3, Keys: 1})
		var server otherclient.ServerError
		if !errors.As(unknown.Err, &server) || !bytes.HasPrefix([]byte(server), []byte("NOSCRIPT")) {
			t.Errorf("an unknown script: %+v; want a ServerError that begins with NOSCRIPT", unknown)
		}
		array := conn.Do(t.Context(), otherclient.Command{Words: []string{"eval", "return {1, -2, 9007199254740992}", "0"}})
		if got := fmt.Sprint(array.Value); array.Err != nil || got != "[1 -2 9007199254740992]" {
			t.Errorf("an array of integers: %+v", array)
		}
		bytes := conn.Do(t.Context(), otherclient.Command{Words: []string{"eval", "return #ARGV[1]", "0", "\x00\r\n\xff"}})
		if bytes.Err != nil || bytes.Value != int64(4) {
			t.Errorf("the length of four bytes: %+v", bytes)
		}
	})
	t.Run("a context that ends, ends the call", func(t *testing.T) {
		s, conn := start(t)
		l := bucket(t, conn, 100)
		take(t, l, "k")
		s.hold.Lock() // no reply comes
		defer s.hold.Unlock()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, err := l.TryAcquire(ctx, "k")
		var network net.Error // a client may give the context's deadline to the connection, which then ends first
		if !errors.Is(err, context.DeadlineExceeded) && !(errors.As(err, &network) && network.Timeout()) {
			t.Errorf("%v; want an error that wraps the context's, or a timeout", err)
		}
		again, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer stop()
		for _, r := range conn.DoAll(again, []otherclient.Command{incr("{a}1"), incr("{a}2")}) {
			if !errors.Is(r.Err, context.DeadlineExceeded) && !(errors.As(r.Err, &network) && network.Timeout()) {
				t.Errorf("several commands: %v; want an error that wraps the context's, or a timeout", r.Err)
			}
		}
	})
	t.Run("many callers get what the rule allows, and share executions", func(t *testing.T) {
		s, conn := start(t)
		l := bucket(t, conn, 1000)
		take(t, l, "k")
		before := s.scripts.Load()
		var allowed atomic.Int64
		var all sync.WaitGroup
		for range 64 {
			all.Go(func() {
				for range 20 {
					r, err := l.TryAcquire(context.Background(), "k")
					if err != nil {
						t.Error(err)
						return
					}
					if r.Allowed {
						allowed.Add(1)
					}
				}
			})
		}
		all.Wait()
		if n := allowed.Load(); n != 999 {
			t.Errorf("%d of 1280 calls were allowed; want 999", n)
		}
		if n := s.scripts.Load() - before; n >= 1280 {
			t.Errorf("1280 calls of 64 callers took %d executions", n)
		}
	})
	t.Run("scripts are loaded on each server", func(t *testing.T) {
		s, conn := start(t)
		if r := conn.DoEach(t.Context(), otherclient.Command{Words: []string{"script", "load", "return 1"}}); r != nil {
			t.Error(r)
		}
		s.redis.SetError("LOADING Redis is loading the dataset in memory")
		var server otherclient.ServerError
		if r := conn.DoEach(t.Context(), otherclient.Command{Words: []string{"script", "load", "return 1"}}); !errors.As(r, &server) {
			t.Errorf("%v; want a ServerError", r)
		}
	})
}

// incr is a script as a limiter's, that adds 1 to a key.
func incr(key string) otherclient.Command {
	return otherclient.Command{Words: []string{"eval", "return redis.call('incr', KEYS[1])", "1", key}, Key: 3, Keys: 1}
}

// bucket does not refill while a test runs.
func bucket(t *testing.T, conn otherclient.Conn, burst int) ratelimit.Limiter {
	t.Helper()
	l, err := ratelimit.NewTokenBucket(otherclient.New(conn), ratelimit.PerHour(1), burst)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func take(t *testing.T, l ratelimit.Limiter, key string) ratelimit.Result {
	t.Helper()
	r, err := l.TryAcquire(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A server is a Redis behind a listener that can lose and hold replies, and counts scripts.
type server struct {
	redis    *miniredis.Miniredis
	behind   string // its address, which it knows only until it ends
	listener net.Listener
	lose     atomic.Bool  // close a connection instead of passing on the reply to a script
	hold     sync.RWMutex // locked: no reply is passed on
	scripts  atomic.Int64 // EVALSHA and EVAL
	whole    atomic.Int64 // EVAL
}

func newServer(t *testing.T) *server {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	redis := miniredis.RunT(t)
	s := &server{redis: redis, behind: redis.Addr(), listener: listener}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go s.serve(conn)
		}
	}()
	return s
}

func (s *server) addr() string { return s.listener.Addr().String() }

func (s *server) serve(from net.Conn) {
	defer func() { _ = from.Close() }()
	to, err := net.Dial("tcp", s.behind)
	if err != nil {
		return
	}
	defer func() { _ = to.Close() }()
	var losing atomic.Bool
	go func() { // the replies
		defer func() { _ = from.Close() }()
		buffer := make([]byte, 1<<16)
		for {
			n, err := to.Read(buffer)
			s.hold.RLock()
			lost := losing.Load()
			s.hold.RUnlock()
			if err != nil || lost {
				return
			}
			if _, err := from.Write(buffer[:n]); err != nil {
				return
			}
		}
	}()
	buffer := make([]byte, 1<<16)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		upper := bytes.ToUpper(buffer[:n])
		digests, whole := bytes.Count(upper, []byte("\r\nEVALSHA\r\n")), bytes.Count(upper, []byte("\r\nEVAL\r\n"))
		s.scripts.Add(int64(digests + whole))
		s.whole.Add(int64(whole))
		if digests+whole > 0 && s.lose.Load() {
			losing.Store(true)
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}
