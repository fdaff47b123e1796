package serve

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"slices"

	"github.com/tryacquire/ratelimit"
	"github.com/tryacquire/ratelimit/internal/tlsfiles"
)

// TLS are the files of a listener. They are read again at each handshake, so that a new certificate needs no restart.
// While they cannot be read, the former ones stay in force.
type TLS struct {
	Cert, Key string // the chain of the server, and its key
	ClientCA  string // if it is set, clients need a certificate of these authorities
	ClientSAN string // if it is set, such a certificate has this DNS name or URI
}

// Listen puts TLS in front of a listener, whose clients speak one of these protocols: "h2" for gRPC, "http/1.1" for the
// others. The error says which file cannot be used.
func (t TLS) Listen(l net.Listener, log *slog.Logger, protocols ...string) (net.Listener, error) {
	if t.Cert == "" || t.Key == "" || t.ClientSAN != "" && t.ClientCA == "" {
		return nil, fmt.Errorf("%w: TLS needs a certificate and its key; a client's name needs its authorities too", ratelimit.ErrInvalidConfig)
	}
	latest, err := tlsfiles.Latest(log, "TLS", func() (*tls.Config, error) { return t.read(protocols) })
	if err != nil {
		return nil, err
	}
	return tls.NewListener(l, &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return latest() },
	}), nil
}

func (t TLS) read(protocols []string) (*tls.Config, error) {
	pair, err := tlsfiles.Pair(t.Cert, t.Key)
	if err != nil {
		return nil, fmt.Errorf("ratelimit/serve: %w", err)
	}
	// Without tickets: a session that is resumed would pass by a change of the authorities.
	c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: protocols, Certificates: pair, SessionTicketsDisabled: true}
	if t.ClientCA == "" {
		return c, nil
	}
	c.ClientAuth = tls.RequireAndVerifyClientCert
	if c.ClientCAs, err = tlsfiles.Authorities(t.ClientCA); err != nil {
		return nil, fmt.Errorf("ratelimit/serve: %w", err)
	}
	if t.ClientSAN != "" {
		c.VerifyConnection = func(state tls.ConnectionState) error { return t.named(state.PeerCertificates[0]) }
	}
	return c, nil
}

// named is an error unless the certificate has the client's name.
func (t TLS) named(c *x509.Certificate) error {
	for _, uri := range c.URIs {
		if uri.String() == t.ClientSAN {
			return nil
		}
	}
	if slices.Contains(c.DNSNames, t.ClientSAN) {
		return nil
	}
	return fmt.Errorf("ratelimit/serve: the client's certificate is not that of %s", t.ClientSAN)
}
