package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/pflag"
)

const connecting = `
Redis is the one that REDIS_URL names (redis://user@host:6379/0, rediss:// for TLS), or
--addr; of a Cluster, any node. A password is never an argument, which every user of the
machine could read: it is in REDIS_URL, in REDIS_PASSWORD or in a file.`

// redisFlags are the flags of commands that ask Redis.
type redisFlags struct {
	addr, user, urlFile, passwordFile string
	db                                int
	tls                               bool
	files                             redisTLS
	several                           bool         // addr may be of several servers
	log                               *slog.Logger // nil: the default one
	timeout                           time.Duration
}

func (f *redisFlags) define(fs *pflag.FlagSet) {
	fs.StringVar(&f.addr, "addr", "", "Redis at `host:port`, instead of REDIS_URL (localhost:6379)")
	fs.StringVar(&f.user, "user", "", "the `name` of the ACL user")
	fs.StringVar(&f.passwordFile, "password-file", "", "a `file` with the password, instead of REDIS_PASSWORD")
	fs.StringVar(&f.urlFile, "url-file", "", "a `file` with what REDIS_URL would hold")
	fs.IntVar(&f.db, "db", 0, "the database's number")
	fs.BoolVar(&f.tls, "tls", false, "connect by TLS")
	fs.StringVar(&f.files.cert, "redis-cert", "", "a `file` with the certificate by which Redis knows this client")
	fs.StringVar(&f.files.key, "redis-key", "", "a `file` with the key of --redis-cert")
	fs.StringVar(&f.files.ca, "redis-ca", "", "a `file` with the authorities of Redis's certificate, instead of the system's")
	fs.DurationVar(&f.timeout, "timeout", 5*time.Second, "how long to wait for each answer")
}

// options say where Redis is. No error shows a password.
func (f *redisFlags) options(environ func(string) string) (*redis.Options, error) {
	if strings.Contains(f.addr, "@") || strings.Contains(f.addr, "://") {
		return nil, usagef("--addr takes host:port; put a URL into REDIS_URL or --url-file, because every user of the machine can read arguments")
	}
	if f.timeout <= 0 { // go-redis takes 0 for its default, and less for a time that is over
		return nil, usagef("--timeout is %v; write a time above 0", f.timeout)
	}
	from, text := "REDIS_URL", environ("REDIS_URL")
	if f.urlFile != "" {
		b, err := os.ReadFile(f.urlFile)
		if err != nil {
			return nil, err
		}
		from, text = f.urlFile, strings.TrimSpace(string(b))
	}
	opts := &redis.Options{Addr: "localhost:6379"}
	if text != "" && f.addr == "" {
		var err error
		if opts, err = redis.ParseURL(text); err != nil {
			var parts *url.Error
			if errors.As(err, &parts) || strings.Contains(err.Error(), text) {
				err = errors.New("it is no URL")
			}
			return nil, usagef("%s is not like redis://user@host:6379/0: %v", from, err)
		}
	}
	if f.addr != "" {
		all := f.addrs()
		if opts.Addr = all[0]; len(all) > 1 && !f.several {
			return nil, usagef("--addr: several servers are for serve, with --cluster or --sentinel")
		}
	}
	if f.user != "" {
		opts.Username = f.user
	}
	if f.db != 0 {
		opts.DB = f.db
	}
	if f.tls && opts.TLSConfig == nil {
		host, _, _ := net.SplitHostPort(opts.Addr)
		opts.TLSConfig = &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	}
	if password := environ("REDIS_PASSWORD"); password != "" {
		opts.Password = password
	}
	if f.passwordFile != "" {
		b, err := os.ReadFile(f.passwordFile)
		if err != nil {
			return nil, err
		}
		opts.Password = strings.TrimRight(string(b), "\r\n")
	}
	opts.DialTimeout, opts.ReadTimeout, opts.WriteTimeout = f.timeout, f.timeout, f.timeout
	opts.MaxRetries, opts.DialerRetries = 1, 1
	opts.ContextTimeoutEnabled = true
	if f.files != (redisTLS{}) {
		var err error
		if opts.Dialer, err = f.files.dialer(opts.TLSConfig, f.timeout, cmp.Or(f.log, slog.Default())); err != nil {
			return nil, err
		}
	}
	return opts, nil
}

// addrs are the servers of --addr, each with a port.
func (f *redisFlags) addrs() []string {
	all := strings.Split(f.addr, ",")
	for i, addr := range all {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			all[i] = net.JoinHostPort(addr, "6379")
		}
	}
	return all
}

// A server is a Redis: a single one, or the masters of a Cluster.
type server struct {
	redis.UniversalClient
	addr    string
	cluster *redis.ClusterClient // nil of a single server
}

// connect reaches Redis, and finds out whether it is a Cluster.
func (f *redisFlags) connect(ctx context.Context, environ func(string) string) (*server, error) {
	redis.SetLogger(silence{}) // errors are reported where they matter
	opts, err := f.options(environ)
	if err != nil {
		return nil, err
	}
	single := redis.NewClient(opts)
	if err := single.Ping(ctx).Err(); err != nil {
		_ = single.Close()
		return nil, f.unreachable(opts, err)
	}
	if !clustered(ctx, single) {
		return &server{UniversalClient: single, addr: opts.Addr}, nil
	}
	_ = single.Close()
	cluster := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{opts.Addr}, Username: opts.Username, Password: opts.Password, TLSConfig: opts.TLSConfig, Dialer: opts.Dialer,
		DialTimeout: f.timeout, ReadTimeout: f.timeout, WriteTimeout: f.timeout, ContextTimeoutEnabled: true,
	})
	return &server{UniversalClient: cluster, addr: opts.Addr, cluster: cluster}, nil
}

// unreachable adds the remedy to an error of the first call.
func (f *redisFlags) unreachable(opts *redis.Options, err error) error {
	remedy := "is it running, and does REDIS_URL or --addr name it?"
	switch text := err.Error(); {
	case strings.HasPrefix(text, "NOAUTH"):
		remedy = "it wants a password: give REDIS_PASSWORD or --password-file, and --user if it is not the default user's"
	case strings.HasPrefix(text, "WRONGPASS"):
		remedy = "the password or --user is wrong: see REDIS_URL, REDIS_PASSWORD and --password-file"
	case strings.HasPrefix(text, "NOPERM"):
		remedy = "the user may not do that: see docs/privileges.md"
	case strings.Contains(text, "SELECT is not allowed in cluster mode"):
		remedy = "a Cluster has database 0 only: leave --db out, and the number out of REDIS_URL"
	case opts.TLSConfig != nil && f.files.cert == "" && (strings.Contains(text, "certificate required") || strings.Contains(text, "EOF") ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)):
		remedy = "does it ask for a certificate (--redis-cert)?"
	case opts.TLSConfig == nil && strings.Contains(text, "EOF"):
		remedy = "does it want TLS (--tls, or rediss:// in REDIS_URL)?"
	}
	return fmt.Errorf("asking Redis at %s: %w (%s)", opts.Addr, err, remedy)
}

// clustered asks a server for its mode. One that is too old to say so, or says something else, is single.
func clustered(ctx context.Context, c *redis.Client) bool {
	reply, err := c.Do(ctx, "HELLO").Result()
	if err != nil {
		return false
	}
	switch reply := reply.(type) {
	case map[any]any:
		return reply["mode"] == "cluster"
	case []any:
		for i := 0; i+1 < len(reply); i += 2 {
			if reply[i] == "mode" {
				return reply[i+1] == "cluster"
			}
		}
	}
	return false
}

// masters are clients of the servers that have keys: one for each master of a Cluster.
func (s *server) masters(ctx context.Context) ([]*redis.Client, error) {
	if s.cluster == nil {
		return []*redis.Client{s.UniversalClient.(*redis.Client)}, nil
	}
	found := make(chan *redis.Client, 1000)
	err := s.cluster.ForEachMaster(ctx, func(_ context.Context, c *redis.Client) error {
		found <- c
		return nil
	})
	close(found)
	var all []*redis.Client
	for c := range found {
		all = append(all, c)
	}
	return all, err
}

// of is the server that has a key.
func (s *server) of(ctx context.Context, key string) (redis.Cmdable, error) {
	if s.cluster == nil {
		return s.UniversalClient, nil
	}
	return s.cluster.MasterForKey(ctx, key)
}

// silence is a log of go-redis that keeps nothing.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}
