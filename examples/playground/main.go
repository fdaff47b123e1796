// Playground is a page on which to watch a limiter: choose an algorithm, a limit and its traffic,
// and see what is allowed and denied, and to whom, what Redis holds, a greedy caller, a pause, an
// outage and its policy, a change of plan, and callers that wait.
//
//	go run .                            # a Redis inside the process
//	REDIS_ADDR=localhost:6379 go run .  # a real one
//
// It listens on the loopback interface unless -listen names another address. On a real Redis it uses
// keys under a prefix of its own, which are deleted when it ends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// budget is longer than that of a service, because a script takes long in the embedded Redis.
const budget = 500 * time.Millisecond

func main() {
	listen := flag.String("listen", "localhost:8070", "address of the page")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, *listen, os.Getenv("REDIS_ADDR")); err != nil {
		fmt.Fprintln(os.Stderr, "playground:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, listen, addr string) error {
	where := "Redis at " + addr
	if addr == "" {
		server, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer server.Close()
		server.ClockTTL(true) // keys expire as time goes by
		addr, where = server.Addr(), "a Redis inside this process"
	}
	dial := func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}
	w, err := newWorld(dial, where, fmt.Sprintf("playground-%d", os.Getpid()), budget)
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	ctx, end := context.WithCancel(ctx)
	defer func() {
		end()
		running.Wait()
		w.close()
	}()
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("%w; -listen localhost:0 takes any free port", err)
	}
	fmt.Fprintf(out, "http://%s (%s; Ctrl-C ends it)\n", listener.Addr(), where)

	server := &http.Server{Handler: handler(w), ReadHeaderTimeout: 5 * time.Second}
	running.Go(func() { w.run(ctx) })
	running.Go(func() {
		<-ctx.Done()
		_ = server.Close() // pages that watch never end their request
	})
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
