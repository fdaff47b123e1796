// Gateway is a proxy of OpenAI's chat completions with budgets: each API key and each team has micro-dollars of a calendar
// month, and each key also tokens a minute and places for calls at the same time. One decision covers all. A stream takes its
// money in slices, and is cut when a budget has no more.
//
//	go run ./examples/gateway    # an upstream that repeats words, and a Redis inside the process; prints what to try
//	OPENAI_API_KEY=… go run ./examples/gateway -redis localhost:6379 -upstream https://api.openai.com -config my.json
//
// limits.go has the limits, gateway.go the way of a call, call.go its reserve, upstream.go the upstream and its pauses,
// journal.go the log of usages.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/tryacquire/ratelimit"
)

// budget is about what a call to Redis may take; the client gives up after five of them, and at least 100 ms.
const (
	budget      = 20 * time.Millisecond
	trialBudget = time.Second // of the Redis inside the process, which interprets scripts slowly, and of a laptop that does much else
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	if err := run(ctx, os.Args[1:], os.Stdout, miniredis.Run); err != nil {
		log.Fatal(err)
	}
}

// run serves until ctx ends, and then until all calls have ended. inside starts the Redis inside the process.
func run(ctx context.Context, args []string, out io.Writer, inside func() (*miniredis.Miniredis, error)) error {
	flags := flag.NewFlagSet("gateway", flag.ExitOnError)
	listen := flags.String("listen", "localhost:8080", "where to serve")
	addr := flags.String("redis", "", "address of Redis; without it, one inside this process")
	url := flags.String("upstream", "", "such as https://api.openai.com, whose key is OPENAI_API_KEY; without it, one that repeats words")
	path := flags.String("config", "", "models, teams and keys, as in gateway.json")
	usages := flags.String("usages", "", "the file to which usages are logged; without it, the standard error")
	lease := flags.Duration("lease", time.Minute, "for how long a process that dies keeps what it has reserved")
	slice := flags.Int("slice", 100, "tokens that an answer reserves at once")
	pace := flags.Duration("pace", 10*time.Millisecond, "of a word of the upstream that repeats words")
	_ = flags.Parse(args) // it exits
	if flags.NArg() > 0 { // and what follows it would be ignored, with the flags in it
		return fmt.Errorf("%q is no flag; gateway -help has all", flags.Arg(0))
	}

	c, err := readConfig(*path)
	if err != nil {
		return err
	}
	budget := budget
	if *addr == "" {
		server, err := inside()
		if err != nil {
			return err
		}
		defer server.Close()
		*addr, budget = server.Addr(), trialBudget
	}
	if *url == "" {
		fake, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer fake.Close()
		go func() { _ = http.Serve(fake, &parrot{*pace}) }()
		*url = "http://" + fake.Addr().String()
	}
	log := &journal{to: os.Stderr}
	if *usages != "" {
		file, err := os.OpenFile(*usages, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		defer file.Close()
		log.to = file
	}
	client := redis.NewClient(ratelimit.Must(ratelimit.ClientOptions(budget, &redis.Options{Addr: *addr})))
	defer client.Close()
	up := &upstream{client: &http.Client{}, url: *url, secret: os.Getenv("OPENAI_API_KEY")}
	g, err := newGateway(client, c, *lease, *slice, up, log)
	if err != nil {
		return err
	}
	if err := g.preload(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "Redis is down: %v\n", err) // until it is up, each call gets a 503
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "who has spent what: http://%s/\n", listener.Addr())
	if *path == "" {
		fmt.Fprintf(out, tryThis, listener.Addr())
	}
	server := &http.Server{Handler: g.handler(), ReadHeaderTimeout: 10 * time.Second, WriteTimeout: mostTime + time.Minute}
	go func() {
		<-ctx.Done()
		_ = server.Shutdown(context.Background())
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return server.Shutdown(context.Background()) // waits until all calls have ended
}

const tryThis = `three calls; the third is denied, because it would exceed the key's tokens of a minute:

curl -i 'http://%s/v1/chat/completions?call=[1-3]' -H 'Authorization: Bearer sk-trial' -d '
  {"model": "parrot", "messages": [{"role": "user", "content": "say 60 words"}]}'

`
