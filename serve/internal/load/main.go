// Command load measures rate limit services for Envoy: how many requests a second each answers, how long an answer takes,
// and how many decisions a second of Redis's processor makes. docs/serve.md has its figures.
//
//	go -C serve run ./internal/load ok 127.0.0.1:9001 &   # answers OK to everything: the ceiling
//	go -C serve run ./internal/load -redis 127.0.0.1:6379 ok=127.0.0.1:9001 serve=127.0.0.1:8081,$(pidof ratelimit)
//
// With the id of its process, it says how much processor time the service takes for an answer, on Linux.
package main

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// A load is what is asked of each service.
type load struct {
	domain, key string
	callers     int
	conns       int // as Envoy has one for each of its threads
	values      int
	time        time.Duration
}

// A run is what was measured in one round.
type run struct {
	perSecond float64
	p50, p99  time.Duration
	over      int
	failed    int
	perCPU    float64       // answers a second of Redis's processor
	own       time.Duration // of the service's processor, for an answer
	all       time.Duration // of the service's, Redis's and the callers' processor, for an answer
}

func main() {
	var l load
	flag.StringVar(&l.domain, "domain", "bench", "of the requests")
	flag.StringVar(&l.key, "key", "user", "of their only descriptor")
	flag.IntVar(&l.callers, "callers", 256, "that ask at the same time")
	flag.IntVar(&l.conns, "connections", 2, "that they share")
	flag.IntVar(&l.values, "values", 10_000, "how many values the descriptor has, one after the other")
	flag.DurationVar(&l.time, "time", 3*time.Second, "of a round")
	rounds := flag.Int("rounds", 5, "in each of which all services are asked, one after the other")
	server := flag.String("redis", "", "the address of the Redis of all services")
	flag.Parse()
	var err error
	if flag.Arg(0) == "ok" {
		err = serveOK(flag.Arg(1))
	} else {
		err = measure(l, *rounds, *server, flag.Args())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// okServer answers OK to everything.
type okServer struct {
	pb.UnimplementedRateLimitServiceServer
}

func (okServer) ShouldRateLimit(_ context.Context, r *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	answer := &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OK}
	for range r.GetDescriptors() {
		answer.Statuses = append(answer.Statuses, &pb.RateLimitResponse_DescriptorStatus{Code: pb.RateLimitResponse_OK})
	}
	return answer, nil
}

func serveOK(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	s := grpc.NewServer(grpc.NumStreamWorkers(256), grpc.InitialConnWindowSize(1<<20)) // as serve has it
	pb.RegisterRateLimitServiceServer(s, okServer{})
	return s.Serve(l)
}

func measure(l load, rounds int, server string, targets []string) error {
	ctx := context.Background()
	var r *redis.Client
	if server != "" {
		r = redis.NewClient(&redis.Options{Addr: server})
		defer r.Close()
	}
	requests, err := l.requests()
	if err != nil {
		return err
	}
	names := make([]string, len(targets))
	runs := make([][]run, len(targets))
	var failed error
	for range rounds {
		for i, target := range targets {
			name, address, _ := strings.Cut(target, "=")
			address, process, _ := strings.Cut(address, ",")
			before, err := usedCPU(ctx, r)
			if err != nil {
				return err
			}
			ownBefore, callersBefore := processTime(process), processTime("self")
			all, err := l.once(address, requests)
			if err == nil && len(all.took) == 0 {
				err = cmp.Or(all.failure, fmt.Errorf("no answer within %v", l.time))
			}
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			after, err := usedCPU(ctx, r)
			if err != nil {
				return err
			}
			got := run{
				perSecond: float64(len(all.took)) / l.time.Seconds(), over: all.over, failed: all.failed,
				p50: all.took[len(all.took)/2].Round(time.Microsecond), p99: all.took[len(all.took)*99/100].Round(time.Microsecond),
			}
			if used := after - before; used > 0.01 {
				got.perCPU = float64(all.good) / used
			}
			each := time.Duration(all.good)
			got.own = (processTime(process) - ownBefore) / each
			got.all = got.own + (processTime("self")-callersBefore)/each + time.Duration((after-before)*1e9)/each
			names[i], runs[i] = name, append(runs[i], got)
			if all.failure != nil {
				failed = cmp.Or(failed, fmt.Errorf("%s: %d requests failed in one round, the first of them with %w", name, all.failed, all.failure))
			}
		}
	}
	fmt.Printf("%d callers, %d values, medians of %d rounds of %v\n", l.callers, l.values, rounds, l.time)
	fmt.Printf("%-14s %10s %10s %10s %21s %12s %12s %8s %7s\n", "", "answers/s", "p50", "p99", "per s of Redis's CPU", "own CPU each", "all CPU each", "over", "errors")
	for i, name := range names {
		fmt.Printf("%-14s %10.0f %10v %10v %21.0f %12v %12v %8d %7d\n", name,
			median(runs[i], func(r run) float64 { return r.perSecond }), median(runs[i], func(r run) time.Duration { return r.p50 }),
			median(runs[i], func(r run) time.Duration { return r.p99 }), median(runs[i], func(r run) float64 { return r.perCPU }),
			median(runs[i], func(r run) time.Duration { return r.own }), median(runs[i], func(r run) time.Duration { return r.all }),
			median(runs[i], func(r run) int { return r.over }),
			median(runs[i], func(r run) int { return r.failed }))
	}
	return failed
}

func median[T cmp.Ordered](runs []run, of func(run) T) T {
	var all []T
	for _, r := range runs {
		all = append(all, of(r))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// usedCPU is what Redis has used of its processor, in seconds.
func usedCPU(ctx context.Context, r *redis.Client) (float64, error) {
	if r == nil {
		return 0, nil
	}
	info, err := r.Info(ctx, "cpu").Result()
	var sum float64
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_user" || name == "used_cpu_sys" {
			n, _ := strconv.ParseFloat(value, 64)
			sum += n
		}
	}
	return sum, err
}

// processTime is what a process has used of its processor.
func processTime(process string) time.Duration {
	text, err := os.ReadFile("/proc/" + process + "/stat")
	fields := strings.Fields(string(text))
	if err != nil || len(fields) < 15 {
		return 0
	}
	user, _ := strconv.Atoi(fields[13])
	system, _ := strconv.Atoi(fields[14])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// requests are one for each value, in gRPC's frames.
func (l load) requests() ([][]byte, error) {
	all := make([][]byte, l.values)
	for i := range all {
		text, err := proto.Marshal(&pb.RateLimitRequest{Domain: l.domain, Descriptors: []*common.RateLimitDescriptor{{
			Entries: []*common.RateLimitDescriptor_Entry{{Key: l.key, Value: strconv.Itoa(i)}},
		}}})
		if err != nil {
			return nil, err
		}
		all[i] = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(text))), text...)
	}
	return all, nil
}

// once asks a service for a while, after a tenth of that time in which nothing is measured.
func (l load) once(address string, requests [][]byte) (answers, error) {
	begin := time.Now().Add(l.time / 10)
	end := begin.Add(l.time)
	return l.ask(address, requests, begin, end.Add(patience), func(now time.Time) bool { return now.Before(end) })
}

// ask asks a service, until a deadline at most. A caller that has an answer asks again if there is to be more.
func (l load) ask(address string, requests [][]byte, begin, deadline time.Time, more func(now time.Time) bool) (answers, error) {
	callers := make([][]*caller, min(l.conns, l.callers)) // by their connections
	for i := range l.callers {
		on := &callers[i%len(callers)]
		*on = append(*on, &caller{next: i})
	}
	conns := make([]*conn, len(callers))
	for i := range conns {
		var err error
		if conns[i], err = connect(address, len(callers[i]), requests); err != nil {
			return answers{}, err
		}
		defer conns[i].Close()
		_ = conns[i].SetDeadline(deadline)
	}
	failures := make([]error, len(conns))
	var running sync.WaitGroup
	for i, c := range conns {
		running.Go(func() { failures[i] = c.ask(callers[i], l.callers, begin, more) })
	}
	running.Wait()
	var sum answers
	for _, c := range conns {
		sum.took = append(sum.took, c.took...)
		sum.good, sum.over, sum.failed = sum.good+c.good, sum.over+c.over, sum.failed+c.failed
		sum.failure = cmp.Or(sum.failure, c.failure)
	}
	slices.Sort(sum.took)
	return sum, errors.Join(failures...)
}
