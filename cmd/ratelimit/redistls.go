package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/tryacquire/ratelimit/internal/filewatch"
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
	files := &filewatch.LastGood[*tls.Config]{
		Read: func() (*tls.Config, error) { return f.read(base) },
		Report: func(err error) {
			if err != nil {
				log.Error("the files of TLS to Redis are not in force, the former ones are", "error", err)
				return
			}
			log.Info("the files of TLS to Redis are in force again")
		},
	}
	if _, err := files.Get(); err != nil {
		return nil, usageError{err}
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := files.Get()
		if err != nil {
			return nil, err
		}
		d := tls.Dialer{NetDialer: &net.Dialer{Timeout: timeout, KeepAlive: 5 * time.Minute}, Config: c}
		return d.DialContext(ctx, network, addr)
	}, nil
}

func (f redisTLS) read(base *tls.Config) (*tls.Config, error) {
	c := base.Clone()
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, fmt.Errorf("%s, %s: %w", f.cert, f.key, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	if f.ca != "" {
		text, err := os.ReadFile(f.ca)
		if err != nil {
			return nil, err
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s has no certificate", f.ca)
		}
	}
	return c, nil
}
