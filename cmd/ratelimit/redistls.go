package main

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"time"

	"github.com/tryacquire/ratelimit/internal/tlsfiles"
)

// redisTLS are the files of connections to Redis. They are read again for each connection, so that a new certificate needs no
// restart. While they cannot be read, the former ones stay in force.
type redisTLS struct {
	cert, key string // by which Redis knows the client
	ca        string // the authorities of Redis's certificate, instead of the system's
}

// dialer opens connections with these files, and for the rest as base has it.
func (f redisTLS) dialer(base *tls.Config, timeout time.Duration, log *slog.Logger) (func(ctx context.Context, network, addr string) (net.Conn, error), error) {
	switch {
	case base == nil:
		return nil, usagef("--redis-cert, --redis-key and --redis-ca are for TLS; add --tls, or write rediss:// into REDIS_URL")
	case (f.cert == "") != (f.key == ""):
		return nil, usagef("--redis-cert and --redis-key belong together; give both")
	}
	latest, err := tlsfiles.Latest(log, "TLS to Redis", func() (*tls.Config, error) { return f.read(base) })
	if err != nil {
		return nil, usageError{err}
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := latest()
		if err != nil {
			return nil, err
		}
		d := tls.Dialer{NetDialer: &net.Dialer{Timeout: timeout, KeepAlive: 5 * time.Minute}, Config: c}
		return d.DialContext(ctx, network, addr)
	}, nil
}

func (f redisTLS) read(base *tls.Config) (*tls.Config, error) {
	c := base.Clone()
	var err error
	if f.cert != "" {
		if c.Certificates, err = tlsfiles.Pair(f.cert, f.key); err != nil {
			return nil, err
		}
	}
	if f.ca != "" {
		if c.RootCAs, err = tlsfiles.Authorities(f.ca); err != nil {
			return nil, err
		}
	}
	return c, nil
}
