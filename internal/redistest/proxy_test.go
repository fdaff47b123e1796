package redistest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

var incr = redis.NewScript(`return redis.call("INCR", KEYS[1])`)

// behind returns a proxy in front of a server of its own, a client that goes through it and never retries, and one
// that goes past it.
func behind(t *testing.T) (p *Proxy, through, past *redis.Client) {
	s := Start(t)
	past = s.Client(t)
	check(t, incr.Load(testContext(t), past).Err())
	p = NewProxy(t, s.Addr())
	through = s.Client(t, func(o *redis.Options) {
		o.Addr, o.MaxRetries, o.ReadTimeout = p.Addr(), -1, time.Second
	})
	return p, through, past
}

func TestProxyPassesEverythingOn(t *testing.T) {
	_, c, _ := behind(t)
	ctx := testContext(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			value := strings.Repeat(fmt.Sprint(i), 200_000)
			key := fmt.Sprint("k", i)
			if err := c.Set(ctx, key, value, 0).Err(); err != nil {
				t.Error(err)
			}
			if c.Get(ctx, key).Val() != value {
				t.Error("value changed on the way")
			}
		})
	}
	wg.Wait()
}

func TestDroppedReplyWasExecuted(t *testing.T) {
	p, c, past := behind(t)
	ctx := testContext(t)
	fault := p.DropNextReply(OnScript())
	check(t, c.Ping(ctx).Err()) // another command on a new connection, with its handshake
	if err := incr.EvalSha(ctx, c, []string{"k"}).Err(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want EOF", err)
	}
	equal(t, "hits", fault.Hits(), 1)
	equal(t, "executed", past.Get(ctx, "k").Val(), "1")
	n, err := incr.EvalSha(ctx, c, []string{"k"}).Int()
	check(t, err)
	equal(t, "next reply", n, 2)
}

func TestDroppedReplyMakesGoRedisExecuteAgain(t *testing.T) {
	s := Start(t)
	p, past, ctx := NewProxy(t, s.Addr()), s.Client(t), testContext(t)
	check(t, incr.Load(ctx, past).Err())
	retrying := s.Client(t, func(o *redis.Options) { o.Addr = p.Addr() })
	fault := p.DropReply(2, OnScript())
	check(t, incr.EvalSha(ctx, retrying, []string{"k"}).Err())
	equal(t, "hits", fault.Hits(), 2)
	equal(t, "executed", past.Get(ctx, "k").Val(), "3")
}

func TestDroppedRequestWasNotExecuted(t *testing.T) {
	p, c, past := behind(t)
	ctx := testContext(t)
	fault := p.DropRequest(1, OnScript())
	if err := incr.EvalSha(ctx, c, []string{"k"}).Err(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want EOF", err)
	}
	equal(t, "hits", fault.Hits(), 1)
	equal(t, "not executed", past.Exists(ctx, "k").Val(), 0)
}

func TestMutedReplyTimesOut(t *testing.T) {
	p, c, past := behind(t)
	ctx := testContext(t)
	fault := p.MuteReply(1, OnScript())
	var timeout net.Error
	if err := incr.EvalSha(ctx, c, []string{"k"}).Err(); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("got %v, want a timeout", err)
	}
	equal(t, "hits", fault.Hits(), 1)
	equal(t, "executed", past.Get(ctx, "k").Val(), "1")
	check(t, c.Ping(ctx).Err())
}

func TestFaultHitsTheRightReplyOfAPipeline(t *testing.T) {
	p, _, past := behind(t)
	fault := p.DropNextReply(OnCommand("incr"))
	got := raw(t, p.Addr(), "*1\r\n$4\r\nPING\r\n*2\r\n$4\r\nincr\r\n$1\r\nk\r\n*1\r\n$4\r\nPING\r\n")
	equal(t, "replies", got, "+PONG\r\n")
	equal(t, "hits", fault.Hits(), 1)
	equal(t, "executed", past.Get(testContext(t), "k").Val(), "1")
}

// raw sends requests without go-redis, to see each byte of the replies. It returns all that came before the end.
func raw(t *testing.T, addr, requests string) string {
	conn, err := net.Dial("tcp", addr)
	check(t, err)
	defer conn.Close()
	check(t, conn.SetDeadline(time.Now().Add(callDeadline)))
	_, err = io.WriteString(conn, requests)
	check(t, err)
	all, err := io.ReadAll(conn)
	check(t, err)
	return string(all)
}

func TestReplyIsCutAfterSomeBytes(t *testing.T) {
	p, _, past := behind(t)
	check(t, past.Set(testContext(t), "k", "0123456789", 0).Err())
	for keep, want := range []string{"", "$", "$1", "$10", "$10\r", "$10\r\n", "$10\r\n0"} {
		fault := p.CutReplyAfter(keep, OnCommand("get"))
		got := raw(t, p.Addr(), "*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*1\r\n$4\r\nPING\r\n")
		equal(t, fmt.Sprintf("after %d bytes", keep), got, "+PONG\r\n"+want)
		equal(t, "hits", fault.Hits(), 1)
	}
}

func TestDisarmedFaultDoesNotStrike(t *testing.T) {
	p, c, _ := behind(t)
	fault := p.DropReply(1)
	p.Disarm()
	check(t, c.Ping(testContext(t)).Err())
	equal(t, "hits", fault.Hits(), 0)
}

func TestHungProxyDeliversLater(t *testing.T) {
	p, c, past := behind(t)
	ctx := testContext(t)
	check(t, c.Ping(ctx).Err())
	p.Hang()
	var timeout net.Error
	if err := incr.EvalSha(ctx, c, []string{"k"}).Err(); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("got %v, want a timeout", err)
	}
	conn, err := net.Dial("tcp", p.Addr())
	check(t, err)
	check(t, conn.Close())
	equal(t, "not executed", past.Exists(ctx, "k").Val(), 0)
	p.Unhang()
	await(t, "late execution", func(ctx context.Context) error { return past.Get(ctx, "k").Err() })
	check(t, c.Ping(ctx).Err())
}

func TestHeldRepliesWereExecuted(t *testing.T) {
	p, c, past := behind(t)
	ctx := testContext(t)
	check(t, c.Ping(ctx).Err())
	p.HoldReplies()
	result := make(chan error, 1)
	go func() { result <- incr.EvalSha(ctx, c, []string{"k"}).Err() }()
	await(t, "execution", func(ctx context.Context) error { return past.Get(ctx, "k").Err() })
	select {
	case err := <-result:
		t.Fatalf("answered with %v while replies are held", err)
	default:
	}
	p.Unhang()
	check(t, <-result)
}

func TestRefuseAndCut(t *testing.T) {
	p, c, _ := behind(t)
	ctx := testContext(t)
	check(t, c.Ping(ctx).Err())
	accepted := p.Accepted()
	p.Refuse()
	if _, err := net.Dial("tcp", p.Addr()); err == nil {
		t.Error("a refusing proxy accepts")
	}
	p.Allow()
	_ = c.Ping(ctx) // may find its old connection cut
	check(t, c.Ping(ctx).Err())
	if p.Accepted() <= accepted {
		t.Error("the connection was not cut")
	}
}

// echo answers with what it was sent, so that a proxy in front of it can be measured without a server's own time.
func echo(t *testing.T) string {
	l, err := listen()
	check(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	return l.Addr().String()
}

func TestDelayIsPreciseAndKeepsOrder(t *testing.T) {
	p := NewProxy(t, echo(t))
	conn, err := net.Dial("tcp", p.Addr())
	check(t, err)
	defer conn.Close()
	check(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	buf := make([]byte, 64)

	const eachWay = 2300 * time.Microsecond // not a whole number of milliseconds
	p.Delay(eachWay)
	best := time.Hour
	for range 50 {
		start := time.Now()
		_, err := conn.Write([]byte("+ping\r\n"))
		check(t, err)
		_, err = conn.Read(buf)
		check(t, err)
		took := time.Since(start)
		if took < 2*eachWay {
			t.Fatalf("a round trip took %v, less than the delay", took)
		}
		best = min(best, took-2*eachWay)
	}
	// The best of fifty, because other programs may have the processor the rest of the time.
	if best > 900*time.Microsecond {
		t.Errorf("every round trip took at least %v more than the delay", best)
	}
	t.Logf("a round trip takes %v more than the delay", best)
}

func TestDelayDoesNotLimitThroughput(t *testing.T) {
	p := NewProxy(t, echo(t))
	p.Delay(200 * time.Millisecond)
	conn, err := net.Dial("tcp", p.Addr())
	check(t, err)
	defer conn.Close()
	check(t, conn.SetDeadline(time.Now().Add(time.Minute)))

	var sent bytes.Buffer
	for i := range 5000 {
		fmt.Fprintf(&sent, "$8\r\n%08d\r\n", i)
	}
	want := bytes.Clone(sent.Bytes())
	start := time.Now()
	go func() {
		for sent.Len() > 0 { // in chunks that do not respect the frames
			if _, err := conn.Write(sent.Next(37)); err != nil {
				return
			}
		}
	}()
	got := make([]byte, len(want))
	_, err = io.ReadFull(conn, got)
	check(t, err)
	if !bytes.Equal(got, want) {
		t.Error("the order has changed")
	}
	// One chunk after the other would take 800 s. A loaded machine is granted a lot.
	if took := time.Since(start); took < 400*time.Millisecond || took > 10*time.Second {
		t.Errorf("took %v, want little more than one round trip of 400ms", took)
	}
}
