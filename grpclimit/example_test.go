package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/grpclimit"
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

// serveHealth serves gRPC's own health service, and connects to it.
func serveHealth(server *grpc.Server, opts ...grpc.DialOption) (client grpc_health_v1.HealthClient, stop func()) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		panic(err)
	}
	return grpc_health_v1.NewHealthClient(conn), func() { _ = conn.Close(); server.Stop() }
}

// A limit by address, and what a client sees of it.
func ExampleNewServer() {
	client := redisForExamples()
	limiter := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(1), 2, ratelimit.WithName("hello")))

	key := ratelimit.Must(grpclimit.ClientIP(nil)) // behind proxies: give it their networks
	limit := ratelimit.Must(grpclimit.NewServer(limiter, key, grpclimit.WithPolicy("hello")))
	server := grpc.NewServer(limit.Options()...)

	service, stop := serveHealth(server)
	defer stop()
	for range 3 {
		_, err := service.Check(context.Background(), &grpc_health_v1.HealthCheckRequest{})
		wait, _ := grpclimit.RetryAfter(err)
		fmt.Println(status.Code(err), wait)
	}
	// Output:
	// OK 0s
	// OK 0s
	// ResourceExhausted 1s
}

// The client limits itself to what the server allows, and waits for its turn.
func ExampleNewClient() {
	client := redisForExamples()
	limiter := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(500), 1, ratelimit.WithName("upstream")))

	limit := ratelimit.Must(grpclimit.NewClient(limiter, grpclimit.Everyone(), grpclimit.WithMaxWait(grpclimit.UntilDeadline)))
	service, stop := serveHealth(grpc.NewServer(), limit.Options()...)
	defer stop()

	for range 3 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		_, err := service.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		cancel()
		fmt.Println(status.Code(err))
	}
	// Output:
	// OK
	// OK
	// OK
}

// A client whose retry policy retries denials: it comes back when the server says so.
func Example_retryPolicy() {
	bucket := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(100), 1))
	limit := ratelimit.Must(grpclimit.NewServer(bucket, grpclimit.Everyone()))
	server := grpc.NewServer(limit.Options()...)

	retry := grpc.WithDefaultServiceConfig(`{"methodConfig": [{
		"name": [{"service": "grpc.health.v1.Health"}],
		"retryPolicy": {
			"maxAttempts": 4, "initialBackoff": "1s", "maxBackoff": "10s", "backoffMultiplier": 2,
			"retryableStatusCodes": ["RESOURCE_EXHAUSTED", "UNAVAILABLE"]
		}
	}]}`)
	service, stop := serveHealth(server, retry)
	defer stop()
	for range 2 {
		_, err := service.Check(context.Background(), &grpc_health_v1.HealthCheckRequest{})
		fmt.Println(status.Code(err))
	}
	// Output:
	// OK
	// OK
}

// A call is limited by its user. If nobody has logged in, it is limited by the client's address. Health
// checks are not limited.
func ExampleFirstOf() {
	client := redisForExamples()
	type userKey struct{}
	authenticate := func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		return handler(context.WithValue(ctx, userKey{}, "42"), req)
	}
	limiter := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(10), 20, ratelimit.WithName("api")))

	user := ratelimit.Must(grpclimit.User(func(ctx context.Context) string {
		id, _ := ctx.Value(userKey{}).(string)
		return id
	}))
	address := ratelimit.Must(grpclimit.ClientIP([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}))
	key := ratelimit.Must(grpclimit.FirstOf(user, address))
	limit := ratelimit.Must(grpclimit.NewServer(limiter, key,
		grpclimit.WithSkip(func(_ context.Context, call grpclimit.Call) bool {
			return strings.HasPrefix(call.Method, "/grpc.health.v1.Health/")
		})))
	server := grpc.NewServer(append([]grpc.ServerOption{grpc.ChainUnaryInterceptor(authenticate)}, limit.Options()...)...)

	service, stop := serveHealth(server)
	defer stop()
	_, err := service.Check(context.Background(), &grpc_health_v1.HealthCheckRequest{})
	fmt.Println(status.Code(err))
	// Output: OK
}

// Each plan has its limiter; the user's plan is looked up in each call.
func ExampleNewServer_plans() {
	client := redisForExamples()
	planOf := map[string]string{"user:42": "pro"}
	user := ratelimit.Must(grpclimit.User(func(context.Context) string { return "42" }))

	plans := map[string]ratelimit.Limiter{
		"free": ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerMinute(10), 1, ratelimit.WithName("api"))),
		"pro":  ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerMinute(100), 2, ratelimit.WithName("api"))),
	}
	choice := ratelimit.Must(ratelimit.NewChoice(func(_ context.Context, key string) (ratelimit.Limiter, error) {
		if plan, ok := plans[planOf[key]]; ok {
			return plan, nil
		}
		return plans["free"], nil
	}))
	limit := ratelimit.Must(grpclimit.NewServer(choice, user, grpclimit.WithPolicy("api")))

	service, stop := serveHealth(grpc.NewServer(limit.Options()...))
	defer stop()
	for range 3 {
		_, err := service.Check(context.Background(), &grpc_health_v1.HealthCheckRequest{})
		fmt.Println(status.Code(err))
	}
	// Output:
	// OK
	// OK
	// ResourceExhausted
}

// A stream takes a permit when it starts, and each of its messages one of another limiter. A
// client that sends faster is slowed down.
func ExampleWithReceived() {
	client := redisForExamples()
	streams := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerMinute(10), 10, ratelimit.WithName("streams")))
	messages := ratelimit.Must(ratelimit.NewTokenBucket(client, ratelimit.PerSecond(100), 50, ratelimit.WithName("messages")))
	key := ratelimit.Must(grpclimit.APIKey("authorization"))

	limit, err := grpclimit.NewServer(streams, key, grpclimit.WithReceived(messages, grpclimit.UntilDeadline))
	fmt.Println(limit != nil, err)
	// Output: true <nil>
}

// What happens to a call without a decision is the service's choice. This one asks those who
// bring no API key for one, and logs all other errors.
func ExampleWithErrorHandler() {
	client := redisForExamples()
	limiter := ratelimit.Must(ratelimit.NewFixedWindow(client, 100, time.Hour, ratelimit.WithName("api")))
	key := ratelimit.Must(grpclimit.APIKey("authorization"))

	limit := ratelimit.Must(grpclimit.NewServer(limiter, key,
		grpclimit.WithErrorHandler(func(ctx context.Context, call grpclimit.Call, err error) error {
			if errors.Is(err, grpclimit.ErrNoKey) {
				return status.Error(codes.Unauthenticated, "send an API key")
			}
			log.Print(err)
			return grpclimit.ServeInOutages(ctx, call, err)
		})))

	service, stop := serveHealth(grpc.NewServer(limit.Options()...))
	defer stop()
	_, err := service.Check(context.Background(), &grpc_health_v1.HealthCheckRequest{})
	fmt.Println(status.Code(err))
	// Output: Unauthenticated
}

// Against floods: a limit in memory, before the server spends anything on a call.
func ExampleNewTap() {
	flood := ratelimit.Must(ratelimit.NewLocalTokenBucket(ratelimit.PerSecond(1000), 2000))
	address := ratelimit.Must(grpclimit.ClientIP(nil))

	tap := ratelimit.Must(grpclimit.NewTap(flood, address, grpclimit.WithPolicy("flood")))
	server := grpc.NewServer(grpc.InTapHandle(tap))

	service, stop := serveHealth(server)
	defer stop()
	_, err := service.Check(context.Background(), &grpc_health_v1.HealthCheckRequest{})
	fmt.Println(status.Code(err))
	// Output: OK
}
