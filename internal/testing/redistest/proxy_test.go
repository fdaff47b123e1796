package redistest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

var incr = redis.NewScript(`return redis.call("INCR", KEYS[1])`)

// behind returns a proxy in front of a server of its own, a client that goes through it and never retries, and one
// that goes past it.
func behind(t *testing.T) (p *Proxy, through, past *redis.Client) {
	s := Start(t)
	past = s.Client(t)
	require.NoError(t, incr.Load(testContext(t), past).Err())
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
	require.NoError(t, c.Ping(ctx).Err()) // another command on a new connection, with its handshake
	err := incr.EvalSha(ctx, c, []string{"k"}).Err()
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, 1, fault.Hits(), "hits")
	require.Equal(t, "1", past.Get(ctx, "k").Val(), "executed")
	n, err := incr.EvalSha(ctx, c, []string{"k"}).Int()
	require.NoError(t, err)
	require.Equal(t, 2, n, "next reply")
}

func TestDroppedReplyMakesGoRedisExecuteAgain(t *testing.T) {
	s := Start(t)
	p, past, ctx := NewProxy(t, s.Addr()), s.Client(t), testContext(t)
	require.NoError(t, incr.Load(ctx, past).Err())
	retrying := s.Client(t, func(o *redis.Options) { o.Addr = p.Addr() })
	fault := p.DropReply(2, OnScript())
	require.NoError(t, incr.EvalSha(ctx, retrying, []string{"k"}).Err())
	require.Equal(t, 2, fault.Hits(), "hits")
	require.Equal(t, "3", past.Get(ctx, "k").Val(), "executed")
}

func TestDroppedRequestWasNotExecuted(t *testing.T) {
	p, c, past := behind(t)
	ctx := testContext(t)
	fault := p.DropRequest(1, OnScript())
	err := incr.EvalSha(ctx, c, []string{"k"}).Err()
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, 1, fault.Hits(), "hits")
	require.Equal(t, int64(0), past.Exists(ctx, "k").Val(), "not executed")
}

func TestMutedReplyTimesOut(t *testing.T) {
	p, c, past := behind(t)
	ctx := testContext(t)
	fault := p.MuteReply(1, OnScript())
	var timeout net.Error
	err := incr.EvalSha(ctx, c, []string{"k"}).Err()
	require.ErrorAs(t, err, &timeout)
	require.True(t, timeout.Timeout(), "%v", err)
	require.Equal(t, 1, fault.Hits(), "hits")
	require.Equal(t, "1", past.Get(ctx, "k").Val(), "executed")
	require.NoError(t, c.Ping(ctx).Err())
}

func TestFaultHitsTheRightReplyOfAPipeline(t *testing.T) {
	p, _, past := behind(t)
	fault := p.DropNextReply(OnCommand("incr"))
	got := raw(t, p.Addr(), "*1\r\n$4\r\nPING\r\n*2\r\n$4\r\nincr\r\n$1\r\nk\r\n*1\r\n$4\r\nPING\r\n")
	require.Equal(t, "+PONG\r\n", got, "replies")
	require.Equal(t, 1, fault.Hits(), "hits")
	require.Equal(t, "1", past.Get(testContext(t), "k").Val(), "executed")
}

// raw sends requests without go-redis, to see each byte of the replies. It returns all that came before the end.
func raw(t *testing.T, addr, requests string) string {
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(callDeadline)))
	_, err = io.WriteString(conn, requests)
	require.NoError(t, err)
	all, err := io.ReadAll(conn)
	require.NoError(t, err)
	return string(all)
}

func TestReplyIsCutAfterSomeBytes(t *testing.T) {
	p, _, past := behind(t)
	require.NoError(t, past.Set(testContext(t), "k", "0123456789", 0).Err())
	for keep, want := range []string{"", "$", "$1", "$10", "$10\r", "$10\r\n", "$10\r\n0"} {
		fault := p.CutReplyAfter(keep, OnCommand("get"))
		got := raw(t, p.Addr(), "*1\r\n$4\r\nPING\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*1\r\n$4\r\nPING\r\n")
		require.Equal(t, "+PONG\r\n"+want, got, fmt.Sprintf("after %d bytes", keep))
		require.Equal(t, 1, fault.Hits(), "hits")
	}
}

func TestDisarmedFaultHasNoEffect(t *testing.T) {
	p, c, _ := behind(t)
	fault := p.DropReply(1)
	p.Disarm()
	require.NoError(t, c.Ping(testContext(t)).Err())
	require.Equal(t, 0, fault.Hits(), "hits")
}

func TestHungProxyDeliversLater(t *testing.T) {
	p, c, past := behind(t)
	ctx := testContext(t)
	require.NoError(t, c.Ping(ctx).Err())
	p.Hang()
	var timeout net.Error
	err := incr.EvalSha(ctx, c, []string{"k"}).Err()
	require.ErrorAs(t, err, &timeout)
	require.True(t, timeout.Timeout(), "%v", err)
	conn, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.Equal(t, int64(0), past.Exists(ctx, "k").Val(), "not executed")
	p.Unhang()
	await(t, "late execution", func(ctx context.Context) error { return past.Get(ctx, "k").Err() })
	require.NoError(t, c.Ping(ctx).Err())
}

func TestHeldRepliesWereExecuted(t *testing.T) {
	p, c, past := behind(t)
	ctx := testContext(t)
	require.NoError(t, c.Ping(ctx).Err())
	p.HoldReplies()
	result := make(chan error, 1)
	go func() { result <- incr.EvalSha(ctx, c, []string{"k"}).Err() }()
	await(t, "execution", func(ctx context.Context) error { return past.Get(ctx, "k").Err() })
	select {
	case err := <-result:
		require.Fail(t, "answered while replies are held", "%v", err)
	default:
	}
	p.Unhang()
	require.NoError(t, <-result)
}

func TestRefuseAndCut(t *testing.T) {
	p, c, _ := behind(t)
	ctx := testContext(t)
	require.NoError(t, c.Ping(ctx).Err())
	accepted := p.Accepted()
	p.Refuse()
	_, err := net.Dial("tcp", p.Addr())
	require.Error(t, err, "a refusing proxy accepts")
	p.Allow()
	_ = c.Ping(ctx) // may find its old connection cut
	require.NoError(t, c.Ping(ctx).Err())
	require.Greater(t, p.Accepted(), accepted, "the connection was not cut")
}

// echo answers with what it was sent, so that a proxy in front of it can be measured without a server's own time.
func echo(t *testing.T) string {
	l, err := listen()
	require.NoError(t, err)
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
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	buf := make([]byte, 64)

	const eachWay = 2300 * time.Microsecond // not a whole number of milliseconds
	p.Delay(eachWay)
	best := time.Hour
	for range 50 {
		start := time.Now()
		_, err := conn.Write([]byte("+ping\r\n"))
		require.NoError(t, err)
		_, err = conn.Read(buf)
		require.NoError(t, err)
		took := time.Since(start)
		require.GreaterOrEqual(t, took, 2*eachWay, "a round trip took %v, less than the delay", took)
		best = min(best, took-2*eachWay)
	}
	// The best of fifty, because other programs may have the processor the rest of the time.
	require.LessOrEqual(t, best, 900*time.Microsecond, "every round trip took at least %v more than the delay", best)
	t.Logf("a round trip takes %v more than the delay", best)
}

func TestDelayDoesNotLimitThroughput(t *testing.T) {
	p := NewProxy(t, echo(t))
	p.Delay(200 * time.Millisecond)
	conn, err := net.Dial("tcp", p.Addr())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))

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
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got), "the order has changed")
	// One chunk after the other would take 800 s. The upper bound is wide, for a loaded machine.
	took := time.Since(start)
	require.False(t, took < 400*time.Millisecond || took > 10*time.Second, "took %v, want little more than one round trip of 400ms", took)
}
