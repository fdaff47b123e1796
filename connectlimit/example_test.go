package connectlimit_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"time"

	"connectrpc.com/connect"
	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/connectlimit"
	"github.com/tryacquire/ratelimit/httplimit"
)

// redisForExamples is a Redis inside this process, whose clock stands still.
func redisForExamples() *redis.Client {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	server.SetTime(time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC))
	return redis.NewClient(&redis.Options{Addr: server.Addr()})
}

const helloProcedure = "/hello.v1.Hello/Hello"

// newHello stands for the function of that kind that protoc-gen-connect-go writes.
func newHello(opts ...connect.HandlerOption) (string, http.Handler) {
	return helloProcedure, connect.NewUnaryHandler(helloProcedure,
		func(_ context.Context, req *connect.Request[wrapperspb.StringValue]) (*connect.Response[wrapperspb.StringValue], error) {
			return connect.NewResponse(wrapperspb.String("hello " + req.Msg.GetValue())), nil
		}, opts...)
}

// newHelloClient stands for the generated client.
func newHelloClient(url string, opts ...connect.ClientOption) *connect.Client[wrapperspb.StringValue, wrapperspb.StringValue] {
	return connect.NewClient[wrapperspb.StringValue, wrapperspb.StringValue](http.DefaultClient, url+helloProcedure, opts...)
}

// A limit by address, and what a client sees of it.
func ExampleNewServer() {
	client := redisForExamples()
	limiter := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1), 2, ratelimit.WithName("hello")))

	key := ratelimit.Must(connectlimit.ClientIP(nil)) // behind proxies: give it their networks
	limit := ratelimit.Must(connectlimit.NewServer(limiter, key, connectlimit.WithPolicy("hello")))
	mux := http.NewServeMux()
	mux.Handle(newHello(connect.WithInterceptors(limit)))

	server := httptest.NewServer(mux)
	defer server.Close()
	for range 3 {
		_, err := newHelloClient(server.URL).CallUnary(context.Background(), connect.NewRequest(wrapperspb.String("you")))
		if err == nil {
			fmt.Println("hello")
			continue
		}
		wait, _ := connectlimit.RetryAfter(err)
		fmt.Println(connect.CodeOf(err), wait)
	}
	// Output:
	// hello
	// hello
	// resource_exhausted 1s
}

// The client limits itself to what the server allows, and waits for its turn.
func ExampleNewClient() {
	client := redisForExamples()
	mux := http.NewServeMux()
	mux.Handle(newHello())
	server := httptest.NewServer(mux)
	defer server.Close()

	limiter := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(500), 1, ratelimit.WithName("upstream")))
	limit := ratelimit.Must(connectlimit.NewClient(limiter, connectlimit.Everyone(), connectlimit.WithMaxWait(connectlimit.UntilDeadline)))
	hello := newHelloClient(server.URL, connect.WithInterceptors(limit))

	for range 3 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		resp, err := hello.CallUnary(ctx, connect.NewRequest(wrapperspb.String("you")))
		cancel()
		fmt.Println(resp.Msg.GetValue(), err)
	}
	// Output:
	// hello you <nil>
	// hello you <nil>
	// hello you <nil>
}

// What happens to a call without a decision is the service's choice. This one asks those who
// bring no API key for one, and logs all other errors.
func ExampleWithErrorHandler() {
	client := redisForExamples()
	limiter := ratelimit.Must(ratelimit.NewFixedWindow(client, 100, time.Hour, ratelimit.WithName("api")))
	key := ratelimit.Must(connectlimit.APIKey("Authorization"))

	limit := ratelimit.Must(connectlimit.NewServer(limiter, key,
		connectlimit.WithErrorHandler(func(ctx context.Context, call connectlimit.Call, err error) error {
			if errors.Is(err, connectlimit.ErrNoKey) {
				return connect.NewError(connect.CodeUnauthenticated, errors.New("send an API key"))
			}
			log.Print(err)
			return connectlimit.ServeInOutages(ctx, call, err)
		})))

	mux := http.NewServeMux()
	mux.Handle(newHello(connect.WithInterceptors(limit)))
	server := httptest.NewServer(mux)
	defer server.Close()
	_, err := newHelloClient(server.URL).CallUnary(context.Background(), connect.NewRequest(wrapperspb.String("you")))
	fmt.Println(err)
	// Output: unauthenticated: send an API key
}

// A call is limited by its user. If nobody has logged in, it is limited by the client's address.
func ExampleFirstOf() {
	type userKey struct{}
	user := ratelimit.Must(connectlimit.User(func(ctx context.Context) string {
		id, _ := ctx.Value(userKey{}).(string)
		return id
	}))
	address := ratelimit.Must(connectlimit.ClientIP([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}))
	key := ratelimit.Must(connectlimit.FirstOf(user, address))

	call := connectlimit.Call{Peer: connect.Peer{Addr: "10.0.0.1:443"}, Header: http.Header{}}
	call.Header.Set("X-Forwarded-For", "203.0.113.7")
	fmt.Println(key(context.Background(), call))
	fmt.Println(key(context.WithValue(context.Background(), userKey{}, "42"), call))
	// Output:
	// ip:203.0.113.7 <nil>
	// user:42 <nil>
}

// In front of the mux, httplimit denies before anything of the call is read. Its denial handler
// answers RPC clients in their own protocol, and all others as usual.
func ExampleDecision_Err() {
	client := redisForExamples()
	limiter := ratelimit.Must(ratelimit.NewFixedWindow(client, 1, time.Minute, ratelimit.WithName("address")))
	mux := http.NewServeMux()
	mux.Handle(newHello())

	rpc := connect.NewErrorWriter()
	limit := ratelimit.Must(httplimit.New(limiter, ratelimit.Must(httplimit.ClientIP(nil)), httplimit.WithPolicy("address"),
		httplimit.WithDenialHandler(func(w http.ResponseWriter, r *http.Request, d httplimit.Decision) {
			if !rpc.IsSupported(r) {
				httplimit.DefaultDenialHandler(w, r, d)
				return
			}
			_ = rpc.Write(w, r, connectlimit.Decision{Policy: d.Policy, Result: d.Result}.Err())
		})))

	server := httptest.NewServer(limit(mux))
	defer server.Close()
	for _, protocol := range []connect.ClientOption{connect.WithProtoJSON(), connect.WithProtoJSON(), connect.WithGRPCWeb()} {
		_, err := newHelloClient(server.URL, protocol).CallUnary(context.Background(), connect.NewRequest(wrapperspb.String("you")))
		wait, _ := connectlimit.RetryAfter(err)
		fmt.Println(err, wait)
	}
	// Output:
	// <nil> 0s
	// resource_exhausted: the limit "address" is used up, retry after 1m0s 1m0s
	// resource_exhausted: the limit "address" is used up, retry after 1m0s 1m0s
}
