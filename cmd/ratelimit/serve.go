package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/serve"
)

// serveFlags are those of serve.
type serveFlags struct {
	redis               redisFlags
	cluster             bool
	sentinel            string
	traces              bool
	folder              string
	check               bool
	xds, node           string
	xdsTLS              bool
	options             serve.Options
	grpc, http, metrics string
	tls                 serve.TLS
}

func (p program) serveCommand() *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve --config folder [flags]",
		Short: "Serves limits to Envoy, and to whatever speaks its protocol",
		Long: `Serves limits to Envoy, and to whatever else speaks envoy.service.ratelimit.v3, by gRPC, and to others by
JSON over HTTP (POST /json). It reads the config files of envoyproxy/ratelimit as they are, and again when they change.
docs/serve.md has the fields of a file. GET /healthcheck is 200 while there is a config and Redis answers.
A signal ends it when the requests under way are answered, SIGHUP too: a reload needs none.
` + connecting + `
It may be down at the start. Of a Sentinel, --addr or REDIS_URL is a sentinel. Name several sentinels, or nodes of a
Cluster, by --addr host:port,host:port: one of them has to answer at the start.`,
		Example: `  ratelimit serve --config /etc/ratelimit
  ratelimit serve --config config --check`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.serve(cmd.Context(), &f, asJSON(cmd)) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.folder, "config", "", "the `folder` of the config files, *.yaml and *.yml")
	fs.BoolVar(&f.check, "check", false, "only check the config files")
	fs.StringVar(&f.xds, "xds", "", "the `host:port` of an xDS management server that has the config, instead of --config")
	fs.StringVar(&f.node, "xds-node", "default", "the `id` by which the management server knows this service")
	fs.BoolVar(&f.xdsTLS, "xds-tls", false, "connect to the management server by TLS")
	fs.BoolVar(&f.options.MergeDomains, "merge-domains", false, "let several files have descriptors of one domain")
	fs.BoolVar(&f.options.CountDenied, "count-denied", false, "count what is denied too, as envoyproxy/ratelimit does")
	fs.BoolVar(&f.options.Headers, "headers", false, "add RateLimit-Limit, -Remaining, -Reset and Retry-After to responses")
	fs.BoolVar(&f.options.Metadata, "metadata", false, "add dynamic_metadata to answers: the request, and the metadata of descriptors that are not over their limits")
	fs.BoolVar(&f.options.Shadow, "shadow", false, "deny nothing, and count what would have been denied")
	fs.DurationVar(&f.options.Denials, "denials", 0, "deny from memory what can only be denied, for so long at most; 0: ask Redis each time")
	fs.BoolVar(&f.options.Leases, "leases", false, "take hits of hot descriptors a slice at a time, and spend them in this process")
	fs.BoolVar(&f.options.OriginalMetrics, "original-metrics", false, "name metrics and labels as envoyproxy/ratelimit does, for its dashboards")
	fs.StringVar(&f.options.Outage.Fallback, "outage", "", "the `policy` while Redis does not answer: allow, deny or local; without it, answer with an error")
	fs.DurationVar(&f.options.Outage.Budget, "budget", 20*time.Millisecond, "how long a request waits for Redis, if there is an outage policy")
	fs.IntVar(&f.options.Outage.Instances, "instances", 1, "by how many processes limits are divided while local decides")
	fs.BoolVar(&f.traces, "traces", false, "send a span of each request by OTLP, as the variables OTEL_… say")
	fs.StringVar(&f.grpc, "grpc", ":8081", "the `address` where gRPC listens; empty: nowhere")
	fs.StringVar(&f.http, "http", ":8080", "the `address` of /json, /auth and /healthcheck; empty: nowhere")
	fs.StringVar(&f.metrics, "metrics", ":9102", "the `address` of /metrics, for Prometheus, and of /healthcheck; empty: nowhere")
	fs.StringVar(&f.tls.Cert, "server-cert", "", "a `file` with the service's certificate: gRPC and HTTP then speak TLS")
	fs.StringVar(&f.tls.Key, "server-key", "", "a `file` with the key of --server-cert")
	fs.StringVar(&f.tls.ClientCA, "client-ca", "", "a `file` with authorities: clients need a certificate of one of them")
	fs.StringVar(&f.tls.ClientSAN, "client-san", "", "the DNS `name` or URI that the certificate of a client must have")
	f.redis.define(fs)
	fs.Lookup("timeout").DefValue, f.redis.timeout = "100ms", 100*time.Millisecond
	fs.Lookup("timeout").Usage = "how long to wait for each answer of Redis"
	fs.BoolVar(&f.cluster, "cluster", false, "Redis is a Cluster")
	fs.StringVar(&f.sentinel, "sentinel", "", "the `name` of the master that the sentinels watch")
	complete(cmd, "outage", "allow", "deny", "local")
	return cmd
}

func (p program) serve(ctx context.Context, f *serveFlags, asJSON bool) error {
	switch {
	case f.xds != "" && (f.folder != "" || f.check):
		return usagef("--xds takes the config from a management server; leave --config and --check out")
	case f.xds != "":
		conn, err := f.management()
		if err != nil {
			return err
		}
		defer conn.Close()
		f.options.XDS = &serve.XDS{Conn: conn, Node: f.node}
	case f.folder == "":
		return usagef("--config is missing; name the folder of the config files")
	default:
		f.options.Files = serve.Dir(f.folder)
	}
	if f.check {
		return p.checkFolder(f)
	}
	if p.environ("GOGC") == "" {
		debug.SetGCPercent(400) // what is kept is small, and each request leaves some 5 kB
	}
	log := slog.New(slog.NewTextHandler(p.stderr, nil))
	if asJSON {
		log = slog.New(slog.NewJSONHandler(p.stderr, nil))
	}
	f.redis.log = log
	c, err := f.client(p.environ)
	if err != nil {
		return err
	}
	defer c.Close()
	if f.traces {
		provider, flush, err := tracing(ctx, p.environ, log)
		if err != nil {
			return err
		}
		defer flush()
		f.options.Traces = provider
	}
	var on serve.Listeners
	var config net.ListenConfig
	for _, l := range []struct {
		name, address string
		to            *net.Listener
	}{{"grpc", f.grpc, &on.GRPC}, {"http", f.http, &on.HTTP}, {"metrics", f.metrics, &on.Metrics}} {
		if l.address == "" {
			continue
		}
		if *l.to, err = config.Listen(ctx, "tcp", l.address); err != nil {
			return fmt.Errorf("--%s: %w", l.name, err)
		}
		defer (*l.to).Close()
	}
	if f.tls != (serve.TLS{}) {
		for _, l := range []struct {
			on       *net.Listener
			protocol string
		}{{&on.GRPC, "h2"}, {&on.HTTP, "http/1.1"}} {
			if *l.on == nil {
				continue
			}
			if *l.on, err = f.tls.Listen(*l.on, log, l.protocol); err != nil {
				return usageError{err}
			}
		}
	}
	err = serve.Run(ctx, c, f.options, on, log)
	if errors.Is(err, ratelimit.ErrInvalidConfig) {
		return usageError{err}
	}
	if err == nil {
		log.Info("stopped; every request that had begun is answered")
	}
	return err
}

// checkFolder writes the mistakes in the config files.
func (p program) checkFolder(f *serveFlags) error {
	files, err := f.options.Files()
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("%s has no file that ends with .yaml or .yml", f.folder)
	}
	err = serve.Check(f.options.MergeDomains, files...)
	if err == nil {
		return nil
	}
	_, mistakes, _ := strings.Cut(err.Error(), "\n")
	for line := range strings.SplitSeq(mistakes, "\n") {
		fmt.Fprintln(p.stdout, printable(line, 1000))
	}
	return errNo
}

// management reaches the management server when it is needed.
func (f *serveFlags) management() (*grpc.ClientConn, error) {
	secure := insecure.NewCredentials()
	if f.xdsTLS {
		secure = credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12})
	}
	conn, err := grpc.NewClient(f.xds, grpc.WithTransportCredentials(secure), grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 5 * time.Minute}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: time.Second, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 30 * time.Second}, MinConnectTimeout: 20 * time.Second}))
	if err != nil {
		return nil, usagef("--xds %s: %v", f.xds, err)
	}
	return conn, nil
}

// client reaches Redis when it is needed.
func (f *serveFlags) client(environ func(string) string) (redis.UniversalClient, error) {
	redis.SetLogger(silence{}) // errors are reported where they matter
	f.redis.several = f.cluster || f.sentinel != ""
	o, err := f.redis.options(environ)
	if err != nil {
		return nil, err
	}
	addrs := []string{o.Addr}
	if f.redis.addr != "" {
		addrs = f.redis.addrs()
	}
	budget := f.options.Outage.Budget
	switch {
	case f.cluster && f.sentinel != "":
		return nil, usagef("--cluster and --sentinel exclude each other")
	case f.cluster && o.DB != 0:
		return nil, usagef("a Cluster has database 0 only: leave --db out, and the number out of REDIS_URL")
	case f.cluster:
		c, err := ratelimit.ClientOptions(budget, &redis.ClusterOptions{Addrs: addrs, Username: o.Username, Password: o.Password, TLSConfig: o.TLSConfig, Dialer: o.Dialer,
			DialTimeout: f.redis.timeout, ReadTimeout: f.redis.timeout, WriteTimeout: f.redis.timeout})
		if err != nil {
			return nil, usageError{err}
		}
		return redis.NewClusterClient(c), nil
	case f.sentinel != "":
		c, err := ratelimit.ClientOptions(budget, &redis.FailoverOptions{MasterName: f.sentinel, SentinelAddrs: addrs, Username: o.Username,
			Password: o.Password, DB: o.DB, TLSConfig: o.TLSConfig, Dialer: o.Dialer, DialTimeout: f.redis.timeout, ReadTimeout: f.redis.timeout, WriteTimeout: f.redis.timeout})
		if err != nil {
			return nil, usageError{err}
		}
		return redis.NewFailoverClient(c), nil
	}
	c, err := ratelimit.ClientOptions(budget, &redis.Options{Addr: o.Addr, Username: o.Username, Password: o.Password, DB: o.DB, TLSConfig: o.TLSConfig, Dialer: o.Dialer,
		DialTimeout: f.redis.timeout, ReadTimeout: f.redis.timeout, WriteTimeout: f.redis.timeout})
	if err != nil {
		return nil, usageError{err}
	}
	return redis.NewClient(c), nil
}
